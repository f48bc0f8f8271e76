//! What is answered in the other dialects. That the official clients understand it, the black-box tests prove.

use attache_model_server::{ANSWER_TOKENS_HEADER, Config, ModelServer, REASONING_TOKENS_HEADER, TOOLS_HEADER};
use reqwest::Client;
use serde_json::{Value, json};

use crate::client::{chat, events_of, json_of, post, start, text_of};

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "look_up"}},
        {"type": "function", "function": {"name": "write_down"}},
    ])
}

/// The named events of a stream, each with its data.
fn named_events(text: &str) -> Vec<(&str, Value)> {
    let events = text.split_terminator("\n\n").map(|event| event.split_once('\n').unwrap());
    events
        .map(|(name, data)| {
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            let name = name.strip_prefix("event: ").unwrap();
            assert_eq!(data["type"], name);
            (name, data)
        })
        .collect()
}

#[tokio::test]
async fn a_chat_calls_so_many_tools_in_pieces_that_spell_their_arguments() {
    let server = start().await;
    let called = |more: Value| {
        let mut body = json!({"tools": tools()});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chat(&server, &body).header(TOOLS_HEADER, "2").header(ANSWER_TOKENS_HEADER, "9")
    };
    let whole = json_of(called(json!({}))).await;
    let choice = &whole["choices"][0];
    assert_eq!((&choice["finish_reason"], &whole["usage"]["completion_tokens"]), (&json!("tool_calls"), &json!(9)));
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let names: Vec<_> = calls.iter().map(|call| call["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["look_up", "write_down"]);
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    let events = events_of(called(json!({"stream": true}))).await;
    for (index, call) in calls.iter().enumerate() {
        let deltas = events.iter().filter_map(|event| event.pointer("/choices/0/delta/tool_calls/0"));
        let pieces: Vec<_> = deltas.filter(|delta| delta["index"] == index).collect();
        assert_eq!(pieces[0]["function"], json!({"name": call["function"]["name"], "arguments": ""}));
        let spelt: String = pieces.iter().map(|piece| piece["function"]["arguments"].as_str().unwrap()).collect();
        assert!(pieces.len() > 4 && call["function"]["arguments"] == spelt, "{spelt}");
        let arguments: Value = serde_json::from_str(&spelt).unwrap();
        assert_eq!(arguments["text"].as_str().unwrap().split(' ').count(), 3);
    }
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn reasoning_has_its_place_and_its_figure() {
    let server = start().await;
    let answer = json_of(chat(&server, &json!({"max_tokens": 7})).header(REASONING_TOKENS_HEADER, "3")).await;
    let words = |name: &str| answer["choices"][0]["message"][name].as_str().unwrap().split(' ').count();
    assert_eq!((words("reasoning_content"), words("content")), (3, 4));
    assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
}

#[tokio::test]
async fn a_response_streams_the_whole_sequence_of_events_numbered() {
    let server = start().await;
    let body = json!({"model": "m", "input": "Hello", "stream": true, "max_output_tokens": 64});
    let text = text_of(post(&server, "/v1/responses", &body).header(ANSWER_TOKENS_HEADER, "2")).await;
    let events = named_events(&text);
    let names: Vec<_> = events.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    for (index, (_, event)) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], index);
    }
    let response = &events[9].1["response"];
    assert_eq!((&response["status"], &response["usage"]["output_tokens"]), (&json!("completed"), &json!(2)));
    let mut body = body;
    body["stream"] = json!(false);
    let whole = json_of(post(&server, "/v1/responses", &body).header(ANSWER_TOKENS_HEADER, "2")).await;
    assert_eq!(whole["output"][0]["content"], response["output"][0]["content"]);
}

