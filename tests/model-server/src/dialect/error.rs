//! Errors, in OpenAI's form and in Anthropic's.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::{coding::DecodeError, faults::Refusal, sse::Event};

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// In seconds.
    pub(crate) retry_after: Option<u64>,
    message: String,
    kind: &'static str,
    param: Option<&'static str>,
    code: Option<&'static str>,
}

impl ApiError {
    /// 400: the request is not what it should be.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            retry_after: None,
            message: message.into(),
            kind: "invalid_request_error",
            param: None,
            code: None,
        }
    }

    /// 400, or 415 for a coding that is not known.
    pub(crate) fn undecodable(error: &DecodeError) -> Self {
        let status = match error {
            DecodeError::Unsupported(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            DecodeError::Broken(_) | DecodeError::TooLarge(_) => StatusCode::BAD_REQUEST,
        };
        Self { status, ..Self::malformed(error.to_string()) }
    }

    /// 401.
    pub(crate) fn unknown_key() -> Self {
        let message = "the API key is missing or is not the right one";
        Self { status: StatusCode::UNAUTHORIZED, code: Some("invalid_api_key"), ..Self::malformed(message) }
    }

    /// 404.
    pub(crate) fn unknown_model(model: &str) -> Self {
        let message = format!("the model `{model}` does not exist");
        Self { status: StatusCode::NOT_FOUND, code: Some("model_not_found"), ..Self::malformed(message).about("model") }
    }

    /// 400, in the words of OpenAI's reasoning models.
    pub(crate) fn unsupported_max_tokens() -> Self {
        let message = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
        Self { code: Some("unsupported_parameter"), ..Self::malformed(message).about("max_tokens") }
    }

    /// 404.
    pub(crate) fn unknown_path(path: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::malformed(format!("there is nothing for this method at `{path}`"))
        }
    }

    /// The error that a fault asks for.
    pub(crate) fn refused(refusal: &Refusal) -> Self {
        let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = match status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let message = format!("a fault on request: {status}");
        Self { status, retry_after: refusal.retry_after, kind, ..Self::malformed(message) }
    }

    /// The error that ends a stream.
    pub(crate) fn in_stream() -> Self {
        let message = "a fault on request: the stream ends here";
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Self { status, kind: "server_error", ..Self::malformed(message) }
    }

    /// Names the field that is wrong.
    pub(crate) fn about(self, param: &'static str) -> Self {
        Self { param: Some(param), ..self }
    }

    /// The error's body.
    pub(crate) fn body(&self, dialect: Dialect) -> Value {
        match dialect {
            Dialect::OpenAi | Dialect::Responses => {
                json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
            }
            Dialect::Anthropic => {
                json!({"type": "error", "error": {"type": self.anthropic_kind(), "message": self.message}})
            }
        }
    }

    /// The event that says the error within a stream, after so many others.
    pub(crate) fn event(&self, dialect: Dialect, events_before: u64) -> Event {
        match dialect {
            Dialect::OpenAi => Event::unnamed(self.body(dialect)),
            Dialect::Responses => Event::named(
                "error",
                json!({"code": self.kind, "message": self.message, "param": null, "sequence_number": events_before}),
            ),
            Dialect::Anthropic => Event::Data { name: Some("error"), body: self.body(dialect) },
        }
    }

    /// <https://docs.anthropic.com/en/api/errors>
    fn anthropic_kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 | 529 => "overloaded_error",
            400..500 => "invalid_request_error",
            _ => "api_error",
        }
    }
}

/// Whose form an error has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    /// OpenAI's, with another form for errors in a stream.
    Responses,
    Anthropic,
}

impl Dialect {
    /// The one that clients of this path read.
    pub(crate) fn of(path: &str) -> Self {
        if path.contains("/v1/messages") {
            Self::Anthropic
        } else if path.contains("/v1/responses") {
            Self::Responses
        } else {
            Self::OpenAi
        }
    }
}
