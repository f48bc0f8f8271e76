//! gRPC's messages in the bodies of one HTTP/2 stream: each has a byte that says whether it is compressed, four with its length,
//! and then itself in protobuf.
//!
//! tonic's codecs do the same out of two buffers that live as long as the stream and stay as large as its largest message. Here a
//! message has memory while it is read or written: most of a stream's life is spent between two events of an answer.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use envoy_types::pb::envoy::service::ext_proc::v3::{ProcessingRequest, ProcessingResponse};
use http::{HeaderMap, HeaderValue};
use hyper::body::{Body as _, Frame};
use prost::Message;
use tonic::body::Body;
use tonic::{Code, Status};

use super::Replies;

/// What stands before each message.
const PREFIX_BYTES: usize = 5;

/// Replies that are ready at once go out together up to here. tonic does the same.
const WRITE_AT_ONCE_BYTES: usize = 32 * 1024;

/// Messages as they come in.
pub(super) struct Messages {
    body: Body,
    max_bytes: usize,
    /// What came and was not read yet.
    unread: Bytes,
    /// A message, prefix and all, that had not come whole when `unread` was read.
    begun: Vec<u8>,
}

impl Messages {
    /// Refuses messages of more than `max_bytes`.
    pub(super) fn new(body: Body, max_bytes: usize) -> Self {
        Self { body, max_bytes, unread: Bytes::new(), begun: Vec::new() }
    }

    /// The next message; `None` is the end. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// What ended the stream, a message that is too long, and what is no message.
    pub(super) async fn message(&mut self) -> Result<Option<ProcessingRequest>, Status> {
        poll_fn(|context| self.poll_message(context)).await
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<ProcessingRequest>, Status>> {
        loop {
            if let Some(message) = self.read()? {
                return Poll::Ready(Ok(Some(message)));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(frame) => self.unread = frame?.into_data().unwrap_or_default(),
                None if self.begun.is_empty() => return Poll::Ready(Ok(None)),
                None => return Poll::Ready(Err(Status::internal("the stream ended amid a message"))),
            }
        }
    }

    /// A message of what has come, if there is a whole one. Otherwise nothing stays unread.
    fn read(&mut self) -> Result<Option<ProcessingRequest>, Status> {
        if self.begun.is_empty() {
            // Most messages come in one piece.
            let Some(bytes) = whole(&self.unread, self.max_bytes)? else {
                return self.set_aside().map(|()| None);
            };
            let message = decode(self.unread.get(PREFIX_BYTES..bytes).unwrap_or_default());
            self.unread.advance(bytes);
            return message.map(Some);
        }
        self.set_aside()?;
        if whole(&self.begun, self.max_bytes)?.is_none() {
            return Ok(None);
        }
        let message = decode(self.begun.get(PREFIX_BYTES..).unwrap_or_default());
        self.begun = Vec::new();
        message.map(Some)
    }

    /// Moves what is unread to what has begun, but nothing of the message after that.
    fn set_aside(&mut self) -> Result<(), Status> {
        let missing = PREFIX_BYTES.saturating_sub(self.begun.len());
        self.take(missing);
        if let Some(bytes) = announced(&self.begun, self.max_bytes)? {
            let missing = bytes.saturating_sub(self.begun.len());
            self.begun.reserve_exact(missing);
            self.take(missing);
        }
        Ok(())
    }

    fn take(&mut self, bytes: usize) {
        let taken = self.unread.split_to(bytes.min(self.unread.len()));
        self.begun.extend_from_slice(&taken);
    }
}

/// How long the message at the beginning is, with its prefix, once that is known.
fn announced(bytes: &[u8], max_bytes: usize) -> Result<Option<usize>, Status> {
    let Some(&[compressed, length @ ..]) = bytes.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
    if compressed != 0 {
        return Err(Status::unimplemented("a compressed message: no encoding is offered"));
    }
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > max_bytes {
        return Err(Status::out_of_range(format!("a message of {length} bytes: at most {max_bytes} are taken")));
    }
    Ok(Some(length.saturating_add(PREFIX_BYTES)))
}

/// The same, if all of it is there.
fn whole(bytes: &[u8], max_bytes: usize) -> Result<Option<usize>, Status> {
    Ok(announced(bytes, max_bytes)?.filter(|length| *length <= bytes.len()))
}

fn decode(bytes: &[u8]) -> Result<ProcessingRequest, Status> {
    ProcessingRequest::decode(bytes).map_err(|error| Status::internal(format!("no ProcessingRequest: {error}")))
}

/// Replies as they go out, and the status at the end of them.
pub(super) struct ReplyBody {
    /// `None` once they have ended.
    replies: Option<Replies>,
    /// How they ended, if nobody was told yet.
    status: Option<Status>,
}

impl ReplyBody {
    pub(super) fn new(replies: Replies) -> Self {
        Self { replies: Some(replies), status: None }
    }

    fn end(&mut self, status: Status) {
        self.replies = None;
        self.status = Some(status);
    }
}

impl hyper::body::Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut written = BytesMut::new();
        while let Some(replies) = &mut self.replies
            && written.len() < WRITE_AT_ONCE_BYTES
        {
            match replies.as_mut().poll_next(context) {
                Poll::Ready(Some(Ok(reply))) => {
                    if let Err(status) = encode(&reply, &mut written) {
                        self.end(status);
                    }
                }
                Poll::Ready(Some(Err(status))) => self.end(status),
                Poll::Ready(None) => self.end(Status::ok("")),
                Poll::Pending if written.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        if !written.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(written.freeze()))));
        }
        Poll::Ready(self.status.take().map(|status| Ok(Frame::trailers(trailers(&status)))))
    }

    fn is_end_stream(&self) -> bool {
        self.replies.is_none() && self.status.is_none()
    }
}

fn encode(reply: &ProcessingResponse, written: &mut BytesMut) -> Result<(), Status> {
    let bytes = reply.encoded_len();
    let length = u32::try_from(bytes).map_err(|_| Status::internal("a reply above 4 GiB"))?;
    written.reserve(PREFIX_BYTES + bytes);
    written.put_u8(0);
    written.put_u32(length);
    reply.encode(written).map_err(|error| Status::internal(error.to_string()))
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        // Its message can be no header: then the code alone.
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from(Code::Internal as i32));
    }
    trailers
}

#[cfg(test)]
mod tests;