#[tokio::test]
async fn a_response_that_is_cut_is_incomplete() {
    let server = start().await;
    let body = json!({"model": "m", "input": "Hello", "stream": true, "max_output_tokens": 2});
    let text = text_of(post(&server, "/v1/responses", &body)).await;
    let events = named_events(&text);
    let (name, event) = events.last().unwrap();
    assert_eq!(*name, "response.incomplete");
    assert_eq!(event["response"]["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(event["response"]["usage"]["output_tokens"], 2);
}

#[tokio::test]
async fn a_message_streams_its_blocks_and_its_usage_at_both_ends() {
    let server = start().await;
    let body = json!({
        "model": "m", "max_tokens": 64, "stream": true, "messages": [{"role": "user", "content": "Hi"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": [{"name": "look_up"}],
    });
    let request = post(&server, "/v1/messages", &body).header(ANSWER_TOKENS_HEADER, "4").header(TOOLS_HEADER, "1");
    let text = text_of(request).await;
    let events = named_events(&text);
    let names: Vec<_> = events.iter().map(|(name, _)| *name).collect();
    let (start, delta, stop) = ("content_block_start", "content_block_delta", "content_block_stop");
    let mut expected = vec!["message_start", start, "ping", delta, delta, delta, stop, start, delta, stop];
    expected.extend([start, delta, delta, delta, stop, "message_delta", "message_stop"]);
    assert_eq!(names, expected);
    let kinds: Vec<_> = events.iter().filter_map(|(_, event)| event.pointer("/content_block/type")).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use"]);
    assert_eq!(events[0].1["message"]["usage"]["output_tokens"], 1);
    let (_, last) = &events[events.len() - 2];
    assert_eq!(last["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    assert_eq!(last["usage"], json!({"output_tokens": 4}));
}

#[tokio::test]
async fn a_messages_input_is_what_the_cache_neither_had_nor_took_up() {
    let server = start().await;
    let mark = json!({"type": "ephemeral"});
    let marked = json!([{"type": "text", "text": "Be brief. ".repeat(20), "cache_control": mark}]);
    for (system, created, read) in [(marked.clone(), 48, 0), (marked, 0, 48), (json!("Other".repeat(20)), 0, 0)] {
        let body =
            json!({"model": "m", "max_tokens": 4, "system": system, "messages": [{"role": "user", "content": "Hi"}]});
        let usage = json_of(post(&server, "/v1/messages", &body)).await["usage"].take();
        let counted =
            json_of(post(&server, "/v1/messages/count_tokens", &body)).await["input_tokens"].as_u64().unwrap();
        let figure = |name: &str| usage[name].as_u64().unwrap();
        let (creation, reading) = (figure("cache_creation_input_tokens"), figure("cache_read_input_tokens"));
        assert_eq!((creation, reading), (created, read));
        assert_eq!(figure("input_tokens") + creation + reading, counted);
    }
}

#[tokio::test]
async fn errors_are_in_the_dialect_of_the_path() {
    let server = start().await;
    let error = async |path: &str| {
        let response = post(&server, path, &json!({"model": "m"})).send().await.unwrap();
        (response.status().as_u16(), response.json::<Value>().await.unwrap())
    };
    let (status, body) = error("/v1/messages").await;
    let message = "`messages` is missing";
    let anthropic = json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
    assert_eq!((status, body), (400, anthropic));
    let (status, body) = error("/v1/responses").await;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("input")));
}

#[tokio::test]
async fn the_key_may_be_anthropics_header() {
    let config = Config { api_key: Some("secret".to_owned()), ..Config::default() };
    let server = ModelServer::start(config).await.unwrap();
    let status = async |key: &str| chat(&server, &json!({})).header("x-api-key", key).send().await.unwrap().status();
    assert_eq!([status("secret").await, status("other").await], [200, 401]);
}

#[tokio::test]
async fn documents_are_ranked_in_jinas_form_and_in_coheres() {
    let server = start().await;
    let body = json!({"model": "m", "query": "sun", "documents": ["star.", {"text": "sea.."}, "sky."], "top_n": 2});
    let jina = json_of(post(&server, "/v1/rerank", &body)).await;
    let score = |index: usize| jina["results"][index]["relevance_score"].as_f64().unwrap();
    assert!(score(0) >= score(1) && jina["results"].as_array().unwrap().len() == 2, "{jina}");
    // 8 bytes are 2 tokens, 7 are 2.
    assert_eq!(jina["usage"], json!({"prompt_tokens": 6, "total_tokens": 6}));
    let cohere = json_of(post(&server, "/v2/rerank", &body)).await;
    assert_eq!(cohere["results"][0]["index"], jina["results"][0]["index"]);
    let meta = json!({
        "api_version": {"version": "2"}, "billed_units": {"search_units": 1}, "tokens": {"input_tokens": 6},
    });
    assert_eq!((&cohere["meta"], cohere.get("usage")), (&meta, None));
}

#[tokio::test]
async fn scores_are_of_one_text_with_many_or_of_pairs() {
    let server = start().await;
    for (left, right, count) in [
        (json!("sun"), json!(["star", "sea"]), Some(2)),
        (json!(["sun", "sky"]), json!(["star", "sea"]), Some(2)),
        (json!(["sun", "sky"]), json!(["star"]), None),
    ] {
        let body = json!({"model": "m", "text_1": left, "text_2": right});
        let answer = json_of(post(&server, "/score", &body)).await;
        assert_eq!(answer["data"].as_array().map(Vec::len), count, "{answer}");
    }
}

#[tokio::test]
async fn a_form_is_read_by_its_fields_and_recorded_as_received() {
    let server = start().await;
    let body = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\0\x01\x02\x03\x04\r\n\
        --b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n";
    let request = Client::new().post(format!("{}/v1/audio/transcriptions", server.url()));
    let request = request.header("content-type", "multipart/form-data; boundary=b").body(body);
    let answer = json_of(request).await;
    assert_eq!((&answer["usage"]["input_tokens"], &answer["usage"]["output_tokens"]), (&json!(2), &json!(16)));
    let record = server.requests().remove(0);
    assert_eq!((record.model.as_deref(), record.raw_body.as_ref()), (Some("m"), body.as_bytes()));
}

#[tokio::test]
async fn pictures_cost_an_answer_each_and_those_at_a_url_say_no_usage() {
    let server = start().await;
    let mut body = json!({"model": "m", "prompt": "A sun", "n": 2});
    let answer = json_of(post(&server, "/v1/images/generations", &body)).await;
    assert_eq!(answer["data"].as_array().unwrap().len(), 2);
    assert_eq!((&answer["usage"]["input_tokens"], &answer["usage"]["output_tokens"]), (&json!(2), &json!(32)));
    body["response_format"] = json!("url");
    let answer = json_of(post(&server, "/v1/images/generations", &body)).await;
    assert!(answer["data"][1]["url"].is_string() && answer.get("usage").is_none(), "{answer}");
}

#[tokio::test]
async fn speech_is_bytes_that_are_no_text() {
    let server = start().await;
    let body = json!({"model": "m", "input": "Hello", "voice": "alloy"});
    let response = post(&server, "/v1/audio/speech", &body).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "audio/mpeg");
    let bytes = response.bytes().await.unwrap();
    assert_eq!((bytes.len(), std::str::from_utf8(&bytes).is_err()), (16_000, true));
}
