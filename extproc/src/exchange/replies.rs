//! The replies with which a request is let go, one for each message that waits for one.

use attache_proto::splice::Chunk;

use super::body_memory::Claim;
use super::chunks::Answers;
use super::event::{Body, Mutations, Profile, Reply};

/// Replies, in the order of their messages. They are made as they are taken: a body may have come in very many chunks.
#[derive(Debug)]
pub struct Replies {
    first: Option<Reply>,
    further: Answers,
    ended: Ended,
    /// On what they take: until they have gone out, at the pace of the proxy.
    _claim: Claim,
}

/// What told that a request's body was complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// Its last chunk, or headers that have none.
    ByItself,
    /// Trailers, which wait for a reply as well.
    ByTrailers,
}

impl Replies {
    /// To headers that `mutations` changes, and to the chunks of a body.
    pub(super) fn new(profile: Profile, mutations: Mutations, answers: (Answers, Claim), ended: Ended) -> Self {
        let (mut chunks, _claim) = answers;
        match profile {
            Profile::Streamed => Self { first: Some(Reply::RequestHeaders(mutations)), further: chunks, ended, _claim },
            Profile::Buffered => {
                let first = match chunks.next() {
                    Some(chunk) => Reply::RequestBody(mutations, body(chunk)),
                    // There is no body: the headers are what waits for an answer.
                    None => Reply::RequestHeaders(mutations),
                };
                Self { first: Some(first), further: Answers::none(), ended, _claim }
            }
        }
    }
}

impl Iterator for Replies {
    type Item = Reply;

    fn next(&mut self) -> Option<Reply> {
        let further = |chunk| Reply::RequestBody(Mutations::default(), body(chunk));
        self.first.take().or_else(|| self.further.next().map(further)).or_else(|| {
            let ended = std::mem::replace(&mut self.ended, Ended::ByItself);
            (ended == Ended::ByTrailers).then_some(Reply::RequestTrailers)
        })
    }
}

fn body(chunk: Chunk) -> Body {
    match chunk {
        Chunk::Unchanged => Body::Unchanged,
        Chunk::Replaced(bytes) => Body::Replaced(bytes),
    }
}
