//! A client of the gateway, as an application would be one: JSON and server-sent events over HTTP/1.1, or HTTP/2.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, RequestBuilder, Response, header::HeaderMap};
use serde_json::Value;

use crate::{
    error::{Error, Result},
    sse,
};

/// After which a request has no answer; no test waits so long for anything but an error.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A client. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    headers: Vec<(String, String)>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// An answer that is read event by event.
#[derive(Debug)]
pub struct EventStream {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    response: Response,
    reader: sse::Reader,
    ready: std::collections::VecDeque<String>,
}

/// All events of a stream.
#[derive(Clone, Debug)]
pub struct Events {
    /// The data of each, `[DONE]` as well.
    pub data: Vec<String>,
    /// How the stream ended.
    pub end: StreamEnd,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// As HTTP wants it.
    Complete,
    /// The connection broke.
    Cut,
}

impl Client {
    /// A client of the server at `url`, which has no path.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn new(url: impl Into<String>) -> Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build();
        let http = http.map_err(Error::http("make an HTTP client"))?;
        Ok(Self { http, url: url.into(), headers: Vec::new() })
    }

    /// A client that speaks HTTP/2 to the server at `url`, without TLS.
    ///
    /// # Errors
    /// When the system gives none.
    pub fn over_http2(url: impl Into<String>) -> Result<Self> {
        let http = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).http2_prior_knowledge().build();
        let http = http.map_err(Error::http("make an HTTP/2 client"))?;
        Ok(Self { http, ..Self::new(url)? })
    }

    /// The same client with this API key.
    #[must_use]
    pub fn with_key(self, key: &str) -> Self {
        self.with_header("authorization", &format!("Bearer {key}"))
    }

    /// The same client with a header on every request, in place of the one of that name.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A request with this client's headers.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        self.headers.iter().fold(request, |request, (name, value)| request.header(name, value))
    }

    /// A POST of JSON with this client's headers.
    pub fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.request(Method::POST, path).json(body)
    }

    /// GETs a path.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn get(&self, path: &str) -> Result<Answer> {
        Answer::to(self.request(Method::GET, path)).await
    }

    /// Calls `/v1/chat/completions`.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn chat(&self, body: &Value) -> Result<Answer> {
        Answer::to(self.post("/v1/chat/completions", body)).await
    }

    /// Calls `/v1/completions`.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn complete(&self, body: &Value) -> Result<Answer> {
        Answer::to(self.post("/v1/completions", body)).await
    }

    /// Calls `/v1/chat/completions` with `"stream": true` in a body that does not say so.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn stream_chat(&self, body: &Value) -> Result<EventStream> {
        EventStream::to(self.post("/v1/chat/completions", &streamed(body))).await
    }

    /// Calls `/v1/completions` with `"stream": true` in a body that does not say so.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn stream_completion(&self, body: &Value) -> Result<EventStream> {
        EventStream::to(self.post("/v1/completions", &streamed(body))).await
    }
}

impl Answer {
    /// Sends a request and reads all of its answer.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn to(request: RequestBuilder) -> Result<Self> {
        let response = request.send().await.map_err(Error::http("get an answer"))?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.bytes().await.map_err(Error::http("read a whole answer"))?;
        Ok(Self { status, headers, body })
    }

    /// A header's value, if there is one that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// When it is none.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).map_err(|_| Error::unexpected("the body is no JSON", self.text()))
    }

    /// What an error in OpenAI's or Anthropic's form says.
    pub fn error_message(&self) -> Option<String> {
        let body: Value = serde_json::from_slice(&self.body).ok()?;
        Some(body.pointer("/error/message")?.as_str()?.to_owned())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl EventStream {
    /// Sends a request and reads the headers of its answer.
    ///
    /// # Errors
    /// When there are none.
    pub async fn to(request: RequestBuilder) -> Result<Self> {
        let response = request.send().await.map_err(Error::http("get an answer"))?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Self { status, headers, response, reader: sse::Reader::default(), ready: Default::default() })
    }

    /// A header's value, if there is one that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The data of the next event; `None` at the end.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            match self.response.chunk().await.map_err(Error::http("read a stream to its end"))? {
                Some(bytes) => self.ready.extend(self.reader.feed(&bytes)),
                None => return Ok(None),
            }
        }
    }

    /// The events that are left. A broken connection is an end like any other.
    pub async fn rest(mut self) -> Events {
        let mut data = Vec::new();
        loop {
            match self.next().await {
                Ok(Some(event)) => data.push(event),
                Ok(None) => return Events { data, end: StreamEnd::Complete },
                Err(_) => return Events { data, end: StreamEnd::Cut },
            }
        }
    }
}

impl Events {
    /// Each event that is JSON.
    pub fn json(&self) -> impl Iterator<Item = Value> {
        self.data.iter().filter_map(|data| serde_json::from_str(data).ok())
    }

    /// Whether the last one is `[DONE]`.
    pub fn is_done(&self) -> bool {
        self.data.last().is_some_and(|data| data == "[DONE]")
    }

    /// What the first choices' deltas (or texts) add up to.
    pub fn text(&self) -> String {
        let piece = |event: Value| {
            let piece = event.pointer("/choices/0/delta/content").or(event.pointer("/choices/0/text"))?;
            Some(piece.as_str()?.to_owned())
        };
        self.json().filter_map(piece).collect()
    }
}

fn streamed(body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.insert("stream".to_owned(), Value::Bool(true));
    }
    body
}
