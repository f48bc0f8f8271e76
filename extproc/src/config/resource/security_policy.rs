//! BackendSecurityPolicy of Envoy AI Gateway: the key to an upstream.

use super::kind::AI_GATEWAY;
use super::{ServiceBackend, Spec, Support};
use crate::config::fields::{Fields, FromNode, Log};
use crate::config::node::Node;
use crate::config::upstream::KeyScheme;
use crate::config::value::{Reference, one_of};

#[derive(Debug)]
pub(in crate::config) struct SecurityPolicy {
    /// The AIServiceBackends; `None` where that could not be read, and empty where they refer to the policy.
    pub(in crate::config) targets: Option<Vec<Reference>>,
    /// `None` where it asks for something that is not served here, and in what remains of one with errors.
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
const TYPES: [(&str, &str, Option<KeyScheme>); 7] = [
    ("APIKey", "apiKey", Some(KeyScheme::Bearer)),
    ("AnthropicAPIKey", "anthropicAPIKey", Some(KeyScheme::XApiKey)),
    ("AzureAPIKey", "azureAPIKey", Some(KeyScheme::ApiKey)),
    ("AWSCredentials", "awsCredentials", None),
    ("AzureCredentials", "azureCredentials", None),
    ("GCPCredentials", "gcpCredentials", None),
    ("GoogleAPIKey", "googleAPIKey", None),
];

impl FromNode for SecurityPolicy {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let targets: Option<Vec<Target>> = fields.list("targetRefs");
            let targets = targets.map(|targets| targets.into_iter().filter_map(|Target(backend)| backend).collect());
            // What it is about is known whatever else is wrong with it.
            let key = read_key(fields);
            // Whoever has a credential of his own is not to be served with the one that is for everybody.
            let overridden = fields.take_with("credentialOverride", |node, log| {
                let message = "`credentialOverride` is not supported yet: the policy's backends get no requests";
                log.leave_out::<()>(node, message, "remove it, and the key of the policy is sent");
                Some(())
            });
            Some(Self { targets, key: key.filter(|_| overridden.is_none()) })
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

/// `None` for what is not served here, and so needs no key.
struct Target(Option<Reference>);

impl FromNode for Target {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("namespace", "a policy is attached in its own namespace");
            let support = fields.require_with("kind", |node, log| {
                if node.text().is_some_and(|kind| &**kind == "InferencePool") {
                    let help = "list the pool's servers in a Backend, behind an AIServiceBackend";
                    let message =
                        "`InferencePool` is not supported yet: nothing is served from it, with a key or without";
                    log.leave_out::<()>(node, message, help);
                    return Some(Support::Unsupported);
                }
                one_of(node, log, &[(ServiceBackend::KIND, Support::Supported)])
            });
            if support == Some(Support::Unsupported) {
                fields.accept(&["group", "name"]);
                return Some(Self(None));
            }
            fields.take_with("group", |node, log| one_of(node, log, &[(AI_GATEWAY, ())]));
            let backend = Reference::local_from_fields(fields);
            support?;
            Some(Self(Some(backend?)))
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
