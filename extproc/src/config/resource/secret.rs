//! The keys to upstreams: of Secret documents, and of files as Kubernetes mounts Secrets.
//!
//! A Secret that nobody refers to may hold anything, so what is wrong with one is said where it is referred to. No message
//! has any of its text.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::DEFAULT_NAMESPACE;
use crate::config::model::ObjectName;
use crate::config::node::{Node, Value};
use crate::config::upstream::{ApiKey, MAX_KEY_BYTES, NotAKey};

/// The entry of a Secret that the key is in, as Envoy AI Gateway has it.
pub(in crate::config) const KEY_ENTRY: &str = "apiKey";

/// What a Secret holds for us.
pub(in crate::config) type Kept = Result<ApiKey, KeyFault>;

/// Why there is no key in a Secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::config) enum KeyFault {
    #[error("it has no `{KEY_ENTRY}`")]
    NoEntry,
    #[error("its `{KEY_ENTRY}` is not text")]
    NotText,
    #[error("its `{KEY_ENTRY}` is not base64")]
    NotBase64,
    #[error("its `{KEY_ENTRY}` is no key: {0}")]
    NotAKey(#[from] NotAKey),
    #[error("there are two of that name")]
    Twice,
    #[error("its file cannot be read: {0}")]
    Unreadable(Arc<str>),
}

impl KeyFault {
    /// The way out.
    pub(in crate::config) fn help(&self) -> &'static str {
        match self {
            Self::NoEntry => "write the key as `stringData: {apiKey: ...}`, or base64-encoded as `data: {apiKey: ...}`",
            Self::NotText => "write it in quotes",
            Self::NotBase64 => {
                "encode it with `printf %s \"$KEY\" | base64 -w0`, or write it as it is under `stringData`"
            }
            Self::NotAKey(_) => "write the key alone, on one line",
            Self::Twice => "rename or remove one of them",
            Self::Unreadable(_) => "let the sidecar's user read it",
        }
    }
}

/// All Secrets.
#[derive(Debug, Default)]
pub(in crate::config) struct Secrets {
    pub(in crate::config) documents: BTreeMap<ObjectName, Kept>,
    /// Of mounted files; where there is a document of the same name, that one counts.
    pub(in crate::config) files: BTreeMap<ObjectName, Kept>,
}

impl Secrets {
    /// Reads a Secret's document. One without a name is nobody's.
    pub(super) fn read(&mut self, node: &Node) {
        let text = |field| node.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Node::text).cloned();
        let Some(name) = text("name") else { return };
        let namespace = text("namespace").unwrap_or_else(|| Arc::from(DEFAULT_NAMESPACE));
        let kept = self.documents.entry(ObjectName { namespace, name });
        kept.and_modify(|kept| *kept = Err(KeyFault::Twice)).or_insert_with(|| key_in(node));
    }

    pub(in crate::config) fn find(&self, name: &ObjectName) -> Option<&Kept> {
        self.documents.get(name).or_else(|| self.files.get(name))
    }
}

/// `stringData` counts before `data`, as in Kubernetes.
fn key_in(node: &Node) -> Kept {
    let entry = |field| node.get(field).and_then(|entries| entries.get(KEY_ENTRY)).map(text);
    match (entry("stringData"), entry("data")) {
        (Some(text), _) => Ok(ApiKey::parse(text?.as_bytes())?),
        (None, Some(text)) => {
            let text = text?;
            // Before it is decoded: a third more than the longest key.
            if text.len() > 2 * MAX_KEY_BYTES {
                return Err(NotAKey::TooLong.into());
            }
            Ok(ApiKey::parse(&base64(&text).ok_or(KeyFault::NotBase64)?)?)
        }
        (None, None) => Err(KeyFault::NoEntry),
    }
}

fn text(node: &Node) -> Result<Arc<str>, KeyFault> {
    match &node.value {
        Value::Quoted(text) => Ok(Arc::clone(text)),
        Value::Plain(_) if node.is_null() => Err(NotAKey::Empty.into()),
        Value::Plain(text) => Ok(Arc::clone(text)),
        Value::Sequence(_) | Value::Mapping(_) => Err(KeyFault::NotText),
    }
}

/// RFC 4648, section 4; line breaks between its groups are what folded YAML leaves.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = text.get(..text.len() - padding)?;
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in group {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let missing = 4 - group.len();
        let [_, decoded @ ..] = (bits << (6 * missing)).to_be_bytes();
        bytes.extend(decoded.into_iter().take(3 - missing));
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded_as_kubernetes_writes_it() {
        for (text, bytes) in [
            ("", ""),
            ("c2s=", "sk"),
            ("c2stYQ==", "sk-a"),
            ("c2stYWI=", "sk-ab"),
            ("c2stYWJj", "sk-abc"),
            ("c2st\n YWJj\n", "sk-abc"),
        ] {
            assert_eq!(base64(text).unwrap(), bytes.as_bytes(), "{text}");
        }
        assert_eq!(base64("+/+/").unwrap(), [0xfb, 0xff, 0xbf]);
        for wrong in ["c2s", "c2s=c2s=", "====", "c===", "c2-t", "c2\u{fc}=", "="] {
            assert_eq!(base64(wrong), None, "{wrong}");
        }
    }
}
