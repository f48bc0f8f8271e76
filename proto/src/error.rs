//! An error as the caller sees it: status, kind, message, in the caller's dialect, always JSON and always escaped.

use crate::operation::Dialect;

/// What went wrong, as the table of error cases lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// 400: the body or the request line is malformed.
    InvalidRequest,
    /// 401: no key, or a key nobody knows.
    InvalidApiKey,
    /// 401 (the product this one replaces answers so): the key is known but not attached to this endpoint.
    KeyNotAttached,
    /// 404: no route knows the model.
    ModelNotFound,
    /// 404: no operation is served at this path.
    PathNotFound,
    /// 405: the path exists, the method does not.
    MethodNotAllowed,
    /// 413: the body is above the cap.
    RequestTooLarge,
    /// 431: the request's headers are above the bound.
    HeadersTooLarge,
    /// 429: over a limit that time refills.
    RateLimited,
    /// 429: a budget is used up.
    QuotaExhausted,
    /// 503: no upstream, the ledger is out, or the sidecar is overloaded.
    Unavailable,
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
