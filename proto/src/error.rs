//! An error as the caller sees it: status, kind, message, in the caller's dialect, always JSON and always escaped.

use serde_json::{Value, json};

use crate::operation::{Dialect, Operation};

/// What went wrong, as the table of error cases lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// 400: the body or the request line is malformed.
    InvalidRequest,
    /// 401: no key, or a key nobody knows.
    InvalidApiKey,
    /// 401 (the product this one replaces answers so): the key is known but not attached to this endpoint.
    KeyNotAttached,
    /// 403: the same, where the operator wants it told apart from a key that nobody knows.
    KeyForbidden,
    /// 404: no route knows the model.
    ModelNotFound,
    /// 404: no operation is served at this path.
    PathNotFound,
    /// 405: the path exists, the method does not.
    MethodNotAllowed,
    /// 413: the body is above the cap.
    RequestTooLarge,
    /// 415: the body is of a kind that the endpoint does not take.
    UnsupportedMediaType,
    /// 426: a WebSocket is asked for where none is served.
    WebSocketNotServed,
    /// 431: the request's headers are above the bound.
    HeadersTooLarge,
    /// 429: over a limit on tokens that time refills.
    RateLimited,
    /// 429: over a limit on requests, or on requests in flight.
    TooManyRequests,
    /// 429: a budget is used up.
    QuotaExhausted,
    /// 503: no upstream, the ledger is out, or the sidecar is overloaded.
    Unavailable,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 15] = [
        Self::InvalidRequest,
        Self::InvalidApiKey,
        Self::KeyNotAttached,
        Self::KeyForbidden,
        Self::ModelNotFound,
        Self::PathNotFound,
        Self::MethodNotAllowed,
        Self::RequestTooLarge,
        Self::UnsupportedMediaType,
        Self::WebSocketNotServed,
        Self::HeadersTooLarge,
        Self::RateLimited,
        Self::TooManyRequests,
        Self::QuotaExhausted,
        Self::Unavailable,
    ];

    /// The HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::InvalidApiKey | Self::KeyNotAttached => 401,
            Self::KeyForbidden => 403,
            Self::ModelNotFound | Self::PathNotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::WebSocketNotServed => 426,
            Self::RateLimited | Self::TooManyRequests | Self::QuotaExhausted => 429,
            Self::HeadersTooLarge => 431,
            Self::Unavailable => 503,
        }
    }

    /// `error.type` and `error.code` as OpenAI's API has them.
    const fn openai(self) -> (&'static str, Option<&'static str>) {
        const INVALID: &str = "invalid_request_error";
        match self {
            Self::InvalidRequest => (INVALID, None),
            Self::InvalidApiKey => (INVALID, Some("invalid_api_key")),
            Self::KeyNotAttached | Self::KeyForbidden => (INVALID, Some("key_not_attached")),
            Self::ModelNotFound => (INVALID, Some("model_not_found")),
            Self::PathNotFound => (INVALID, Some("unknown_url")),
            Self::MethodNotAllowed => (INVALID, Some("method_not_supported")),
            Self::RequestTooLarge => (INVALID, Some("request_too_large")),
            Self::UnsupportedMediaType => (INVALID, Some("unsupported_media_type")),
            Self::WebSocketNotServed => (INVALID, Some("websocket_not_supported")),
            Self::HeadersTooLarge => (INVALID, Some("headers_too_large")),
            Self::RateLimited => ("tokens", Some("rate_limit_exceeded")),
            Self::TooManyRequests => ("requests", Some("rate_limit_exceeded")),
            Self::QuotaExhausted => ("insufficient_quota", Some("insufficient_quota")),
            Self::Unavailable => ("server_error", None),
        }
    }

    /// `error.type` as Anthropic's API has it; that API has no codes.
    const fn anthropic(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::MethodNotAllowed | Self::UnsupportedMediaType | Self::WebSocketNotServed => {
                "invalid_request_error"
            }
            Self::KeyForbidden => "permission_error",
            Self::InvalidApiKey | Self::KeyNotAttached => "authentication_error",
            Self::ModelNotFound | Self::PathNotFound => "not_found_error",
            Self::RequestTooLarge | Self::HeadersTooLarge => "request_too_large",
            Self::RateLimited | Self::TooManyRequests | Self::QuotaExhausted => "rate_limit_error",
            // `overloaded_error` is bound to Anthropic's own status 529, which we do not send.
            Self::Unavailable => "api_error",
        }
    }
}

