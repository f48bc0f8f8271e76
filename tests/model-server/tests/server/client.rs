//! What the tests speak to the server with.

use std::{
    io::{self, Read as _},
    time::Duration,
};

use attache_model_server::{Config, ModelServer};
use flate2::read::GzDecoder;
use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

pub(crate) async fn start() -> ModelServer {
    ModelServer::start(Config::default()).await.unwrap()
}

pub(crate) fn post(server: &ModelServer, path: &str, body: &Value) -> RequestBuilder {
    Client::new().post(format!("{}{path}", server.url())).json(body)
}

/// A chat of one question.
pub(crate) fn chat(server: &ModelServer, more: &Value) -> RequestBuilder {
    post(server, "/v1/chat/completions", &chat_body(more))
}

/// The body of a chat of one question, with more fields.
pub(crate) fn chat_body(more: &Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "How are you?"}]});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

pub(crate) async fn json_of(request: RequestBuilder) -> Value {
    request.send().await.unwrap().json().await.unwrap()
}

pub(crate) async fn text_of(request: RequestBuilder) -> String {
    request.send().await.unwrap().text().await.unwrap()
}

/// The events of a stream that is framed in the usual way, the last of which must be `[DONE]`.
pub(crate) async fn events_of(request: RequestBuilder) -> Vec<Value> {
    let text = text_of(request).await;
    let text = text.strip_suffix("data: [DONE]\n\n").expect("the stream ends with [DONE]");
    events(text)
}

pub(crate) fn events(text: &str) -> Vec<Value> {
    let events = text.split_terminator("\n\n");
    events.map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap()).collect()
}

pub(crate) fn gunzip(bytes: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(bytes).read_to_string(&mut text).unwrap();
    text
}

/// Sends a POST over a connection of its own, which stays open.
pub(crate) async fn send_raw(server: &ModelServer, headers: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = TcpStream::connect(server.addr()).await.unwrap();
    let length = body.len();
    let request =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Reads to the end of the connection: what came, and whether it ended in good order.
pub(crate) async fn read_raw(stream: &mut TcpStream) -> (Vec<u8>, io::Result<usize>) {
    let mut bytes = Vec::new();
    let end = stream.read_to_end(&mut bytes).await;
    (bytes, end)
}

/// Waits for the condition to be true.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(20), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
