//! By which field a chat's answer is bounded: which one its server takes.

use crate::config::model::{Backend, EndpointAddress};

/// Whether a chat is to be bounded by `max_completion_tokens`. OpenAI's own servers take it for every model, and nothing else for
/// those that reason, which others may serve by the same names; what else speaks OpenAI's language may know `max_tokens` alone.
pub(super) fn prefers_completion_tokens(served_model: &str, backend: &Backend) -> bool {
    let is_openai = |address: &EndpointAddress| match address {
        EndpointAddress::Fqdn { hostname, .. } => {
            hostname.eq_ignore_ascii_case("api.openai.com")
                || hostname.to_ascii_lowercase().ends_with(".api.openai.com")
        }
        EndpointAddress::Ip(_) | EndpointAddress::Unix(_) => false,
    };
    reasons(served_model) || backend.endpoints.iter().any(|endpoint| is_openai(&endpoint.address))
}

/// Whether it is the name of one of OpenAI's reasoning models: `o3-mini`, `openai/gpt-5`, `ft:o4-mini-2025-04-16:acme`.
fn reasons(model: &str) -> bool {
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
