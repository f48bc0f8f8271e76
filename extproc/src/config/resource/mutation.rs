//! `headerMutation` and `bodyMutation`, as AIServiceBackends and the backendRefs of routes have them.

use std::collections::HashSet;
use std::sync::Arc;

use attache_proto::fields::FieldEdits;
use attache_proto::headers::{OWNED, UPSTREAM_TIMEOUT_MS};
use attache_proto::request;

use crate::config::diagnostic::Diagnostic;
use crate::config::fields::{Fields, FromNode, Log, quote};
use crate::config::node::Node;
use crate::config::upstream::{HeaderEdits, Mutation};
use crate::config::value::{HeaderName, Located, header_value, text_of_at_most};

/// Reads both of an object's mutations. `None` where an error was reported.
pub(super) fn read_mutation(fields: &mut Fields<'_>) -> Option<Mutation> {
    let headers =
        if fields.has("headerMutation") { fields.take("headerMutation") } else { Some(HeaderEdits::default()) };
    let body = if fields.has("bodyMutation") { fields.take("bodyMutation") } else { Some(FieldEdits::default()) };
    Some(Mutation { headers: headers?, body: body? })
}

/// The bound of the CRD, for each list.
const MAX_ITEMS: usize = 16;

impl FromNode for HeaderEdits {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let set: Option<Vec<HeaderToSet>> = fields.list("set");
            let remove: Option<Vec<Located<OpenHeader>>> = fields.list("remove");
            let (set, remove) = (set?, remove?);
            check_length(fields, "set", set.len());
            check_length(fields, "remove", remove.len());
            report_repeated(fields, "header", set.iter().map(|header| &header.name));
            report_set_and_removed(fields, set.iter().map(|header| &header.name), &remove);
            let mut edits = Self::default();
            remove.iter().for_each(|name| edits.remove(&name.value.0));
            set.into_iter().for_each(|header| edits.set(&header.name.value.0, header.value));
            Some(edits)
        })
    }
}

struct HeaderToSet {
    name: Located<OpenHeader>,
    value: Arc<str>,
}

impl FromNode for HeaderToSet {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        /// The bound of the Gateway API.
        const MAX_VALUE_BYTES: usize = 4096;
        Fields::read(node, log, |fields| {
            let name = fields.require("name");
            let value = fields.require_with("value", |node, log| header_value(node, log, MAX_VALUE_BYTES));
            Some(Self { name: name?, value: value? })
        })
    }
}

/// A header that an operator may set and remove.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OpenHeader(Arc<str>);

impl AsRef<str> for OpenHeader {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromNode for OpenHeader {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        if let Some(name) = node.text().filter(|name| name.starts_with(':')) {
            let help = match &**name {
                ":path" => "set `prefix` of the AIServiceBackend's schema",
                ":authority" => OF_THE_ENDPOINT,
                _ => "leave it out",
            };
            return log.fail(node, format!("{} is no header, and cannot be changed", quote(name)), help);
        }
        let HeaderName(name) = HeaderName::from_node(node, log)?;
        match closed(&name) {
            None => Some(Self(name)),
            Some(help) => log.fail(node, format!("the header {} cannot be changed", quote(&name)), help),
        }
    }
}

const OF_THE_ENDPOINT: &str = "leave it out: an upstream gets the host of its endpoint";

/// What to do instead, for a header that is not the operator's to change.
fn closed(name: &str) -> Option<&'static str> {
    /// RFC 9110, section 7.6.1 and RFC 9112, section 6: they are about a connection or a message's length, not a request.
    const FRAMING: [&str; 11] = [
        "connection",
        "content-length",
        "expect",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    match name {
        "host" => Some(OF_THE_ENDPOINT),
        "accept-encoding" => Some("leave it out: an answer that cannot be read cannot be counted"),
        "content-encoding" => {
            Some("leave it out: it says how the body is sent, which is not for configuration to know")
        }
        UPSTREAM_TIMEOUT_MS => Some("set `timeouts.request` of the route's rule"),
        name if FRAMING.contains(&name) => Some("leave it out: it belongs to the connection and not to the request"),
        name if name.starts_with("x-envoy-") => Some("leave it out: Envoy takes it as an instruction"),
        name if OWNED.contains(&name) || name.starts_with("x-attache-") || name.starts_with("x-ai-eg-") => {
            Some("leave it out: it is the gateway's own, and no upstream gets to see it")
        }
        _ => None,
    }
}

