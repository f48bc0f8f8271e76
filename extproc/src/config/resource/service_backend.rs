//! AIServiceBackend of Envoy AI Gateway: which API a Backend speaks.

use std::sync::Arc;

use super::kind::ENVOY_GATEWAY;
use super::{Labels, MODEL_CLASS, Spec};
use crate::config::fields::{Fields, FromNode, Log};
use crate::config::node::Node;
use crate::config::value::{Reference, one_of};

#[derive(Debug)]
pub(in crate::config) struct ServiceBackend {
    /// The Backend.
    pub(in crate::config) backend: Reference,
    /// The class of the model behind it.
    pub(in crate::config) model_class: Option<Arc<str>>,
}

impl Spec for ServiceBackend {
    const KIND: &'static str = "AIServiceBackend";

    fn labelled(self, labels: &Labels) -> Self {
        Self { model_class: labels.get(MODEL_CLASS).cloned(), ..self }
    }
}

impl FromNode for ServiceBackend {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            fields.unsupported("timeouts", "set `timeouts` of the route's rule");
            fields.unsupported("headerMutation", "headers go upstream as they are");
            fields.unsupported("bodyMutation", "bodies go upstream as they are");
            fields.unsupported("responseBodyMutation", "answers go to clients as they are");
            let schema: Option<OpenAi> = fields.require("schema");
            let backend = fields.require_with("backendRef", read_backend_ref);
            schema?;
            Some(Self { backend: backend?, model_class: None })
        })
    }
}

fn read_backend_ref(node: &Node, log: &mut Log) -> Option<Reference> {
    Fields::read(node, log, |fields| {
        fields.accept(&["port"]);
        fields.take_with("group", |node, log| one_of(node, log, &[(ENVOY_GATEWAY, ())]));
        fields.take_with("kind", |node, log| one_of(node, log, &[("Backend", ())]));
        Reference::from_fields(fields)
    })
}

/// The one schema there is so far.
#[derive(Clone, Copy)]
struct OpenAi;

impl FromNode for OpenAi {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        /// The schemas that Envoy AI Gateway knows besides.
        const LATER: [&str; 7] =
            ["Anthropic", "AWSAnthropic", "AWSBedrock", "AzureOpenAI", "Cohere", "GCPAnthropic", "GCPVertexAI"];
        Fields::read(node, log, |fields| {
            fields.unsupported("version", "the path of a request stays as it is");
            fields.unsupported("prefix", "the path of a request stays as it is");
            fields.require_with("name", |node, log| {
                if let Some(name) = node.text().filter(|name| LATER.contains(&&***name)) {
                    let help = "use `OpenAI` if the server speaks it too; vLLM, SGLang, NIM and Ollama do";
                    return log.fail(node, format!("the schema `{name}` is not supported yet"), help);
                }
                one_of(node, log, &[("OpenAI", Self)])
            })
        })
    }
}
