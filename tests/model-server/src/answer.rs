//! Turns bodies and events into HTTP responses, and breaks them on the way as the exchange's fault says.

use std::{io, num::NonZeroUsize, sync::Arc};

use async_stream::{stream, try_stream};
use axum::{
    body::Body,
    http::{
        HeaderValue,
        header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER},
    },
    response::Response,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, pin_mut, stream::BoxStream};
use serde_json::{Value, json};
use tokio::{task::yield_now, time::sleep};

use crate::{
    coding::{Coding, Encoder},
    dialect::{ApiError, Dialect},
    faults::{BreakOff, DoneMark, Fault, LengthClaim, UsageReport},
    journal::{Entry, Finished},
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

/// How one exchange's answer is written.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) fault: Fault,
    pub(crate) dialect: Dialect,
    pub(crate) entry: Arc<Entry>,
}

impl Writing {
    /// An answer of JSON in one piece.
    pub(crate) fn json(self, mut body: Value) -> Result<Response, Reset> {
        Padding(self.fault.padding_bytes).add_to(&mut body);
        let mut bodies = self.fault.usage.applied(body);
        let text = match (self.fault.usage, bodies.as_mut_slice()) {
            (UsageReport::Repeat, [wrong, right]) => with_usage_before(wrong, right),
            _ => bodies.first().map(Value::to_string).unwrap_or_default(),
        };
        self.whole("application/json", text.into())
    }

    /// An answer in one piece.
    pub(crate) fn whole(self, content_type: &'static str, mut bytes: Bytes) -> Result<Response, Reset> {
        if self.fault.coding != Coding::Identity {
            let mut encoder = Encoder::new(self.fault.coding)?;
            bytes = [encoder.encode(&bytes)?, encoder.finish()?].concat().into();
        }
        let length = bytes.len();
        let half = bytes.slice(..length / 2);
        let (body, claimed) = match (self.fault.break_off, self.fault.length) {
            (None, LengthClaim::True) => {
                self.entry.finish(Finished::Complete);
                (Body::from(bytes), None)
            }
            (None, LengthClaim::Over(more)) => {
                self.entry.finish(Finished::Aborted);
                let short = stream! {
                    yield Ok::<_, Reset>(bytes);
                    flushed().await;
                };
                (Body::from_stream(short), Some(length.saturating_add(more)))
            }
            (None, LengthClaim::Under(fewer)) => {
                self.entry.finish(Finished::Aborted);
                (Body::from_stream(stream! { yield Ok::<_, Reset>(bytes); }), Some(length.saturating_sub(fewer)))
            }
            (Some(BreakOff::TruncateAfter(_)), _) => {
                self.entry.finish(Finished::Aborted);
                (Body::from_stream(stream! { yield Ok::<_, Reset>(half); }), None)
            }
            (Some(BreakOff::ResetBeforeHeaders), _) => return Err(Reset),
            (Some(BreakOff::ResetAfter(_)), _) => {
                self.entry.finish(Finished::Aborted);
                let reset = stream! {
                    yield Ok(half);
                    flushed().await;
                    yield Err(Reset);
                };
                (Body::from_stream(reset), Some(length))
            }
        };
        let mut response = response(body, content_type, self.fault.coding);
        if let Some(length) = claimed {
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        Ok(response)
    }

    /// An error.
    pub(crate) fn error(self, error: &ApiError) -> Result<Response, Reset> {
        let body = error.body(self.dialect);
        let mut response = self.json(body)?;
        *response.status_mut() = error.status;
        if let Some(seconds) = error.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        Ok(response)
    }

    /// A stream of events.
    pub(crate) fn streamed(self, events: BoxStream<'static, Event>) -> Response {
        let coding = self.fault.coding;
        response(Body::from_stream(self.written(events)), "text/event-stream; charset=utf-8", coding)
    }

    /// The bytes of a stream.
    fn written(self, events: BoxStream<'static, Event>) -> impl Stream<Item = Result<Bytes, Reset>> + Send + 'static {
        let Self { fault, dialect, entry } = self;
        let events = broken(events, fault.clone(), dialect);
        try_stream! {
            let mut encoder = Encoder::new(fault.coding)?;
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
                    Event::Data { body, .. } => padding.add_to(body),
                    Event::Done | Event::End => {
                        while let Some(pause) = fault.endless {
                            yield encoder.encode(b": keep-alive\n\n")?;
                            sleep(pause).await;
                        }
                        // Before the client can see the end; the first word on how it ended stands.
                        entry.finish(Finished::Complete);
                        if fault.done == DoneMark::Omit || event == Event::End {
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
}

/// The events, with the usage that the fault reports, and with the error that it ends them by.
fn broken(events: BoxStream<'static, Event>, fault: Fault, dialect: Dialect) -> impl Stream<Item = Event> + Send {
    stream! {
        let mut sent = 0;
        pin_mut!(events);
        while let Some(event) = events.next().await {
            if fault.error_after == Some(sent) {
                yield ApiError::in_stream().event(dialect, sent);
                yield if dialect == Dialect::OpenAi { Event::Done } else { Event::End };
                return;
            }
            match event {
                Event::Data { name, body } => {
                    for body in fault.usage.applied(body) {
                        yield Event::Data { name, body };
                        sent += 1;
                    }
                }
                end => yield end,
            }
        }
    }
}

/// A body that says its usage twice, first the other body's.
fn with_usage_before(wrong: &Value, right: &Value) -> String {
    let place = |body: &Value| ["usage", "meta"].into_iter().find(|place| body.get(place).is_some());
    let (Some(place), text) = (place(right), right.to_string()) else {
        return right.to_string();
    };
    let usage = wrong.get(place).unwrap_or(&Value::Null);
    text.replacen('{', &format!("{{\"{place}\":{usage},"), 1)
}

fn response(body: Body, content_type: &'static str, coding: Coding) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.extend(coding.header());
    response
}

/// Lets the connection write what it has: hyper flushes when a body has nothing to give.
async fn flushed() {
    yield_now().await;
}

/// What an answer is still to grow by, in bytes.
struct Padding(usize);

impl Padding {
    /// Makes the body big by a field: in the first object of its first list, where it has one, as chats have their choices; else beside the others. A
    /// chunk that has an empty list stays as it is, and so does the padding.
    fn add_to(&mut self, body: &mut Value) {
        let Value::Object(fields) = body else { return };
        if self.0 == 0 || fields.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty) {
            return;
        }
        let padding = json!("x".repeat(std::mem::take(&mut self.0)));
        match fields.values_mut().find_map(|list| list.get_mut(0)?.as_object_mut()) {
            Some(first) => first.insert("padding".to_owned(), padding),
            None => fields.insert("padding".to_owned(), padding),
        };
    }
}
