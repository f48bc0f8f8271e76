//! What is changed of a request for the upstream that it goes to: its body, its path, its headers, and whose key it has.

use std::fmt;
use std::sync::Arc;

use attache_proto::splice::{Edit, Splice, SpliceError};
use bytes::Bytes;

use super::Head;
use super::event::Mutations;
use crate::config::model::{Backend, Target};
use crate::config::upstream::{Credentials, HeaderEdits, Mutation};

/// What becomes of a body: first what the operator changes, then our own edits of what that leaves.
#[derive(Debug)]
pub(super) struct Rewrite {
    operator: Splice,
    own: Vec<Edit>,
}

impl Rewrite {
    /// The operator's part for `target`, and the body that it leaves: `None` where that is the client's. Whatever is not a
    /// JSON object has no fields to change.
    ///
    /// # Errors
    /// None, in fact: fields do not overlap.
    pub(super) fn of(target: &Target, body: &Bytes) -> Result<(Self, Option<Bytes>), SpliceError> {
        let fields = &target.mutation.body;
        let edits = if fields.is_empty() { None } else { fields.edits(body) };
        let operator = Splice::new(edits.unwrap_or_default(), body.len())?;
        let left = (!operator.is_empty()).then(|| operator.apply(body));
        Ok((Self { operator, own: Vec::new() }, left))
    }

    /// Adds edits of the body that the operator's part leaves.
    pub(super) fn add(&mut self, edits: impl IntoIterator<Item = Edit>) {
        self.own.extend(edits);
    }

    /// All of it and further edits, as one splice of the client's body. Nothing is added where it fails.
    ///
    /// # Errors
    /// As for [`Rewrite::splice`].
    pub(super) fn with(&mut self, edits: Vec<Edit>) -> Result<Splice, SpliceError> {
        let all = self.own.iter().cloned().chain(edits.iter().cloned()).collect();
        let splice = self.operator.then(all)?;
        self.add(edits);
        Ok(splice)
    }

    /// All of it, as one splice of the client's body.
    ///
    /// # Errors
    /// Where edits overlap, or do not lie in the body.
    pub(super) fn splice(&self) -> Result<Splice, SpliceError> {
        self.operator.then(self.own.clone())
    }
}

/// Whether a request can be sent to a backend as the operator wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// It can.
    Granted,
    /// The backend is to get a key, and nobody knows it.
    KeyUnknown,
}

impl Access {
    pub(super) fn to(backend: &Backend) -> Self {
        match backend.credentials {
            Credentials::NotNeeded | Credentials::Known(_) => Self::Granted,
            Credentials::Unknown => Self::KeyUnknown,
        }
    }
}

/// Headers that are the operator's to name. Shown by names alone: a key is among the values.
#[derive(Default, PartialEq, Eq)]
pub struct UpstreamHeaders {
    /// Headers to overwrite or add.
    pub set: Vec<(Arc<str>, Arc<str>)>,
    /// Headers to remove.
    pub remove: Vec<Arc<str>>,
}

impl fmt::Debug for UpstreamHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.set.iter().map(|(name, _)| name).collect();
        f.debug_struct("UpstreamHeaders").field("set", &names).field("remove", &self.remove).finish()
    }
}

/// Adds what a backend wants of the path and the headers, and its key. The client's own credentials are not for an upstream
/// that has a key of its own.
pub(super) fn address(
    mutations: &mut Mutations,
    backend: &Backend,
    mutation: &Mutation,
    head: &Head,
    path_prefix: &str,
) {
    let called = head.headers.get(":path").unwrap_or_default();
    if let Some(path) = backend.api.path(head.operation, called, path_prefix) {
        mutations.set.push((":path", path));
    }
    mutations.upstream = of_operator(&mutation.headers);
    if let Credentials::Known(credential) = &backend.credentials {
        let (name, value) = credential.header();
        mutations.upstream.set.retain(|(other, _)| &**other != name);
        mutations.upstream.remove.retain(|other| &**other != name);
        mutations.upstream.set.push((Arc::from(name), value));
        for credential in attache_gate::CREDENTIAL_HEADERS {
            if !mutations.remove.contains(&credential) {
                mutations.remove.push(credential);
            }
        }
    }
    // What is set is not to depend on which of the two the proxy does first.
    let UpstreamHeaders { set, .. } = &mutations.upstream;
    mutations.remove.retain(|removed| set.iter().all(|(name, _)| &**name != *removed));
}

fn of_operator(headers: &HeaderEdits) -> UpstreamHeaders {
    UpstreamHeaders {
        set: headers.to_set().map(|(name, value)| (Arc::clone(name), Arc::clone(value))).collect(),
        remove: headers.to_remove().cloned().collect(),
    }
}
