//! The replies with which a request is let go, one for each message that waits for one.

use attache_proto::splice::Chunk;

use super::chunks::Answers;
use super::event::{Body, Mutations, Profile, Reply};

/// Replies, in the order of their messages. They are made as they are taken: a body may have come in very many chunks.
#[derive(Debug)]
pub struct Replies {
    first: Option<Reply>,
    further: Answers,
}

impl Replies {
    /// To headers that `mutations` changes, and to the chunks of a body.
    pub(super) fn new(profile: Profile, mutations: Mutations, mut chunks: Answers) -> Self {
        match profile {
            Profile::Streamed => Self { first: Some(Reply::RequestHeaders(mutations)), further: chunks },
            Profile::Buffered => {
                let first = match chunks.next() {
                    Some(chunk) => Reply::RequestBody(mutations, body(chunk)),
                    // There is no body: the headers are what waits for an answer.
                    None => Reply::RequestHeaders(mutations),
                };
                Self { first: Some(first), further: Answers::none() }
            }
        }
    }
}

impl Iterator for Replies {
    type Item = Reply;

    fn next(&mut self) -> Option<Reply> {
        let further = |chunk| Reply::RequestBody(Mutations::default(), body(chunk));
        self.first.take().or_else(|| self.further.next().map(further))
    }
}

fn body(chunk: Chunk) -> Body {
    match chunk {
        Chunk::Unchanged => Body::Unchanged,
        Chunk::Replaced(bytes) => Body::Replaced(bytes),
    }
}
