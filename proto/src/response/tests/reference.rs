//! What a document says, by a full parser and the plainest arithmetic: the scanner is held to it.

use serde_json::Value;

use super::*;

/// The usage that a document reports.
pub(super) fn usage(operation: Operation, document: &Value) -> Option<Usage> {
    let document = document.as_object()?;
    // The last of those places that are equals holds.
    let mut reported = None;
    for (key, value) in document {
        match (operation, key.as_str()) {
            (_, "usage") => reported = Some(value),
            (Operation::Responses, "response") | (Operation::Messages, "message") => {
                reported = value.get("usage").or(reported);
            }
            _ => {}
        }
    }
    let at = |path: &[&str]| {
        let (first, rest) = path.split_first().unwrap();
        rest.iter().try_fold(document.get(*first)?, |value, key| value.get(key))
    };
    let others = match operation {
        Operation::ChatCompletions | Operation::Completions => [at(&["x_groq", "usage"]), at(&["timings"])],
        Operation::Rerank | Operation::Embeddings | Operation::Score => {
            [at(&["meta", "tokens"]), at(&["meta", "billed_units"])]
        }
        _ => [None, None],
    };
    let is_timings = |value: &Value| document.get("timings").is_some_and(|timings| std::ptr::eq(timings, value));
    let read = |value: &Value| if is_timings(value) { timings(value) } else { account(value) };
    reported.and_then(account).or_else(|| others.into_iter().flatten().find_map(read))
}

/// Whether a document is the event that is taken out of a stream.
pub(super) fn is_usage_event(operation: Operation, document: &Value) -> bool {
    matches!(operation, Operation::ChatCompletions | Operation::Completions | Operation::Transcriptions)
        && document.get("choices").and_then(Value::as_array).is_some_and(Vec::is_empty)
        && document.get("usage").is_some_and(Value::is_object)
        && ["error", "prompt_filter_results"].iter().all(|key| {
            document.get(*key).is_none_or(|value| value.is_null() || value.is_number() || value.is_boolean())
        })
}

/// Whether a document brings output.
pub(super) fn has_content(operation: Operation, document: &Value) -> bool {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).is_some_and(|text| !text.is_empty());
    let any = |value: &Value, key: &str| match value.get(key) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(elements)) => !elements.is_empty(),
        Some(Value::Object(members)) => !members.is_empty(),
        _ => false,
    };
    let choices = document.get("choices").and_then(Value::as_array).into_iter().flatten();
    let in_choices = match operation {
        Operation::ChatCompletions | Operation::Transcriptions => choices.clone().any(|choice| {
            let Some(delta @ Value::Object(_)) = choice.get("delta") else { return false };
            let members = ["content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call"];
            members.iter().any(|key| any(delta, key))
                || delta.get("audio").is_some_and(Value::is_object) && any(delta, "audio")
        }),
        Operation::Completions => choices.clone().any(|choice| text(choice, "text")),
        _ => false,
    };
    let inside = |key: &str, members: &[&str]| {
        document.get(key).is_some_and(|value| value.is_object() && members.iter().any(|member| text(value, member)))
    };
    in_choices
        || match operation {
            Operation::Responses => text(document, "delta"),
            Operation::Transcriptions => text(document, "delta") || text(document, "audio"),
            Operation::Messages => {
                inside("delta", &["text", "thinking", "partial_json"])
                    || inside("content_block", &["text", "thinking", "name", "data"])
            }
            _ => false,
        }
}

/// What Anthropic's events make together.
pub(super) fn together(before: Option<Usage>, later: Option<Usage>) -> Option<Usage> {
    let (Some(before), Some(later)) = (before, later) else { return later.or(before) };
    let (input, output) = (before.input.max(later.input), before.output.max(later.output));
    let cached_input = before.cached_input.max(later.cached_input);
    Some(Usage {
        input,
        output,
        total: input + output,
        cached_input,
        cache_creation_input: before.cache_creation_input.max(later.cache_creation_input).min(input - cached_input),
        reasoning: before.reasoning.max(later.reasoning),
    })
}

