//! BackendSecurityPolicy of Envoy AI Gateway: the key to an upstream.

use super::kind::AI_GATEWAY;
use super::{ServiceBackend, Spec};
use crate::config::fields::{Fields, FromNode, Log};
use crate::config::node::Node;
use crate::config::upstream::KeyScheme;
use crate::config::value::{Reference, one_of};

#[derive(Debug)]
pub(in crate::config) struct SecurityPolicy {
    /// The AIServiceBackends; `None` where that could not be read, and empty where they refer to the policy.
    pub(in crate::config) targets: Option<Vec<Reference>>,
    /// `None` only in what remains of one with errors.
    pub(in crate::config) key: Option<KeySpec>,
}

/// Which key, and how it is sent.
#[derive(Debug)]
pub(in crate::config) struct KeySpec {
    pub(in crate::config) scheme: KeyScheme,
    /// The Secret.
    pub(in crate::config) secret: Reference,
}

impl Spec for SecurityPolicy {
    const KIND: &'static str = "BackendSecurityPolicy";
}

/// The types and the fields that go with them.
const TYPES: [(&str, &str, Option<KeyScheme>); 6] = [
    ("APIKey", "apiKey", Some(KeyScheme::Bearer)),
    ("AnthropicAPIKey", "anthropicAPIKey", Some(KeyScheme::XApiKey)),
    ("AzureAPIKey", "azureAPIKey", Some(KeyScheme::ApiKey)),
    ("AWSCredentials", "awsCredentials", None),
    ("AzureCredentials", "azureCredentials", None),
    ("GCPCredentials", "gcpCredentials", None),
];

impl FromNode for SecurityPolicy {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let targets: Option<Vec<Target>> = fields.list("targetRefs");
            let targets = targets.map(|targets| targets.into_iter().map(|Target(backend)| backend).collect());
            if fields.has("credentialOverride") {
                let message = "`credentialOverride` is not supported: a client's own credential goes to no upstream";
                fields.reject("credentialOverride", message, "remove it, and the key of the policy is sent");
            }
            // What it is about is known whatever else is wrong with it.
            let key = read_key(fields);
            Some(Self { targets, key })
        })
    }
}

fn read_key(fields: &mut Fields<'_>) -> Option<KeySpec> {
    fields.accept(&TYPES.map(|(_, field, _)| field));
    let (name, own, scheme) = fields.require_with("type", |node, log| {
        let choices = TYPES.map(|choice| (choice.0, choice));
        let choice = one_of(node, log, &choices)?;
        if choice.2.is_none() {
            let message =
                format!("credentials of the type `{}` are not supported: its backends get no requests", choice.0);
            let help = "use `APIKey`, `AnthropicAPIKey` or `AzureAPIKey`";
            return log.leave_out(node, message, help);
        }
        Some(choice)
    })?;
    for (_, field, _) in TYPES.into_iter().filter(|(_, field, _)| *field != own) {
        if fields.has(field) {
            let message = format!("`{field}` does not go with the type `{name}`");
            fields.reject(field, message, format!("keep `{own}` alone, or change `type`"));
        }
    }
    let secret = fields.require_with(own, |node, log| {
        Fields::read(node, log, |fields| fields.require_with("secretRef", read_secret_ref))
    });
    Some(KeySpec { scheme: scheme?, secret: secret? })
}

fn read_secret_ref(node: &Node, log: &mut Log) -> Option<Reference> {
    Fields::read(node, log, |fields| {
        fields.accept(&["group"]);
        fields.take_with("kind", |node, log| one_of(node, log, &[("Secret", ())]));
        Reference::from_fields(fields)
    })
}

struct Target(Reference);

impl FromNode for Target {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("namespace", "a policy is attached in its own namespace");
            let kind = fields.require_with("kind", |node, log| {
                if node.text().is_some_and(|kind| &**kind == "InferencePool") {
                    let help = "list the pool's servers in a Backend, behind an AIServiceBackend";
                    return log.fail(node, "`InferencePool` is not supported yet", help);
                }
                one_of(node, log, &[(ServiceBackend::KIND, ())])
            });
            fields.take_with("group", |node, log| one_of(node, log, &[(AI_GATEWAY, ())]));
            let backend = Reference::local_from_fields(fields);
            kind?;
            Some(Self(backend?))
        })
    }
}

/// The older form, in an AIServiceBackend: `backendSecurityPolicyRef: {name: ...}`.
pub(super) fn read_policy_ref(node: &Node, log: &mut Log) -> Option<Reference> {
    Fields::read(node, log, |fields| {
        fields.take_with("group", |node, log| one_of(node, log, &[(AI_GATEWAY, ())]));
        fields.take_with("kind", |node, log| one_of(node, log, &[(SecurityPolicy::KIND, ())]));
        Reference::local_from_fields(fields)
    })
}
