//! ConfigMaps: of them the authorities by which model servers are trusted.
//!
//! A ConfigMap that nobody refers to may hold anything, so what is wrong with one is said where it is referred to.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use super::DEFAULT_NAMESPACE;
use crate::config::model::ObjectName;
use crate::config::node::Node;

/// The entry of a ConfigMap that authorities are in, as Gateway API has it.
const AUTHORITY_ENTRY: &str = "ca.crt";

/// Why there are no authorities in a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::config) enum AuthorityFault {
    #[error("it has no `{AUTHORITY_ENTRY}`")]
    NoEntry,
    #[error("its `{AUTHORITY_ENTRY}` has no certificate that can be read")]
    NoCertificate,
    #[error("there are two of that name")]
    Twice,
}

/// The authorities of all ConfigMaps.
#[derive(Debug, Default)]
pub(in crate::config) struct ConfigMaps {
    documents: BTreeMap<ObjectName, Result<Arc<str>, AuthorityFault>>,
}

impl ConfigMaps {
    /// Reads a ConfigMap's document. One without a name is nobody's.
    pub(super) fn read(&mut self, node: &Node) {
        let text = |field| node.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Node::text).cloned();
        let Some(name) = text("name") else { return };
        let namespace = text("namespace").unwrap_or_else(|| Arc::from(DEFAULT_NAMESPACE));
        let found = self.documents.entry(ObjectName { namespace, name });
        found.and_modify(|found| *found = Err(AuthorityFault::Twice)).or_insert_with(|| authorities(node));
    }

    /// Certificates in PEM.
    pub(in crate::config) fn find(&self, name: &ObjectName) -> Option<&Result<Arc<str>, AuthorityFault>> {
        self.documents.get(name)
    }
}

fn authorities(node: &Node) -> Result<Arc<str>, AuthorityFault> {
    let entry = node.get("data").and_then(|entries| entries.get(AUTHORITY_ENTRY)).and_then(Node::text);
    let text = entry.ok_or(AuthorityFault::NoEntry)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(Arc::from(format!("{}\n", text.trim_end()))),
        _ => Err(AuthorityFault::NoCertificate),
    }
}
