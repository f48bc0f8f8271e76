//! What the filter makes of a request, whose documents may be older than the sidecar's: it does not refuse for what they say of
//! keys, but has the sidecar decide, and remembers for a moment what that said.
//!
//! What is remembered has a fixed size: [`LearnedVerdicts`] is a table of slots, and a flood of keys that nobody knows displaces
//! neither what is asked for again and again nor anything that other tables hold.

use std::time::Duration;

use attache_proto::{ApiError, ErrorKind, Operation, headers};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::Gate;
use crate::config::UnknownKeys;
use crate::digest::KeyDigest;
use crate::head::{Credentials, RequestHead};
use crate::verdict::{Passed, Reason, Refusal, Verdict};

/// For how long a verdict of the sidecar is repeated before it is asked again: a key may have been added meanwhile.
pub const VERDICT_HOLDS: Duration = Duration::from_secs(2);

/// What the filter makes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstLook {
    /// Nothing in the headers speaks against it.
    Pass(Passed),
    /// The filter's documents speak against it. The sidecar's may be newer.
    Ask(Doubt),
    /// Answer with this, and go no further.
    Refuse(Refusal),
}

/// What the sidecar's answer to such a request will be about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    /// Of the credentials alone.
    key: Print,
    /// Of the credentials and what they are used for.
    request: Print,
    /// What is called, where that is known.
    operation: Option<Operation>,
}

/// A hash by which what was learned is found again.
type Print = [u8; 32];

/// Why the sidecar's gate refused a request, as it tells the filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Learned {
    /// One of [`Reason::NAMES`].
    reason: String,
    /// What the caller is told.
    message: String,
}

/// The longest header value that is written or read. It bounds what is remembered of a request.
const LONGEST_BYTES: usize = 512;

/// Reasons that are the documents' to give, and not the request's alone.
const OF_DOCUMENTS: [Reason; 5] =
    [Reason::KeyUnknown, Reason::SeveralKeys, Reason::KeyNotAttached, Reason::KeyExpired, Reason::KeyDisabled];

impl Learned {
    /// What the filter may learn of a refusal: nothing where its own documents cannot be at fault.
    pub fn of(refusal: &Refusal) -> Option<Self> {
        OF_DOCUMENTS
            .contains(&refusal.reason)
            .then(|| Self { reason: refusal.reason.name().to_owned(), message: refusal.error.message.clone() })
    }

    /// As a header value: JSON in ASCII. `None` where it would be too long, or would not be ASCII; then the sidecar goes on
    /// refusing by itself.
    pub fn to_header(&self) -> Option<String> {
        let json = serde_json::to_string(self).ok()?;
        (json.len() <= LONGEST_BYTES && json.bytes().all(|byte| (b' '..=b'~').contains(&byte))).then_some(json)
    }

    /// Reads a header value that came with an answer for which Envoy gives these `details` (`response.code_details`): `None` if
    /// it is none that [`Learned::to_header`] writes, or the answer is not the sidecar's refusal for that reason.
    pub fn from_header(value: &[u8], details: &[u8]) -> Option<Self> {
        if value.len() > LONGEST_BYTES {
            return None;
        }
        let learned: Self = serde_json::from_slice(value).ok()?;
        let reason = learned.reason()?.name().as_bytes();
        (details.strip_prefix(headers::DETAILS_PREFIX.as_bytes()) == Some(reason)).then_some(learned)
    }

    fn reason(&self) -> Option<Reason> {
        OF_DOCUMENTS.into_iter().find(|reason| reason.name() == self.reason)
    }
}

impl Gate {
    /// The filter's look at a request at `now`, since 1970. Where it is told not to ask ([`UnknownKeys::Refuse`]), it decides as
    /// [`Gate::check`] does.
    pub fn first_look(&self, head: &RequestHead<'_>, now: Duration) -> FirstLook {
        match self.check(head, now) {
            Verdict::Pass(passed) => FirstLook::Pass(passed),
            Verdict::Refuse(refusal)
                if self.unknown_keys == UnknownKeys::Ask && OF_DOCUMENTS.contains(&refusal.reason) =>
            {
                FirstLook::Ask(self.doubt(head))
            }
            Verdict::Refuse(refusal) => FirstLook::Refuse(refusal),
        }
    }