fn count(value: &Value) -> Option<u64> {
    let number = value.as_f64()?;
    ((0.0..=9007199254740992.0).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}

fn timings(timings: &Value) -> Option<Usage> {
    let get = |key: &str| timings.as_object().and_then(|timings| timings.get(key)).and_then(count);
    let cached = get("cache_n");
    let input = get("prompt_n").and_then(|evaluated| Some(evaluated + cached?));
    let output = get("predicted_n");
    input.or(output)?;
    let (input, output) = (input.unwrap_or(0), output.unwrap_or(0));
    let cached_input = cached.unwrap_or(0).min(input);
    Some(Usage { input, output, total: input + output, cached_input, ..Usage::default() })
}

fn account(usage: &Value) -> Option<Usage> {
    let usage = usage.as_object()?;
    let get = |key: &str| usage.get(key).and_then(count);
    let detail = |objects: [&str; 3], key: &str| {
        let found = usage.iter().filter(|(name, _)| objects.contains(&name.as_str()));
        found.filter_map(|(_, details)| count(details.as_object()?.get(key)?)).next_back()
    };
    const INPUT: [&str; 3] = ["prompt_tokens_details", "input_tokens_details", "input_token_details"];
    const OUTPUT: [&str; 3] = ["completion_tokens_details", "output_tokens_details", "output_token_details"];
    const PARTS: [&str; 2] = ["ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"];
    let sum = |[short, long]: [Option<u64>; 2]| short.or(long).map(|_| short.unwrap_or(0) + long.unwrap_or(0));
    let parts = sum(PARTS.map(|key| detail(["cache_creation"; 3], key)));
    let created = get("cache_creation_input_tokens").max(parts);
    let read = get("cache_read_input_tokens");
    let anthropic = [get("input_tokens"), read, created];
    let anthropic = anthropic.iter().any(Option::is_some).then(|| anthropic.iter().flatten().sum::<u64>());
    let (input, output, total) =
        (get("prompt_tokens").or(anthropic), get("completion_tokens").or(get("output_tokens")), get("total_tokens"));
    let (mut input, mut output) = match (input, output, total) {
        (None, None, None) => return None,
        (None, None, Some(total)) => (total, 0),
        (None, Some(output), total) => (total.unwrap_or(0).saturating_sub(output), output),
        (Some(input), output, _) => (input, output.unwrap_or(0)),
    };
    let beyond = total.unwrap_or(0).saturating_sub(input + output);
    if get("prompt_audio_seconds").is_some_and(|seconds| seconds > 0) {
        input += beyond;
    } else {
        output += beyond;
    }
    let reasoning = detail(OUTPUT, "reasoning_tokens").or(get("reasoning_tokens")).unwrap_or(0);
    if reasoning > output {
        output += reasoning;
    }
    let cached = detail(INPUT, "cached_tokens").or(get("prompt_cache_hit_tokens")).or(read).or(get("cached_tokens"));
    let cached_input = cached.unwrap_or(0).min(input);
    let nested = |key: &str| {
        let details = usage.iter().filter(|(name, _)| INPUT.contains(&name.as_str()));
        let members = details.filter_map(|(_, details)| details.as_object()).flatten();
        let parts =
            members.filter(|(name, _)| ["cache_creation", "cache_creation_token_details"].contains(&name.as_str()));
        parts.filter_map(|(_, parts)| count(parts.as_object()?.get(key)?)).next_back()
    };
    let within = ["cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens", "created_cache_tokens"];
    let written = within.map(|key| detail(INPUT, key)).into_iter().max().flatten();
    let created = written.max(sum(PARTS.map(nested))).max(created).unwrap_or(0);
    Some(Usage {
        input,
        output,
        total: input + output,
        cached_input,
        cache_creation_input: created.min(input - cached_input),
        reasoning,
    })
}
