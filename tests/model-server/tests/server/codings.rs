//! Content codings, of answers and of requests.

use std::io::{Read, Write as _};

use attache_model_server::{ENCODE_HEADER, ModelServer};
use flate2::{
    Compression,
    read::{DeflateDecoder, GzDecoder, ZlibDecoder},
    write::GzEncoder,
};
use reqwest::Client;
use serde_json::{Value, json};

use crate::client::{chat, chat_body, json_of, start, text_of};

/// What the header asks for, and what `content-encoding` then says.
const CODINGS: [(&str, &str); 5] =
    [("gzip", "gzip"), ("deflate", "deflate"), ("raw-deflate", "deflate"), ("br", "br"), ("zstd", "zstd")];

fn decoded(coding: &str, bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut reader: Box<dyn Read> = match coding {
        "gzip" => Box::new(GzDecoder::new(bytes)),
        "deflate" => Box::new(ZlibDecoder::new(bytes)),
        "raw-deflate" => Box::new(DeflateDecoder::new(bytes)),
        "br" => Box::new(brotli::Decompressor::new(bytes, 4096)),
        _ => Box::new(zstd::stream::read::Decoder::new(bytes).unwrap()),
    };
    reader.read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn every_coding_is_the_same_answer() {
    let server = start().await;
    let plain = json_of(chat(&server, &json!({}))).await;
    for (coding, header) in CODINGS {
        let response = chat(&server, &json!({})).header(ENCODE_HEADER, coding).send().await.unwrap();
        assert_eq!(response.headers()["content-encoding"], header);
        let body = decoded(coding, &response.bytes().await.unwrap());
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["choices"], plain["choices"], "{coding}");

        let streamed = chat(&server, &json!({"stream": true})).header(ENCODE_HEADER, coding);
        let response = streamed.send().await.unwrap();
        assert_eq!(response.headers()["content-encoding"], header);
        let text = decoded(coding, &response.bytes().await.unwrap());
        assert!(text.ends_with("data: [DONE]\n\n") && text.matches("data: ").count() == 19, "{coding}: {text}");
    }
}

#[tokio::test]
async fn auto_honours_what_the_client_accepts_and_a_lie_is_plain() {
    let server = start().await;
    for (accepted, header) in [(None, None), (Some("gzip, br"), Some("br")), (Some("gzip;q=1, br;q=0"), Some("gzip"))] {
        let mut request = chat(&server, &json!({})).header(ENCODE_HEADER, "auto");
        if let Some(accepted) = accepted {
            request = request.header("accept-encoding", accepted);
        }
        let response = request.send().await.unwrap();
        let encoding = response.headers().get("content-encoding").map(|value| value.to_str().unwrap());
        assert_eq!(encoding, header, "{accepted:?}");
    }
    let response = chat(&server, &json!({})).header(ENCODE_HEADER, "lie").send().await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    assert!(response.text().await.unwrap().starts_with("{\"id\""));
    let wrong = chat(&server, &json!({})).header(ENCODE_HEADER, "lzma").send().await.unwrap();
    assert_eq!(wrong.status(), 400);
}

#[tokio::test]
async fn gzip_that_is_not_as_it_should_be_has_all_of_the_answer() {
    let server = start().await;
    let plain = text_of(chat(&server, &json!({"stream": true}))).await;
    let events = plain.matches("data: ").count();
    for (coding, header) in [
        ("hidden-gzip", None),
        ("gzip-members", Some("gzip")),
        ("gzip-trailing", Some("gzip")),
        ("gzip-short", Some("gzip")),
    ] {
        let response = chat(&server, &json!({"stream": true})).header(ENCODE_HEADER, coding).send().await.unwrap();
        let encoding = response.headers().get("content-encoding").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(encoding.as_deref(), header, "{coding}");
        let bytes = response.bytes().await.unwrap();
        let (mut text, mut decoder) = (Vec::new(), flate2::read::MultiGzDecoder::new(&bytes[..]));
        let read = decoder.read_to_end(&mut text);
        assert_eq!(read.is_ok(), coding != "gzip-trailing" && coding != "gzip-short", "{coding}");
        assert_eq!(String::from_utf8(text).unwrap().matches("data: ").count(), events, "{coding}");
        let members = bytes.windows(3).filter(|bytes| *bytes == [0x1f, 0x8b, 8]).count();
        assert_eq!(members > 1, coding == "gzip-members", "{coding}");
    }
}

async fn post_encoded(server: &ModelServer, coding: &'static str, body: Vec<u8>) -> reqwest::Response {
    let request = Client::new().post(format!("{}/v1/chat/completions", server.url()));
    request.header("content-encoding", coding).body(body).send().await.unwrap()
}

#[tokio::test]
async fn an_encoded_request_is_understood_and_recorded_as_received() {
    let server = start().await;
    let text = chat_body(&json!({})).to_string();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    let gzip = encoder.finish().unwrap();
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    for (coding, body) in [("gzip", gzip.clone()), ("zstd", zstd)] {
        server.forget_requests();
        assert_eq!(post_encoded(&server, coding, body.clone()).await.status(), 200, "{coding}");
        let record = server.requests().remove(0);
        assert_eq!((record.raw_body.as_ref(), record.body_bytes), (&body[..], body.len()));
        assert_eq!((record.model.as_deref(), record.headers["content-encoding"].as_str()), (Some("m"), coding));
        let listed = json_of(Client::new().get(format!("{}/sim/requests", server.url()))).await;
        assert_eq!(listed[0]["body_base64"], json!(base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &body)));
    }
    assert_eq!(post_encoded(&server, "gzip", text.clone().into_bytes()).await.status(), 400);
    assert_eq!(post_encoded(&server, "lzma", gzip).await.status(), 415);
}

#[tokio::test]
async fn an_error_is_encoded_as_well() {
    let server = start().await;
    let refused = chat(&server, &json!({"n": 0})).header(ENCODE_HEADER, "gzip").send().await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["content-encoding"]), (400, &"gzip".parse().unwrap()));
    let body = decoded("gzip", &refused.bytes().await.unwrap());
    assert!(body.contains("invalid_request_error"), "{body}");
    assert!(text_of(chat(&server, &json!({"n": 0}))).await.contains("invalid_request_error"));
}
