//! What the gate says of a request.

use std::sync::Arc;

use attache_proto::{ApiError, Dialect, Operation};

use crate::config::{KeyEntry, KeyPriority};
use crate::digest::KeyDigest;

/// What the gate says of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing in the headers speaks against it.
    Pass(Passed),
    /// Answer with this, and go no further.
    Refuse(Refusal),
}

/// What is known of a request that may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// What it calls.
    pub operation: Operation,
    /// Who calls; `None` exactly where no keys are demanded.
    pub caller: Option<Caller>,
}

/// A caller whose key is known. Cloning is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    key: Arc<KeyEntry>,
}

impl Caller {
    pub(crate) fn new(key: Arc<KeyEntry>) -> Self {
        Self { key }
    }

    /// The ClientKey's `namespace/name`: a valid header value, and never the key.
    pub fn key_id(&self) -> &str {
        &self.key.id
    }

    /// The key, for whoever remembers something of it.
    pub(crate) fn digest(&self) -> KeyDigest {
        self.key.sha256
    }

    /// Whose key it is: a valid header value.
    pub fn tenant(&self) -> &str {
        &self.key.tenant
    }

    /// A label of the key, by its name.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.key.labels.get(name).map(String::as_str)
    }

    /// How much its requests matter where tokens get scarce.
    pub fn priority(&self) -> KeyPriority {
        self.key.priority
    }

    /// Whether the key is attached to `route` (`namespace/name`).
    pub fn may_call(&self, route: &str) -> bool {
        // A key has a handful of routes: a scan beats any index.
        self.key.routes.iter().any(|attached| attached == route)
    }
}

/// An answer that ends a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What the caller is told.
    pub error: ApiError,
    /// In which dialect.
    pub dialect: Dialect,
    /// Why, for counters.
    pub reason: Reason,
}

impl Refusal {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.error.status()
    }

    /// The body: JSON in the caller's dialect.
    pub fn body(&self) -> String {
        self.error.body(self.dialect)
    }

    /// The answer's headers.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &'static str)> + use<> {
        let extra = match self.reason {
            // Another scheme would not help.
            Reason::KeyNotAttached if self.status() != 401 => None,
            // RFC 9110, section 11.6.1: a 401 names a scheme.
            Reason::KeyMissing
            | Reason::KeyUnknown
            | Reason::SeveralKeys
            | Reason::KeyNotAttached
            | Reason::KeyExpired
            | Reason::KeyDisabled => Some(("www-authenticate", "Bearer")),
            // RFC 9110, section 15.5.6: a 405 names the methods.
            Reason::MethodNotAllowed { allow } => Some(("allow", allow)),
            Reason::HeadersTooLarge | Reason::PathNotFound | Reason::InvalidContentLength | Reason::BodyTooLarge => {
                None
            }
        };
        [("content-type", "application/json")].into_iter().chain(extra)
    }
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// More header bytes than the bound.
    HeadersTooLarge,
    /// No operation at this path.
    PathNotFound,
    /// An operation, with another method.
    MethodNotAllowed {
        /// The method that the path takes.
        allow: &'static str,
    },
    /// `content-length` is no number, or there are several.
    InvalidContentLength,
    /// `content-length` is above the cap.
    BodyTooLarge,
    /// A key is demanded, and there is none.
    KeyMissing,
    /// Nobody has this key.
    KeyUnknown,
    /// Keys of callers that differ, or more credentials than are looked at.
    SeveralKeys,
    /// The key may call no route of the model in the hint, or of a path that passes through.
    KeyNotAttached,
    /// The key's time is over.
    KeyExpired,
    /// The key may not come in for now.
    KeyDisabled,
}

impl Reason {
    /// How many reasons there are.
    pub const COUNT: usize = Self::NAMES.len();

    /// The names of all reasons for metrics, in the order of [`Reason::index`].
    pub const NAMES: [&'static str; 11] = [
        "headers_too_large",
        "path_not_found",
        "method_not_allowed",
        "invalid_content_length",
        "body_too_large",
        "key_missing",
        "key_unknown",
        "several_keys",
        "key_not_attached",
        "key_expired",
        "key_disabled",
    ];

    /// Which of [`Reason::NAMES`] this is.
    pub const fn index(self) -> usize {
        match self {
            Self::HeadersTooLarge => 0,
            Self::PathNotFound => 1,
            Self::MethodNotAllowed { .. } => 2,
            Self::InvalidContentLength => 3,
            Self::BodyTooLarge => 4,
            Self::KeyMissing => 5,
            Self::KeyUnknown => 6,
            Self::SeveralKeys => 7,
            Self::KeyNotAttached => 8,
            Self::KeyExpired => 9,
            Self::KeyDisabled => 10,
        }
    }

    /// The name for metrics.
    pub fn name(self) -> &'static str {
        Self::NAMES.get(self.index()).copied().unwrap_or_default()
    }
}