    fn doubt(&self, head: &RequestHead<'_>) -> Doubt {
        let mut digests: Vec<KeyDigest> = match head.credentials() {
            Credentials::Few(shown) => shown.map(KeyDigest::of).collect(),
            // Whatever they are, there are too many.
            Credentials::TooMany => Vec::new(),
        };
        // In which header each stands makes no difference.
        digests.sort_by_key(ToString::to_string);
        let mut key = Sha256::new();
        digests.iter().for_each(|digest| key.update(digest.bytes()));
        let mut request = key.clone();
        for text in [head.method(), head.path(), head.model_hint().unwrap_or_default()] {
            request.update((text.len() as u64).to_be_bytes());
            request.update(text);
        }
        let operation = Operation::resolve(head.method(), head.path(), &self.path_prefix).ok();
        Doubt { key: key.finalize().into(), request: request.finalize().into(), operation }
    }

    /// The answer to a request of which the sidecar has said this before.
    fn repeated(&self, learned: &Learned, doubt: &Doubt, head: &RequestHead<'_>) -> Option<Refusal> {
        let reason = learned.reason()?;
        let error = match reason {
            Reason::KeyNotAttached => {
                let error = ApiError::new(self.unattached, &*learned.message);
                // Of a path that passes through it is no model's fault.
                if doubt.operation.is_some() { error.with_param("model") } else { error }
            }
            _ => ApiError::new(ErrorKind::InvalidApiKey, &*learned.message),
        };
        Some(Refusal { error, dialect: self.dialect(head), reason })
    }
}

/// What the sidecar said lately of requests that were left to it, in [`SLOTS`] slots.
#[derive(Debug, Default)]
pub struct LearnedVerdicts {
    slots: Vec<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    print: Print,
    learned: Learned,
    since: Duration,
    /// How often it was repeated.
    hits: u32,
}

/// Half a megabyte at the worst, for each VM.
const SLOTS: usize = 1024;

/// Among how many slots an entry has to find a place.
const WAYS: usize = 4;

impl LearnedVerdicts {
    /// Takes note of what the sidecar has just said of a request. Time is as for [`crate::ExhaustedKeys`].
    pub fn learn(&mut self, doubt: &Doubt, learned: Learned, now: Duration) {
        let print = match learned.reason() {
            None => return,
            Some(Reason::KeyNotAttached) => doubt.request,
            Some(_) => doubt.key,
        };
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, || None);
        }
        let known = Known { print, learned, since: now, hits: 0 };
        let Some(ways) = self.ways(&print) else { return };
        let same = ways.iter().position(|slot| slot.as_ref().is_some_and(|known| known.print == print));
        let free = || ways.iter().position(|slot| slot.as_ref().is_none_or(|known| !known.holds(now)));
        // One that was shown once may make room; one that is shown again and again is what the table is for.
        let idle = || ways.iter().position(|slot| slot.as_ref().is_some_and(|known| known.hits == 0));
        if let Some(slot) = same.or_else(free).or_else(idle).and_then(|place| ways.get_mut(place)) {
            *slot = Some(known);
        }
    }

    /// The answer to a request in doubt, if the sidecar has lately refused one like it.
    pub fn refusal(&mut self, gate: &Gate, doubt: &Doubt, head: &RequestHead<'_>, now: Duration) -> Option<Refusal> {
        [&doubt.key, &doubt.request].into_iter().find_map(|print| {
            let known =
                self.ways(print)?.iter_mut().flatten().find(|known| known.print == *print && known.holds(now))?;
            known.hits = known.hits.saturating_add(1);
            gate.repeated(&known.learned, doubt, head)
        })
    }

    fn ways(&mut self, print: &Print) -> Option<&mut [Option<Known>]> {
        let [a, b, ..] = *print;
        let first = usize::from(u16::from_be_bytes([a, b])) % (SLOTS / WAYS) * WAYS;
        self.slots.get_mut(first..first + WAYS)
    }
}

impl Known {
    fn holds(&self, now: Duration) -> bool {
        now.checked_sub(self.since).is_some_and(|elapsed| elapsed < VERDICT_HOLDS)
    }
}

#[cfg(test)]
mod tests;
