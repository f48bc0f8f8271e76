//! What is answered when nothing goes wrong.

use std::num::NonZeroUsize;

use attache_model_server::{ANSWER_TOKENS_HEADER, COMPLETION_TOKENS_ONLY_HEADER, Config, ModelServer};
use reqwest::Client;
use serde_json::{Value, json};

use crate::client::{chat, chat_body, events_of, json_of, post, start, text_of};

/// `<|user|>\nHow are you?<|end|>\n<|assistant|>\n` is 44 bytes.
const CHAT_PROMPT_TOKENS: u64 = 11;

#[tokio::test]
async fn a_chat_is_answered_in_openais_form() {
    let server = start().await;
    let response = chat(&server, &json!({})).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    let mut answer: Value = response.json().await.unwrap();
    let text = answer["choices"][0]["message"]["content"].take();
    assert_eq!(text.as_str().unwrap().split(' ').count(), 16);
    assert!(answer["id"].take().as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].take().as_u64().unwrap() > 1_700_000_000);
    assert_eq!(
        answer,
        json!({
            "id": null, "object": "chat.completion", "created": null, "model": "m",
            "choices": [{
                "index": 0, "message": {"role": "assistant", "content": null}, "logprobs": null, "finish_reason": "stop"
            }],
            "usage": {
                "prompt_tokens": CHAT_PROMPT_TOKENS, "total_tokens": CHAT_PROMPT_TOKENS + 16, "completion_tokens": 16,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        })
    );
}

#[tokio::test]
async fn a_chats_stream_is_a_role_a_token_each_and_an_end_without_usage() {
    let server = start().await;
    let text = text_of(chat(&server, &json!({"stream": true}))).await;
    assert!(!text.contains("usage"), "{text}");
    let events = events_of(chat(&server, &json!({"stream": true}))).await;
    let choice = |event: &Value| event["choices"][0].clone();
    assert_eq!(events.len(), 1 + 16 + 1);
    assert_eq!(
        choice(&events[0]),
        json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null})
    );
    assert_eq!(choice(&events[17]), json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"}));
    for event in &events {
        assert_eq!((&event["object"], &event["model"]), (&json!("chat.completion.chunk"), &json!("m")));
        assert_eq!((&event["id"], &event["created"]), (&events[0]["id"], &events[0]["created"]));
    }
}

#[tokio::test]
async fn a_stream_spells_the_same_text_as_the_whole_answer() {
    let server = start().await;
    let whole = json_of(chat(&server, &json!({}))).await;
    let events = events_of(chat(&server, &json!({"stream": true}))).await;
    let spelt: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(whole["choices"][0]["message"]["content"], spelt);
}

#[tokio::test]
async fn usage_that_is_asked_for_comes_in_a_chunk_of_its_own_and_is_null_in_the_others() {
    let server = start().await;
    let options = json!({"stream": true, "stream_options": {"include_usage": true}, "max_tokens": 3});
    let events = events_of(chat(&server, &options)).await;
    let (last, others) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"],
        json!({
            "prompt_tokens": CHAT_PROMPT_TOKENS, "total_tokens": CHAT_PROMPT_TOKENS + 3, "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 0},
        })
    );
    assert_eq!(others.len(), 1 + 3 + 1);
    assert!(others.iter().all(|event| event.get("usage") == Some(&Value::Null)));
}

#[tokio::test]
async fn continuous_usage_grows_with_every_chunk() {
    let server = start().await;
    let stream_options = json!({"include_usage": true, "continuous_usage_stats": true});
    let options = json!({"stream": true, "stream_options": stream_options, "max_tokens": 2});
    let events = events_of(chat(&server, &options)).await;
    let totals: Vec<_> = events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(totals, [0, 1, 2, 2, 2]);
}

#[tokio::test]
async fn the_answers_length_is_the_headers_cut_by_the_bodys_or_exactly_the_bodys() {
    let server = start().await;
    for (header, body, tokens, reason) in [
        (Some("3"), json!({}), 3, "stop"),
        (Some("5"), json!({"max_tokens": 5}), 5, "stop"),
        (Some("5"), json!({"max_tokens": 2}), 2, "length"),
        (None, json!({"max_completion_tokens": 40}), 40, "length"),
        (None, json!({}), 16, "stop"),
    ] {
        let mut request = chat(&server, &body);
        if let Some(header) = header {
            request = request.header(ANSWER_TOKENS_HEADER, header);
        }
        let answer = json_of(request).await;
        assert_eq!(answer["usage"]["completion_tokens"], tokens, "{header:?} {body}");
        assert_eq!(answer["choices"][0]["finish_reason"], reason, "{header:?} {body}");
        let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(text.split(' ').count(), tokens, "{header:?} {body}");
    }
}

#[tokio::test]
async fn max_tokens_is_refused_on_request() {
    let server = start().await;
    let ask = |body: Value| chat(&server, &body).header(COMPLETION_TOKENS_ONLY_HEADER, "1").send();
    let refused = ask(json!({"max_tokens": 5})).await.unwrap();
    assert_eq!(refused.status(), 400);
    let error: Value = refused.json().await.unwrap();
    assert_eq!(
        (&error["error"]["param"], &error["error"]["code"]),
        (&json!("max_tokens"), &json!("unsupported_parameter"))
    );
    assert_eq!(ask(json!({"max_completion_tokens": 5})).await.unwrap().status(), 200);
}

#[tokio::test]
async fn n_gives_so_many_different_answers_and_all_of_them_count() {
    let server = start().await;
    let answer = json_of(chat(&server, &json!({"n": 2, "max_tokens": 8}))).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    assert_ne!(choices[0]["message"], choices[1]["message"]);
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    let events = events_of(chat(&server, &json!({"n": 2, "max_tokens": 8, "stream": true}))).await;
    for (index, choice) in choices.iter().enumerate() {
        let of_choice = events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        let spelt: String = of_choice.filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(choice["message"]["content"], spelt);
    }
}

