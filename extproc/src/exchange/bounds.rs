//! By which field a chat's answer is bounded: which one its server takes.

use attache_proto::fields::FieldEdits;
use attache_proto::request::{BoundName, OutputBounds};

use crate::config::model::{Backend, EndpointAddress};
use crate::config::upstream::AnswerBound;
use crate::limit::Taken;

/// The field to add to a request that has no bound; `None` where its server takes none. What the operator says comes first, what the
/// server has refused last, and what the operator takes out of requests stays away.
pub(super) fn to_add(
    bounds: &OutputBounds,
    served_model: &str,
    backend: &Backend,
    fields: &FieldEdits,
    taken: &Taken,
) -> Option<BoundName> {
    let mut names = bounds.choices().to_vec();
    names.retain(|name| !fields.removes(name.as_str()));
    let first = match backend.answer_bound {
        AnswerBound::None => return None,
        AnswerBound::MaxTokens => BoundName::MaxTokens,
        AnswerBound::MaxCompletionTokens => BoundName::MaxCompletionTokens,
        AnswerBound::Fitting if prefers_completion_tokens(served_model, backend) => BoundName::MaxCompletionTokens,
        AnswerBound::Fitting => BoundName::MaxTokens,
    };
    names.sort_by_key(|name| *name != first);
    taken.choose(&names)
}

/// Whether a chat is to be bounded by `max_completion_tokens`. OpenAI's own servers take it for every model, and nothing else for
/// those that reason, which others may serve by the same names, and Azure by any; what else speaks OpenAI's language may know
/// `max_tokens` alone.
fn prefers_completion_tokens(served_model: &str, backend: &Backend) -> bool {
    const HOSTS: [&str; 2] = ["api.openai.com", "openai.azure.com"];
    let is_openai = |address: &EndpointAddress| match address {
        EndpointAddress::Fqdn { hostname, .. } => {
            let hostname = hostname.to_ascii_lowercase();
            let is_in =
                |host: &str| hostname.strip_suffix(host).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            HOSTS.into_iter().any(is_in)
        }
        EndpointAddress::Ip(_) | EndpointAddress::Unix(_) => false,
    };
    reasons(served_model) || backend.endpoints.iter().any(|endpoint| is_openai(&endpoint.address))
}

/// Whether it is the name of one of OpenAI's reasoning models: `o3-mini`, `openai/gpt-5`, `ft:o4-mini-2025-04-16:acme`.
pub(super) fn reasons(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let name = name.strip_prefix("ft:").unwrap_or(name).to_ascii_lowercase();
    let family = |prefix: &str, generations: fn(u32) -> bool| {
        let Some(rest) = name.strip_prefix(prefix) else { return false };
        let digits = rest.len() - rest.trim_start_matches(|char: char| char.is_ascii_digit()).len();
        let (number, behind) = rest.split_at(digits);
        let ends = behind.is_empty() || behind.starts_with(['-', '.', ':', '@']);
        ends && number.parse().is_ok_and(generations)
    };
    family("o", |generation| (1..100).contains(&generation))
        || family("gpt-", |generation| (5..100).contains(&generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openais_reasoning_models_are_known_by_their_names() {
        for model in [
            "o1",
            "o3-mini",
            "o4-mini-2025-04-16",
            "openai/o1-preview",
            "gpt-5",
            "gpt-5.1",
            "GPT-5-nano",
            "ft:o4-mini:acme",
        ] {
            assert!(reasons(model), "{model}");
        }
        for model in [
            "gpt-4o",
            "gpt-4.1",
            "gpt-oss-120b",
            "gpt-3.5-turbo",
            "olmo-2",
            "o",
            "o1x",
            "orca",
            "qwen3",
            "",
            "o1/mistral",
        ] {
            assert!(!reasons(model), "{model}");
        }
    }
}
