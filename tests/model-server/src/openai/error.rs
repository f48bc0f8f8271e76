//! Errors in OpenAI's form.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::faults::Refusal;

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

    /// Names the field that is wrong.
    pub(crate) fn about(self, param: &'static str) -> Self {
        Self { param: Some(param), ..self }
    }

    pub(crate) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}
