//! Turns bodies and events into HTTP responses, and breaks them on the way as the exchange's fault says.

use std::{
    io::{self, Write as _},
    num::NonZeroUsize,
    sync::Arc,
};

use async_stream::{stream, try_stream};
use axum::{
    body::Body,
    http::{
        HeaderValue,
        header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER},
    },
    response::Response,
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::{Stream, StreamExt as _, pin_mut};
use serde_json::{Value, json};
use tokio::task::yield_now;

use crate::{
    faults::{BreakOff, DoneMark, Encoding, Fault},
    journal::{Entry, Finished},
    openai::ApiError,
    pause::pause,
    sse::Event,
};

/// The connection is to be reset: as the error of a service or of a body, it makes the connection's driver do so.
#[derive(Debug, thiserror::Error)]
#[error("the connection is reset on request")]
pub(crate) struct Reset;

impl From<io::Error> for Reset {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// An answer in one piece.
pub(crate) fn whole(mut body: Value, fault: &Fault, entry: &Arc<Entry>) -> Result<Response, Reset> {
    Padding(fault.padding_bytes).add_to(&mut body);
    let mut bytes = Bytes::from(body.to_string());
    if fault.encoding == Encoding::Gzip {
        let mut encoder = Encoder::new(Encoding::Gzip);
        bytes = [encoder.encode(&bytes)?, encoder.finish()?].concat().into();
    }
    let length = bytes.len();
    let half = bytes.slice(..length / 2);
    let body = match fault.break_off {
        None => {
            entry.finish(Finished::Complete);
            Body::from(bytes)
        }
        Some(BreakOff::TruncateAfter(_)) => {
            entry.finish(Finished::Aborted);
            Body::from_stream(stream! { yield Ok::<_, Reset>(half); })
        }
        Some(BreakOff::ResetBeforeHeaders) => return Err(Reset),
        Some(BreakOff::ResetAfter(_)) => {
            entry.finish(Finished::Aborted);
            Body::from_stream(stream! {
                yield Ok(half);
                flushed().await;
                yield Err(Reset);
            })
        }
    };
    let mut response = response(body, "application/json", fault.encoding);
    if let Some(BreakOff::ResetAfter(_)) = fault.break_off {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(response)
}

/// An error.
pub(crate) fn error(error: &ApiError, fault: &Fault, entry: &Arc<Entry>) -> Result<Response, Reset> {
    let mut response = whole(error.body(), fault, entry)?;
    *response.status_mut() = error.status;
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(response)
}

/// A stream of events.
pub(crate) fn streamed(
    events: impl Stream<Item = Event> + Send + 'static,
    fault: Fault,
    entry: Arc<Entry>,
) -> Response {
    let content_type = "text/event-stream; charset=utf-8";
    let encoding = fault.encoding;
    response(Body::from_stream(written(events, fault, entry)), content_type, encoding)
}

/// The bytes of a stream.
fn written(
    events: impl Stream<Item = Event> + Send + 'static,
    fault: Fault,
    entry: Arc<Entry>,
) -> impl Stream<Item = Result<Bytes, Reset>> + Send + 'static {
    try_stream! {
        let mut encoder = Encoder::new(fault.encoding);
        let mut padding = Padding(fault.padding_bytes);
        let mut sent = 0;
        pin_mut!(events);
        while let Some(mut event) = events.next().await {
            if fault.break_off == Some(BreakOff::ResetAfter(sent)) {
                entry.finish(Finished::Aborted);
                flushed().await;
                Err(Reset)?;
            }
            let truncated = fault.break_off == Some(BreakOff::TruncateAfter(sent));
            if truncated {
                entry.finish(Finished::Aborted);
            }
            pause(fault.slow).await;
            match &mut event {
                Event::Data(body) => padding.add_to(body),
                Event::Done => {
                    // Before the client can see the end; the first word on how it ended stands.
                    entry.finish(Finished::Complete);
                    if fault.done == DoneMark::Omit {
                        break;
                    }
                }
            }
            let mut text = fault.framing.write(&event, sent);
            if truncated {
                text.truncate(text.len() / 2);
                yield encoder.encode(&text)?;
                break;
            }
            let bytes = encoder.encode(&text)?;
            let piece_bytes = fault.framing.piece_bytes.map_or(bytes.len(), NonZeroUsize::get);
            for piece in bytes.chunks(piece_bytes) {
                yield bytes.slice_ref(piece);
                if fault.framing.piece_bytes.is_some() {
                    flushed().await;
                }
            }
            sent += 1;
        }
        yield encoder.finish()?;
    }
}

fn response(body: Body, content_type: &'static str, encoding: Encoding) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if encoding == Encoding::Gzip {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// Lets the connection write what it has: hyper flushes when a body has nothing to give.
async fn flushed() {
    yield_now().await;
}

/// What an answer is still to grow by, in bytes.
struct Padding(usize);

impl Padding {
    /// Makes the body big by a field in its first choice. Leaves it, and stays, if the body has none.
    fn add_to(&mut self, body: &mut Value) {
        let Value::Object(fields) = body else { return };
        let Some(choice) = fields.values_mut().find_map(|list| list.get_mut(0)?.as_object_mut()) else {
            return;
        };
        let bytes = std::mem::take(&mut self.0);
        if bytes > 0 {
            choice.insert("padding".to_owned(), json!("x".repeat(bytes)));
        }
    }
}

/// A body's encoder, which gives all of its input at once.
enum Encoder {
    Identity,
    Gzip(GzEncoder<Vec<u8>>),
}

impl Encoder {
    fn new(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Identity => Self::Identity,
            Encoding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), Compression::fast())),
        }
    }

    fn encode(&mut self, bytes: &[u8]) -> Result<Bytes, Reset> {
        match self {
            Self::Identity => Ok(Bytes::copy_from_slice(bytes)),
            Self::Gzip(encoder) => {
                encoder.write_all(bytes)?;
                encoder.flush()?;
                Ok(std::mem::take(encoder.get_mut()).into())
            }
        }
    }

    /// What follows the last bytes.
    fn finish(self) -> Result<Bytes, Reset> {
        match self {
            Self::Identity => Ok(Bytes::new()),
            Self::Gzip(encoder) => Ok(encoder.finish()?.into()),
        }
    }
}