#[tokio::test]
async fn completions_take_texts_and_tokens_one_or_many() {
    let server = start().await;
    for (prompt, choices, prompt_tokens) in [
        (json!("Once upon a time"), 1, 4),
        (json!(["Once", "Twice"]), 2, 3),
        (json!([1, 2, 3]), 1, 3),
        (json!([[1, 2, 3], [4]]), 2, 4),
    ] {
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 4});
        let answer = json_of(post(&server, "/v1/completions", &body)).await;
        assert_eq!(answer["object"], "text_completion");
        assert_eq!(answer["choices"].as_array().unwrap().len(), choices, "{prompt}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["prompt_tokens"], prompt_tokens, "{prompt}");
        assert_eq!(answer["usage"]["completion_tokens"], 4 * choices, "{prompt}");
    }
}

#[tokio::test]
async fn a_completions_stream_has_a_text_each_and_no_role() {
    let server = start().await;
    let body = json!({"model": "m", "prompt": "Once", "stream": true, "max_tokens": 2});
    let events = events_of(post(&server, "/v1/completions", &body)).await;
    let reasons: Vec<_> = events.iter().map(|event| event["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(reasons, [json!(null), json!(null), json!("length")]);
    assert!(events.iter().all(|event| event["choices"][0]["text"].is_string()));
}

#[tokio::test]
async fn embeddings_are_a_vector_for_each_input() {
    let server = start().await;
    let body = json!({"model": "m", "input": ["one", "two"]});
    let answer = json_of(post(&server, "/v1/embeddings", &body)).await;
    assert_eq!((&answer["object"], &answer["data"][1]["index"]), (&json!("list"), &json!(1)));
    assert_eq!(answer["data"][0]["embedding"].as_array().unwrap().len(), 8);
    assert_ne!(answer["data"][0]["embedding"], answer["data"][1]["embedding"]);
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["total_tokens"]), (&json!(2), &json!(2)));
}

#[tokio::test]
async fn a_continued_conversation_finds_its_prompt_and_its_answer_in_the_cache() {
    let config = Config { block_tokens: NonZeroUsize::MIN, ..Config::default() };
    let server = ModelServer::start(config).await.unwrap();
    let mut messages = vec![json!({"role": "user", "content": "How are you?"})];
    let first = json_of(chat(&server, &json!({"messages": messages}))).await;
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    messages.push(first["choices"][0]["message"].clone());
    messages.push(json!({"role": "user", "content": "Why?"}));
    let next = json_of(chat(&server, &json!({"messages": messages}))).await;
    // The prompt, 16 words less the space before the first, and `<|end|>\n`: 44 + 63 + 8 bytes.
    assert_eq!(next["usage"]["prompt_tokens_details"]["cached_tokens"], 28);
}

#[tokio::test]
async fn the_models_served_are_listed_and_no_other_is_answered_for() {
    let config = Config { models: vec!["a".to_owned(), "b".to_owned()], ..Config::default() };
    let server = ModelServer::start(config).await.unwrap();
    let list = json_of(Client::new().get(format!("{}/v1/models", server.url()))).await;
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(chat(&server, &json!({"model": "b"})).send().await.unwrap().status(), 200);
    let response = chat(&server, &json!({"model": "c"})).send().await.unwrap();
    assert_eq!(response.status(), 404);
    assert_eq!(
        response.json::<Value>().await.unwrap(),
        json!({"error": {
            "message": "the model `c` does not exist", "type": "invalid_request_error", "param": "model",
            "code": "model_not_found",
        }})
    );
}

#[tokio::test]
async fn a_wrong_request_is_refused_in_openais_form() {
    let server = start().await;
    let url = |path: &str| format!("{}{path}", server.url());
    let chats = url("/v1/chat/completions");
    let client = Client::new();
    for (request, status, param) in [
        (client.post(&chats).body("{"), 400, json!(null)),
        (client.post(&chats).json(&json!({"messages": []})), 400, json!(null)),
        (client.post(&chats).json(&json!({"model": "m"})), 400, json!("messages")),
        (client.post(&chats).json(&chat_body(&json!({"n": 0}))), 400, json!("n")),
        (client.post(&chats).json(&chat_body(&json!({}))).header(ANSWER_TOKENS_HEADER, "many"), 400, json!(null)),
        (client.get(&chats), 404, json!(null)),
        (client.post(url("/v1/nothing")), 404, json!(null)),
        (client.post(url("/sim/requests")), 404, json!(null)),
    ] {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), status);
        let error = response.json::<Value>().await.unwrap();
        assert_eq!(error["error"]["type"], "invalid_request_error");
        assert!(error["error"]["message"].is_string());
        assert_eq!(error["error"].get("param"), Some(&param));
    }
}

#[tokio::test]
async fn a_server_with_a_key_wants_it_and_only_for_the_models() {
    let config = Config { api_key: Some("secret".to_owned()), ..Config::default() };
    let server = ModelServer::start(config).await.unwrap();
    assert_eq!(chat(&server, &json!({})).send().await.unwrap().status(), 401);
    assert_eq!(chat(&server, &json!({})).bearer_auth("other").send().await.unwrap().status(), 401);
    assert_eq!(chat(&server, &json!({})).bearer_auth("secret").send().await.unwrap().status(), 200);
    let health = Client::new().get(format!("{}/health", server.url())).send().await.unwrap();
    assert_eq!(health.status(), 200);
}
