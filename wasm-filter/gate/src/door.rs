//! Who may come in by which key.
//!
//! A request may show several credentials, of which some are meant for somebody else. One that is a ClientKey's says who calls,
//! whatever else is there; two that are different ClientKeys' say nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use attache_proto::{ApiError, ErrorKind};

use crate::config::{Access, ConfigError, KeyEntry};
use crate::digest::KeyDigest;
use crate::head::{Credentials, MOST_CREDENTIALS, RequestHead};
use crate::verdict::{Caller, Reason};

/// [`Access`] in the form in which it is looked up.
///
/// The look-up tells an attacker nothing through its duration: what is compared is not the key but its SHA-256, which a
/// guess cannot be steered towards; [`KeyDigest`] compares in constant time; and which slot of the map is probed
/// depends on SipHash under a secret of this process.
#[derive(Debug)]
pub(crate) enum Door {
    Open,
    Keys(HashMap<KeyDigest, Arc<KeyEntry>>),
}

impl Door {
    /// # Errors
    /// [`ConfigError::SameKeyTwice`]
    pub(crate) fn new(access: Access) -> Result<Self, ConfigError> {
        let Access::Keys(entries) = access else { return Ok(Self::Open) };
        let mut keys = HashMap::<KeyDigest, Arc<KeyEntry>>::with_capacity(entries.len());
        for entry in entries {
            let entry = Arc::new(entry);
            for digest in entry.digests() {
                if let Some(first) = keys.insert(digest, Arc::clone(&entry)) {
                    return Err(ConfigError::SameKeyTwice { first: first.id.clone(), second: entry.id.clone() });
                }
            }
        }
        Ok(Self::Keys(keys))
    }

    /// Who calls at `now`, since 1970; `None` where everybody may.
    pub(crate) fn judge(&self, head: &RequestHead<'_>, now: Duration) -> Result<Option<Caller>, (Reason, ApiError)> {
        let Self::Keys(keys) = self else { return Ok(None) };
        let shown = match head.credentials() {
            Credentials::TooMany => {
                let message = format!(
                    "the request holds more than {MOST_CREDENTIALS} credentials that differ; send one API key, in one of \
                     `Authorization`, `x-api-key` and `api-key`"
                );
                return Err((Reason::SeveralKeys, ApiError::new(ErrorKind::InvalidApiKey, message)));
            }
            Credentials::Few(shown) => shown,
        };
        let refuse = |reason, message: &str| Err((reason, ApiError::new(ErrorKind::InvalidApiKey, message)));
        let mut known = shown.clone().filter_map(|credential| keys.get(&KeyDigest::of(credential)));
        let Some(entry) = known.next() else {
            return match shown.count() {
                0 => refuse(
                    Reason::KeyMissing,
                    "you must provide an API key; send it as `Authorization: Bearer YOUR_KEY`, or in `x-api-key` or \
                     `api-key`",
                ),
                1 => refuse(
                    Reason::KeyUnknown,
                    "Incorrect API key provided; check that it is complete and has not been withdrawn",
                ),
                _ => refuse(
                    Reason::KeyUnknown,
                    "Incorrect API key provided: none of the credentials in `Authorization`, `x-api-key` and `api-key` is \
                     one of ours; check that the key is complete and has not been withdrawn",
                ),
            };
        };
        if known.any(|other| !Arc::ptr_eq(other, entry)) {
            return refuse(
                Reason::SeveralKeys,
                "the request holds the API keys of several callers; send one, in one of `Authorization`, `x-api-key` and \
                 `api-key`",
            );
        }
        if entry.disabled {
            return refuse(
                Reason::KeyDisabled,
                "Incorrect API key provided: this key is disabled; ask who gave it to you",
            );
        }
        if entry.not_after_ms.is_some_and(|last| now.as_millis() > u128::from(last)) {
            return refuse(Reason::KeyExpired, "Incorrect API key provided: this key has expired; ask for a new one");
        }
        Ok(Some(Caller::new(Arc::clone(entry))))
    }
}