impl FromNode for FieldEdits {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let set: Option<Vec<FieldToSet>> = fields.list("set");
            let remove: Option<Vec<Located<OpenField>>> = fields.list("remove");
            let (set, remove) = (set?, remove?);
            check_length(fields, "set", set.len());
            check_length(fields, "remove", remove.len());
            report_repeated(fields, "field", set.iter().map(|field| &field.path));
            report_set_and_removed(fields, set.iter().map(|field| &field.path), &remove);
            let mut edits = Self::default();
            remove.iter().for_each(|path| edits.remove(&path.value.0));
            for FieldToSet { path, value } in set {
                // Checked where it was read.
                edits.set(&path.value.0, &value).ok()?;
            }
            Some(edits)
        })
    }
}

struct FieldToSet {
    path: Located<OpenField>,
    /// JSON.
    value: Box<str>,
}

impl FromNode for FieldToSet {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let path = fields.require("path");
            let value = fields.require_with("value", read_json);
            Some(Self { path: path?, value: value? })
        })
    }
}

/// A JSON text; what cannot be meant for one is a string, as Envoy AI Gateway takes it.
fn read_json(node: &Node, log: &mut Log) -> Option<Box<str>> {
    const MAX_VALUE_BYTES: usize = 64 * 1024;
    let text = text_of_at_most(node, log, MAX_VALUE_BYTES)?;
    let mut trial = FieldEdits::default();
    match trial.set("value", &text) {
        Ok(()) => Some(Box::from(&*text)),
        Err(_) if !text.trim_start().starts_with(['{', '[', '"']) => {
            Some(serde_json::Value::from(&*text).to_string().into())
        }
        Err(error) => {
            let help = "write JSON in single quotes: '\"scale\"', '42', 'true', '{\"key\": [1, 2]}'";
            log.fail(node, format!("{} is not JSON: {error}", quote(&text)), help)
        }
    }
}

/// A field that an operator may set and remove.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OpenField(Arc<str>);

impl AsRef<str> for OpenField {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromNode for OpenField {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        const MAX_NAME_BYTES: usize = 128;
        let name = text_of_at_most(node, log, MAX_NAME_BYTES)?;
        if &*name == "model" {
            let help = "set `modelNameOverride` of the route's backendRef: limits and prices go by it, too";
            return log.fail(node, "the field `model` cannot be changed here", help);
        }
        // Under that name a server might read another value than the one that was counted.
        if let Some(known) = request::misspelt(&name) {
            let message = format!("{} is a field that some servers take for `{known}`", quote(&name));
            return log.fail(node, message, format!("write `{known}`"));
        }
        if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
            return Some(Self(name));
        }
        let help = "write the name of a top-level field, in letters, digits, `_` and `-`; set all of it to change what is in it";
        log.fail(node, format!("{} is no top-level field", quote(&name)), help)
    }
}

fn check_length(fields: &mut Fields<'_>, name: &str, items: usize) {
    if items > MAX_ITEMS {
        fields.reject(name, format!("`{name}`: there are {items} of them"), format!("write at most {MAX_ITEMS}"));
    }
}

fn report_repeated<'a, T: AsRef<str> + 'a>(
    fields: &mut Fields<'_>,
    thing: &str,
    names: impl Iterator<Item = &'a Located<T>>,
) {
    let mut seen = HashSet::new();
    for Located { value, location } in names {
        if !seen.insert(value.as_ref()) {
            let message = format!("the {thing} {} is set twice", quote(value.as_ref()));
            fields.push(Diagnostic::error(location, message).with_help("keep one of the two"));
        }
    }
}

fn report_set_and_removed<'a, T: AsRef<str> + 'a>(
    fields: &mut Fields<'_>,
    set: impl Iterator<Item = &'a Located<T>>,
    removed: &[Located<T>],
) {
    let set: HashSet<&str> = set.map(|name| name.value.as_ref()).collect();
    for Located { value, location } in removed.iter().filter(|removed| set.contains(removed.value.as_ref())) {
        let message = format!("{} is set as well, so it is not removed", quote(value.as_ref()));
        fields.push(Diagnostic::warning(location, message).with_help("remove one of the two"));
    }
}
