//! What Envoy says by itself, in the form in which the caller reads errors.
//!
//! The sidecar's and the filter's answers are local replies of Envoy's as well, and pass as they are: they carry none of Envoy's
//! flags, and are told apart by `response.code_details` (`attache_...` of the sidecar's, none at all of the filter's).

use attache_proto::headers::DETAILS_PREFIX;
use attache_proto::{ApiError, Dialect, ErrorKind};
use serde_json::{Map, Value, json};

/// What clients read of a request that nobody could serve.
pub(super) const UNAVAILABLE: &str = "the gateway cannot serve requests at the moment; retry in a second";

/// The `local_reply_config`. Of several mappers the first that matches holds.
pub(super) fn local_replies(path_prefix: &str) -> Value {
    let of_anthropic = mappers(Dialect::Anthropic, Some(&anthropic_paths(path_prefix)));
    let all = [of_anthropic, mappers(Dialect::OpenAi, None)].concat();
    json!({"mappers": all})
}

/// An error as OpenAI's clients read it.
pub(super) fn error_body(kind: ErrorKind, message: &str) -> Value {
    body(kind, message, Dialect::OpenAi)
}

fn mappers(dialect: Dialect, paths: Option<&Value>) -> Vec<Value> {
    // https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage#response-flags
    // No host. So end the requests that the sidecar did not see, and those whose Backend has no address yet.
    const NO_HOST: [&str; 1] = ["UH"];
    // Connect failure, timeout, resets and terminations, an answer that is no HTTP, overflow, retries used up, no such
    // cluster, a name that does not resolve, overloaded.
    const FAILED: [&str; 11] = ["UF", "UT", "LR", "UR", "UC", "UPE", "UO", "URX", "NC", "DF", "OM"];
    // Whose silence it was, the sidecar's or a model server's, Envoy does not say.
    const IDLE: [&str; 1] = ["SI"];
    let mapper = |comment: Option<&str>, filters: &[Value], kind: ErrorKind, message: &str| {
        let mut fields = Map::new();
        fields.extend(comment.map(|comment| (format!("# {comment}"), Value::Null)));
        let filters: Vec<&Value> = paths.into_iter().chain(filters).collect();
        let filter = match filters.as_slice() {
            [one] => (*one).clone(),
            several => json!({"and_filter": {"filters": several}}),
        };
        fields.insert("filter".to_owned(), filter);
        if kind == ErrorKind::Unavailable {
            let header = json!({"key": "retry-after", "value": "1"});
            let added = json!([{"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]);
            fields.insert("headers_to_add".to_owned(), added);
        }
        let body = json!({"json_format": body(kind, message, dialect)});
        fields.insert("body_format_override".to_owned(), body);
        Value::Object(fields)
    };
    let flags = |flags: &[&str]| json!({"response_flag_filter": {"flags": flags}});
    let unfinished = "the request did not arrive in time; send all of it";
    vec![
        mapper(None, &[flags(&NO_HOST)], ErrorKind::Unavailable, UNAVAILABLE),
        mapper(
            Some("Idle before the request was complete. Of one that is, Envoy says 504."),
            &[flags(&IDLE), status("EQ", 408)],
            ErrorKind::InvalidRequest,
            unfinished,
        ),
        mapper(None, &[flags(&IDLE)], ErrorKind::Unavailable, "no answer came in time; retry in a second"),
        mapper(None, &[flags(&FAILED)], ErrorKind::Unavailable, "the model server did not answer; retry in a second"),
        mapper(
            Some("What Envoy refuses or gives up by itself, and neither the sidecar nor the filter."),
            &[status("EQ", 408), of_envoy()],
            ErrorKind::InvalidRequest,
            unfinished,
        ),
        mapper(
            None,
            &[status("EQ", 413), of_envoy()],
            ErrorKind::RequestTooLarge,
            "the request body is larger than what is taken here",
        ),
        mapper(
            None,
            &[status("EQ", 431), of_envoy()],
            ErrorKind::HeadersTooLarge,
            "the request headers are larger than what is taken here",
        ),
        web_socket(mapper(
            Some("Envoy says 403; Codex takes 426 alone for the word that it has to do without."),
            &[status("EQ", 403), wants_web_socket(), of_envoy()],
            ErrorKind::WebSocketNotServed,
            "WebSockets are not served here; send the request by POST",
        )),
        mapper(None, &[status("GE", 500), of_envoy()], ErrorKind::Unavailable, UNAVAILABLE),
        mapper(
            None,
            &[status("GE", 400), of_envoy()],
            ErrorKind::InvalidRequest,
            "the request is malformed, or wants of HTTP what is not served here (%RESPONSE_CODE_DETAILS%)",
        ),
    ]
}

/// Where callers read Anthropic's errors: see [`Dialect::of_path`]. The router may have taken the prefix off by then.
fn anthropic_paths(path_prefix: &str) -> Value {
    let regex = format!("({})?(/v1/messages|/anthropic)([/?].*)?", regex::escape(path_prefix));
    json!({"header_filter": {"header": {"name": ":path", "string_match": {"safe_regex": {"regex": regex}}}}})
}

fn wants_web_socket() -> Value {
    let value = json!({"exact": "websocket", "ignore_case": true});
    json!({"header_filter": {"header": {"name": "upgrade", "string_match": value}}})
}

/// The same mapper with the status that says so.
fn web_socket(mut mapper: Value) -> Value {
    if let Some(fields) = mapper.as_object_mut() {
        fields.insert("status_code".to_owned(), ErrorKind::WebSocketNotServed.status().into());
    }
    mapper
}

fn status(op: &str, status: u16) -> Value {
    // Envoy demands a key, by which its runtime could say another status.
    let key = format!("attache.local_reply_status_{status}");
    json!({"status_code_filter": {"comparison": {"op": op, "value": {"default_value": status, "runtime_key": key}}}})
}

fn of_envoy() -> Value {
    json!({"extension_filter": {
        "name": "envoy.access_loggers.extension_filters.cel",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter",
            "expression": format!("size(response.code_details) > 0 && !response.code_details.startsWith('{DETAILS_PREFIX}')"),
        },
    }})
}

fn body(kind: ErrorKind, message: &str, dialect: Dialect) -> Value {
    serde_json::from_str(&ApiError::new(kind, message).body(dialect)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_the_form_that_its_path_wants() {
        let prefix = "/a.b";
        let regex = anthropic_paths(prefix);
        let regex =
            regex.pointer("/header_filter/header/string_match/safe_regex/regex").and_then(Value::as_str).unwrap();
        // As Envoy matches: the whole of it.
        let regex = regex::Regex::new(&format!("^(?:{regex})$")).unwrap();
        for path in [
            "/v1/messages",
            "/v1/messages?beta=true",
            "/v1/messages/count_tokens",
            "/anthropic/v1/messages",
            "/v1/messagesx",
            "/v1/chat/completions",
            "/x/v1/messages",
            "/anthropics",
        ] {
            for path in [path.to_owned(), format!("{prefix}{path}")] {
                let is_anthropic = Dialect::of_path(&path, prefix) == Dialect::Anthropic;
                assert_eq!(regex.is_match(&path), is_anthropic, "{path}");
            }
        }
        assert!(!regex.is_match("/aXb/v1/messages"));
    }

    #[test]
    fn both_forms_say_the_same_and_only_the_proxys_own_failures_are_to_be_tried_again() {
        let replies = local_replies("");
        let mappers = replies["mappers"].as_array().unwrap();
        let (anthropic, openai) = mappers.split_at(mappers.len() / 2);
        for (anthropic, openai) in anthropic.iter().zip(openai) {
            let of = |mapper: &Value| mapper["body_format_override"]["json_format"].clone();
            assert_eq!(of(anthropic)["type"], "error");
            assert_eq!(of(anthropic)["error"]["message"], of(openai)["error"]["message"]);
            let is_retried = of(openai)["error"]["type"] == "server_error";
            assert_eq!(anthropic.get("headers_to_add").is_some(), is_retried);
            assert_eq!(openai.get("headers_to_add").is_some(), is_retried);
        }
    }
}
