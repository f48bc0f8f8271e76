//! AIServiceBackend of Envoy AI Gateway: which API a Backend speaks.

use std::sync::Arc;

use super::kind::ENVOY_GATEWAY;
use super::mutation::read_mutation;
use super::security_policy::read_policy_ref;
use super::{ANSWER_BOUND, Annotations, Labels, MODEL_CLASS, Spec, report_others};
use crate::config::diagnostic::Diagnostic;
use crate::config::fields::{Fields, FromNode, Log, quote};
use crate::config::node::Node;
use crate::config::upstream::{AnswerBound, Api, Mutation, Schema};
use crate::config::value::{Located, Reference, one_of, path_prefix};

#[derive(Debug)]
pub(in crate::config) struct ServiceBackend {
    /// The Backend.
    pub(in crate::config) backend: Reference,
    /// What it serves, and where.
    pub(in crate::config) api: Api,
    /// What is changed of requests to it.
    pub(in crate::config) mutation: Mutation,
    /// The BackendSecurityPolicy, where it is named here and not the other way round.
    pub(in crate::config) security_policy: Option<Reference>,
    /// The class of the model behind it.
    pub(in crate::config) model_class: Option<Arc<str>>,
    /// How its answers are bounded.
    pub(in crate::config) answer_bound: AnswerBound,
}

impl Spec for ServiceBackend {
    const KIND: &'static str = "AIServiceBackend";

    fn labelled(self, labels: &Labels) -> Self {
        Self { model_class: labels.get(MODEL_CLASS).cloned(), ..self }
    }

    fn annotated(self, annotations: &Annotations, log: &mut Log) -> Self {
        report_others(annotations, ANSWER_BOUND, "an AIServiceBackend", log);
        let Some(Located { value, location }) = annotations.get(ANSWER_BOUND) else { return self };
        let Some(answer_bound) = AnswerBound::ALL.into_iter().find(|bound| bound.as_str() == Some(value)) else {
            let message = format!("{} is no field by which a backend's answers can be bounded", quote(value));
            let help = "write `max_tokens`, `max_completion_tokens` or `none`";
            log.push(Diagnostic::error(location, message).with_help(help));
            return self;
        };
        Self { answer_bound, ..self }
    }
}

impl FromNode for ServiceBackend {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("timeouts", "set `timeouts` of the route's rule");
            fields.unsupported("responseBodyMutation", "answers go to clients as they are");
            let api = fields.require("schema");
            let backend = fields.require_with("backendRef", read_backend_ref);
            let mutation = read_mutation(fields);
            let security_policy = fields.take_with("backendSecurityPolicyRef", read_policy_ref);
            Some(Self {
                backend: backend?,
                api: api?,
                mutation: mutation?,
                security_policy,
                model_class: None,
                answer_bound: AnswerBound::Fitting,
            })
        })
    }
}

fn read_backend_ref(node: &Node, log: &mut Log) -> Option<Reference> {
    Fields::read(node, log, |fields| {
        if is_service(node) {
            fields.accept(&["group", "kind", "name", "namespace", "port"]);
            let message = "without a `kind` this is a Service, which is not supported yet: this backend is left out";
            fields.leave_out(message, SERVERS_IN_A_BACKEND);
            return None;
        }
        fields.accept(&["port"]);
        let backend = fields.take_with("kind", read_kind);
        if fields.has("kind") && backend.is_none() {
            fields.accept(&["group", "name", "namespace"]);
            return None;
        }
        fields.take_with("group", |node, log| one_of(node, log, &[(ENVOY_GATEWAY, ())]));
        Reference::from_fields(fields)
    })
}

/// Whether the Gateway API takes this for a Service, which is its default: it wants a port for Services, and Backends have their own.
/// `{name: ...}` alone is short for a Backend here.
fn is_service(node: &Node) -> bool {
    let field = |name| node.get(name).filter(|value| !value.is_null());
    let group = field("group").and_then(Node::text).map(|group| &**group);
    field("kind").is_none() && (group == Some("") || group.is_none() && field("port").is_some())
}

const SERVERS_IN_A_BACKEND: &str =
    "list its servers in a Backend; of a Service, `fqdn: {hostname: NAME.NAMESPACE.svc, port: ...}` will do";

/// A Service or an InferencePool stands for addresses that Kubernetes alone knows.
fn read_kind(node: &Node, log: &mut Log) -> Option<()> {
    if let Some(kind) = node.text().filter(|kind| matches!(&***kind, "Service" | "InferencePool")) {
        let message = format!("`{kind}` is not supported yet: this backend is left out");
        return log.leave_out(node, message, SERVERS_IN_A_BACKEND);
    }
    one_of(node, log, &[("Backend", ())])
}

impl FromNode for Api {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("capabilities", "requests go there in the API in which they were sent");
            let schema = fields.require("name");
            // Nobody wants the default for a prefix that is wrong.
            let prefix_is_there = fields.has("prefix");
            let prefix = fields.take_with("prefix", path_prefix);
            // OpenAI's prefix by its older name; Envoy AI Gateway does not look at it any more.
            let older_is_there = fields.has("version");
            let older = fields.take_with("version", path_prefix);
            let prefix = match (prefix_is_there, schema) {
                (true, _) => prefix?,
                (false, Some(Schema::OpenAi)) if older_is_there => older?,
                (false, _) => Self::default().prefix,
            };
            Some(Self { schema: schema?, prefix })
        })
    }
}

impl FromNode for Schema {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        /// The schemas that Envoy AI Gateway knows besides.
        const LATER: [&str; 7] =
            ["AWSAnthropic", "AWSBedrock", "AzureOpenAI", "Cohere", "GCPAnthropic", "GCPVertexAI", "GoogleAIStudio"];
        if let Some(name) = node.text().filter(|name| LATER.contains(&&***name)) {
            let help = match &**name {
                "AzureOpenAI" => "use `OpenAI` with the prefix `/openai/v1`, where Azure serves OpenAI's own API",
                "GCPVertexAI" => {
                    "use `OpenAI` with the prefix of Google's OpenAI-compatible API, such as `/v1beta/openai`"
                }
                _ => "use `OpenAI` if the server speaks it too; vLLM, SGLang, NIM and Ollama do",
            };
            let message = format!("the schema `{name}` is not supported yet: this backend is left out");
            return log.leave_out(node, message, help);
        }
        one_of(node, log, &[Self::OpenAi, Self::Anthropic].map(|schema| (schema.as_str(), schema)))
    }
}