/// One error to a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// What went wrong.
    pub kind: ErrorKind,
    /// A sentence that says what to do about it. It may quote the caller's input: [`ApiError::body`] escapes it.
    pub message: String,
    /// The request field that is at fault, where there is one.
    pub param: Option<&'static str>,
}

impl ApiError {
    /// An error of that kind. A model that nobody knows is the fault of the request's `model`; every other error names no
    /// field until [`ApiError::with_param`] does.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let param = match kind {
            ErrorKind::ModelNotFound => Some("model"),
            _ => None,
        };
        Self { kind, message: message.into(), param }
    }

    /// The same error, blamed on one field of the request.
    #[must_use]
    pub fn with_param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// The HTTP status.
    pub const fn status(&self) -> u16 {
        self.kind.status()
    }

    /// The body, as JSON in the caller's dialect.
    pub fn body(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::OpenAi => json!({"error": self.openai()}),
            Dialect::Anthropic => {
                json!({"type": "error", "error": {"type": self.kind.anthropic(), "message": self.message}})
            }
        }
        .to_string()
    }

    /// The last events of a stream of `operation`'s that this error ends after so many: official clients raise it as they would
    /// a response with its status.
    ///
    /// That of the Responses API has its fields twice. At the root they are as the API's reference has them
    /// (`ResponseErrorEvent`), and as clients of other languages read them; under `error` as OpenAI's servers send them, and
    /// there alone openai-python looks (`Stream.__stream__`): without, it hands the event on and raises nothing. anthropic-python
    /// raises on the event's name.
    pub fn events(&self, operation: Operation, events_before: u64) -> String {
        // The JSON has no line end in it: such are escaped.
        match (operation, operation.dialect()) {
            (Operation::Responses, _) => {
                let (_, code) = self.kind.openai();
                let event = json!({
                    "type": "error",
                    "code": code,
                    "message": self.message,
                    "param": self.param,
                    "sequence_number": events_before,
                    "error": self.openai(),
                });
                format!("event: error\ndata: {event}\n\n")
            }
            (_, dialect @ Dialect::OpenAi) => format!("data: {}\n\ndata: [DONE]\n\n", self.body(dialect)),
            (_, dialect @ Dialect::Anthropic) => format!("event: error\ndata: {}\n\n", self.body(dialect)),
        }
    }

    /// The error object of OpenAI's API.
    fn openai(&self) -> Value {
        let (kind, code) = self.kind.openai();
        json!({"message": self.message, "type": kind, "param": self.param, "code": code})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_kind_has_the_status_type_and_code_of_the_table() {
        use ErrorKind::*;
        let table = [
            (InvalidRequest, 400, "invalid_request_error", None, "invalid_request_error"),
            (InvalidApiKey, 401, "invalid_request_error", Some("invalid_api_key"), "authentication_error"),
            (KeyNotAttached, 401, "invalid_request_error", Some("key_not_attached"), "authentication_error"),
            (KeyForbidden, 403, "invalid_request_error", Some("key_not_attached"), "permission_error"),
            (ModelNotFound, 404, "invalid_request_error", Some("model_not_found"), "not_found_error"),
            (PathNotFound, 404, "invalid_request_error", Some("unknown_url"), "not_found_error"),
            (MethodNotAllowed, 405, "invalid_request_error", Some("method_not_supported"), "invalid_request_error"),
            (RequestTooLarge, 413, "invalid_request_error", Some("request_too_large"), "request_too_large"),
            (
                UnsupportedMediaType,
                415,
                "invalid_request_error",
                Some("unsupported_media_type"),
                "invalid_request_error",
            ),
            (
                WebSocketNotServed,
                426,
                "invalid_request_error",
                Some("websocket_not_supported"),
                "invalid_request_error",
            ),
            (HeadersTooLarge, 431, "invalid_request_error", Some("headers_too_large"), "request_too_large"),
            (RateLimited, 429, "tokens", Some("rate_limit_exceeded"), "rate_limit_error"),
            (TooManyRequests, 429, "requests", Some("rate_limit_exceeded"), "rate_limit_error"),
            (QuotaExhausted, 429, "insufficient_quota", Some("insufficient_quota"), "rate_limit_error"),
            (Unavailable, 503, "server_error", None, "api_error"),
        ];
        assert_eq!(table.map(|(kind, ..)| kind), ErrorKind::ALL);
        for (kind, status, openai, code, anthropic) in table {
            let error = ApiError::new(kind, "no");
            assert_eq!(error.status(), status, "{kind:?}");
            let body: Value = serde_json::from_str(&error.body(Dialect::OpenAi)).unwrap();
            assert_eq!(
                body,
                json!({"error": {"message": "no", "type": openai, "param": error.param, "code": code}}),
                "{kind:?}"
            );
            let body: Value = serde_json::from_str(&error.body(Dialect::Anthropic)).unwrap();
            assert_eq!(body, json!({"type": "error", "error": {"type": anthropic, "message": "no"}}), "{kind:?}");
        }
    }

    #[test]
    fn the_fields_come_in_the_order_in_which_the_apis_document_them() {
        let error = ApiError::new(ErrorKind::InvalidRequest, "say \"please\"").with_param("model");
        assert_eq!(
            error.body(Dialect::OpenAi),
            r#"{"error":{"message":"say \"please\"","type":"invalid_request_error","param":"model","code":null}}"#
        );
        assert_eq!(
            error.body(Dialect::Anthropic),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"say \"please\""}}"#
        );
    }

    #[test]
    fn an_error_that_ends_a_stream_is_an_event_of_one_line() {
        let error = ApiError::new(ErrorKind::RateLimited, "over\nthe limit");
        assert_eq!(
            error.events(Operation::ChatCompletions, 5),
            "data: {\"error\":{\"message\":\"over\\nthe limit\",\"type\":\"tokens\",\"param\":null,\
             \"code\":\"rate_limit_exceeded\"}}\n\ndata: [DONE]\n\n"
        );
        assert_eq!(
            error.events(Operation::Messages, 5),
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\
             \"message\":\"over\\nthe limit\"}}\n\n"
        );
        assert_eq!(
            error.events(Operation::Responses, 5),
            "event: error\ndata: {\"type\":\"error\",\"code\":\"rate_limit_exceeded\",\"message\":\"over\\nthe limit\",\
             \"param\":null,\"sequence_number\":5,\"error\":{\"message\":\"over\\nthe limit\",\"type\":\"tokens\",\
             \"param\":null,\"code\":\"rate_limit_exceeded\"}}\n\n"
        );
    }

    #[test]
    fn an_unknown_model_is_the_fault_of_the_model_field() {
        assert_eq!(ApiError::new(ErrorKind::ModelNotFound, "").param, Some("model"));
        assert_eq!(ApiError::new(ErrorKind::InvalidApiKey, "").param, None);
    }

    proptest! {
        #[test]
        fn any_message_is_valid_json_and_comes_back_as_it_was(
            message in any::<String>(),
            kind in proptest::sample::select(&ErrorKind::ALL[..]),
        ) {
            let error = ApiError::new(kind, message.clone());
            for dialect in [Dialect::OpenAi, Dialect::Anthropic] {
                let body: Value = serde_json::from_str(&error.body(dialect)).unwrap();
                prop_assert_eq!(body["error"]["message"].as_str(), Some(message.as_str()));
            }
        }
    }
}
