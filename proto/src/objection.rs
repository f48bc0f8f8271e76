//! What a model server says against the bound of an answer with which it refuses a request: that it has no such field, or how much there
//! may be at most.
//!
//! Servers quote their clients in what they say. So only what stands where no client can write is believed: members of their own, and
//! how a message begins.

use serde_json::Value;

use crate::request::BoundName;

/// What is wrong with a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objection {
    /// The server, or this model of it, has no field of that name.
    Name,
    /// The model answers no more than so many tokens.
    MoreThanAnswers(u64),
    /// It and the prompt are more than the model's context of so many tokens.
    MoreThanContext(u64),
}

/// Fewer are no ceiling of any model, and no bound that is worth an answer.
const FEWEST: u64 = 16;

impl Objection {
    /// Reads the body of a refusal of a request that had `tokens` in this field.
    pub fn read(field: BoundName, tokens: u64, body: &[u8]) -> Option<Self> {
        let document: Value = serde_json::from_slice(body).ok()?;
        // Google's servers put it in a list.
        let document = document.as_array().and_then(|list| list.first()).unwrap_or(&document);
        let inner = ["error", "message"].into_iter().filter_map(|name| document.get(name));
        let members: Vec<&Value> = [document].into_iter().chain(inner).collect();
        members.iter().find_map(|member| in_members(field, tokens, member)).or_else(|| {
            let texts = members.iter().flat_map(|member| texts(member));
            texts.map(without_exceptions).find_map(|text| in_text(field, tokens, text))
        })
    }
}

fn texts(member: &Value) -> impl Iterator<Item = &str> {
    let named = ["message", "error", "detail"].into_iter().filter_map(|name| member.get(name));
    std::iter::once(member).chain(named).filter_map(Value::as_str)
}

/// OpenAI names the field and the fault, pydantic the place and the rule.
fn in_members(field: BoundName, tokens: u64, member: &Value) -> Option<Objection> {
    let text = |name: &str| member.get(name).and_then(Value::as_str);
    if text("param") == Some(field.as_str())
        && matches!(text("code"), Some("unsupported_parameter" | "unknown_parameter"))
    {
        return Some(Objection::Name);
    }
    member.get("detail")?.as_array()?.iter().find_map(|detail| {
        let place: Vec<_> = detail.get("loc")?.as_array()?.iter().map(Value::as_str).collect();
        let is_here = matches!(place.as_slice(), [Some(name)] | [Some("body"), Some(name)] if *name == field.as_str());
        let most = || detail.get("ctx")?.get("le")?.as_u64();
        match detail.get("type").and_then(Value::as_str).filter(|_| is_here)? {
            "extra_forbidden" | "value_error.extra" => Some(Objection::Name),
            "less_than_equal" => most().filter(|most| (FEWEST..tokens).contains(most)).map(Objection::MoreThanAnswers),
            _ => None,
        }
    })
}

/// What gateways on the way put before a message: the names of exceptions.
fn without_exceptions(text: &str) -> &str {
    const MOST: usize = 4;
    let mut text = text.trim();
    for _ in 0..MOST {
        let separators = [": ", " - "].into_iter().filter_map(|separator| text.split_once(separator));
        let Some((first, rest)) = separators.min_by_key(|(first, _)| first.len()) else { break };
        let is_name = |word: &str| word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte));
        let is_exception = first.ends_with("Error") || first.ends_with("Exception");
        if !is_exception || !first.split(' ').all(is_name) {
            break;
        }
        text = rest.trim_start();
    }
    text
}

fn in_text(field: BoundName, tokens: u64, text: &str) -> Option<Objection> {
    let start: String = text.chars().take(LONGEST_CHARACTERS).collect();
    let text = start.to_ascii_lowercase();
    if is_about_the_name(field, &text) {
        return Some(Objection::Name);
    }
    if let Some(rest) = CONTEXT.iter().find_map(|phrase| text.split_once(phrase)).map(|(_, rest)| rest)
        && (begins_with_any(&text, &OF_CONTEXT) || begins_with_bound(&text))
    {
        let context = numbers(rest).next();
        // Where the prompt alone is too long, nothing is said of the answer.
        let is_about_the_bound = numbers(&text).any(|number| number == tokens);
        return context.filter(|context| *context >= FEWEST && is_about_the_bound).map(Objection::MoreThanContext);
    }
    if begins_with_bound(&text) || begins_with_any(&text, &OF_ANSWERS) {
        let most = numbers(&text).filter(|number| (FEWEST..tokens).contains(number)).max();
        return most.map(Objection::MoreThanAnswers);
    }
    None
}

/// Longer messages have said it by then.
const LONGEST_CHARACTERS: usize = 512;

/// What stands right before the name of a field that a server does not know, at the beginning of a message.
const BEFORE_THE_NAME: [&str; 21] = [
    "unsupported parameter: ",
    "unsupported parameter ",
    "unsupported parameter(s): ",
    "unsupported parameters: ",
    "unknown parameter: ",
    "unknown parameter ",
    "unexpected parameter: ",
    "unrecognized parameter: ",
    "unrecognized request argument supplied: ",
    "unrecognized request arguments supplied: ",
    "unrecognized key(s) in object: ",
    "unknown field: ",
    "unknown field ",
    "unexpected field: ",
    "json: unknown field ",
    "extra inputs are not permitted: ",
    "additional properties are not allowed (",
    "invalid json payload received. unknown name ",
    "failed to deserialize the json body into the target type: unknown field ",
    "malformed input request: #: extraneous key ",
    "[{'type': 'extra_forbidden', 'loc': ('body', ",
];

/// What stands before and after it, where it begins the message or all but.
const AROUND_THE_NAME: [&str; 5] = ["", "property ", "parameter ", "the parameter ", "argument "];
const AFTER_THE_NAME: [&str; 9] = [
    ": extra inputs are not permitted",
    ": extra fields not permitted",
    " : property unsupported",
    " is unsupported",
    " is not supported",
    " is not a supported",
    " is not permitted",
    " is not allowed",
    " is not recognized",
];

fn is_about_the_name(field: BoundName, text: &str) -> bool {
    let named = |rest: &str| -> Option<String> {
        let (quote, name) = match rest.chars().next()? {
            quote @ ('\'' | '"' | '`') => (Some(quote), rest.get(1..)?),
            '[' => (Some(']'), rest.get(1..)?),
            _ => (None, rest),
        };
        // Google's servers write it without underscores.
        let run_together = field.as_str().replace('_', "");
        let rest = name.strip_prefix(field.as_str()).or_else(|| name.strip_prefix(&*run_together))?;
        match quote {
            Some(quote) => rest.strip_prefix(quote).map(str::to_owned),
            None => (!rest.starts_with(|next: char| next.is_ascii_alphanumeric() || "_.[-".contains(next)))
                .then(|| rest.to_owned()),
        }
    };
    // Google's servers say where it is, if it is not at the top.
    let is_at_the_top = |rest: String| !rest.trim_start().starts_with("at ");
    let before = |phrase: &&str| text.strip_prefix(*phrase).and_then(named).is_some_and(is_at_the_top);
    let around = |phrase: &&str| {
        text.strip_prefix(*phrase).and_then(named).is_some_and(|rest| begins_with_any(&rest, &AFTER_THE_NAME))
    };
    BEFORE_THE_NAME.iter().any(before) || AROUND_THE_NAME.iter().any(around)
}

/// What stands right before the length of a context.
const CONTEXT: [&str; 7] = [
    "maximum context length is ",
    "maximum context length of ",
    "context length is only ",
    "context window of ",
    "max_model_len=",
    "max_model_len = ",
    "`max_new_tokens` must be <= ",
];

/// How messages about it begin.
const OF_CONTEXT: [&str; 4] = [
    "this model's maximum context length",
    "requested token count exceeds the model's maximum context length",
    "input validation error: `inputs` tokens + `max_new_tokens`",
    "the model's context length is only",
];

/// How messages about the most that a model answers begin, besides with the bound's name.
const OF_ANSWERS: [&str; 4] = [
    "unable to submit request because it has a maxoutputtokens value of ",
    "the maximum tokens you requested exceeds the model limit of ",
    "too many tokens: max tokens must be less than or equal to ",
    "range of max_tokens should be ",
];

/// Whether a message is about a bound's value from its first words on. Which of its names a server uses is its own choice.
fn begins_with_bound(text: &str) -> bool {
    const NAMES: [&str; 5] =
        ["max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "max tokens"];
    let text = text.strip_prefix("invalid ").unwrap_or(text);
    let text = text.trim_start_matches(['\'', '"', '`']);
    begins_with_any(text, &NAMES)
}

fn begins_with_any(text: &str, phrases: &[&str]) -> bool {
    phrases.iter().any(|phrase| text.starts_with(phrase))
}

/// Whole numbers that stand by themselves, not in a model's name; of a range that ends before its last, the one before that.
fn numbers(text: &str) -> impl Iterator<Item = u64> {
    let is_separator = |letter: char| !letter.is_ascii_alphanumeric() && !"-_".contains(letter);
    let mut words = text.split(is_separator).filter(|word| !word.is_empty()).peekable();
    std::iter::from_fn(move || {
        loop {
            let number = words.next()?.parse::<u64>();
            if let Ok(number) = number {
                return Some(if words.peek() == Some(&"exclusive") { number.saturating_sub(1) } else { number });
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(field: BoundName, body: &Value) -> Option<Objection> {
        Objection::read(field, 4_096, body.to_string().as_bytes())
    }

    fn says(message: &str) -> Value {
        json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": null}})
    }

    #[test]
    fn a_field_that_a_server_does_not_have_is_known_by_the_words_of_many_servers() {
        let unsupported = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
        for body in [
            json!({"error": {"message": unsupported, "type": "invalid_request_error", "param": "max_tokens", "code": "unsupported_parameter"}}),
            says(unsupported),
            says("Unrecognized request argument supplied: max_tokens"),
            says("Unknown parameter: 'max_tokens'."),
            says("property 'max_tokens' is unsupported"),
            says("'max_tokens' : property unsupported"),
            says("`max_tokens` is not supported with this model"),
            says(
                "litellm.BadRequestError: AzureException BadRequestError - Unsupported parameter: 'max_tokens' is not supported",
            ),
            json!([{"error": {"code": 400, "status": "INVALID_ARGUMENT",
                "message": "Invalid JSON payload received. Unknown name \"max_tokens\": Cannot find field."}}]),
            json!({"error": {"message": "Invalid JSON payload received. Unknown name \"maxTokens\": Cannot find field."}}),
            json!({"type": "error", "error": {"type": "invalid_request_error",
                "message": "max_tokens: Extra inputs are not permitted"}}),
            json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "max_tokens"],
                "msg": "Extra inputs are not permitted", "input": 4_096}]}),
            json!({"object": "error", "type": "invalid_request_error", "message": {"detail": [
                {"type": "extra_forbidden", "loc": ["body", "max_tokens"], "msg": "Extra inputs are not permitted"}]}}),
            json!({"object": "error", "type": "BadRequestError", "code": 400, "message":
                "[{'type': 'extra_forbidden', 'loc': ('body', 'max_tokens'), 'msg': 'Extra inputs are not permitted', 'input': 4096}]"}),
            json!({"message": "Malformed input request: #: extraneous key [max_tokens] is not permitted, please reformat"}),
            json!({"error": "json: unknown field \"max_tokens\""}),
            json!({"detail": "Unsupported parameter: max_tokens"}),
            says(
                "Failed to deserialize the JSON body into the target type: unknown field `max_tokens`, expected one of `messages`, \
                  `max_completion_tokens` at line 1 column 9",
            ),
        ] {
            assert_eq!(read(BoundName::MaxTokens, &body), Some(Objection::Name), "{body}");
            assert_eq!(read(BoundName::MaxCompletionTokens, &body), None, "{body}");
        }
    }

    #[test]
    fn what_a_client_can_have_a_server_say_is_not_believed() {
        let quoted = "Unsupported parameter: 'max_tokens' is not supported with this model.";
        for body in [
            says(&format!("Invalid value: '{quoted}'. Supported values are: 'system', 'user'.")),
            says(&format!("Invalid role {quoted}")),
            says("Unknown parameter: 'messages[0].max_tokens'."),
            says("Unknown parameter: 'max_tokens.x'."),
            says("Unknown parameter: 'max_tokens_to_sample'."),
            says("Unrecognized request argument supplied: max_tokens_x"),
            says("messages.0.max_tokens: Extra inputs are not permitted"),
            says("Invalid JSON payload received. Unknown name \"max_tokens\" at 'messages[0]': Cannot find field."),
            says("max_tokens: 4096 is not a multiple of three"),
            says("`max_tokens` must be greater than `thinking.budget_tokens`."),
            json!({"error": {"message": "bad", "param": "max_tokens", "code": "invalid_type"}}),
            json!({"error": {"message": "bad", "param": "messages", "code": "unsupported_parameter"}}),
            json!({"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": quoted}]}),
            json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "messages", 0, "max_tokens"], "msg": "x"}]}),
            json!({"detail": [{"type": "int_parsing", "loc": ["body", "max_tokens"], "msg": "x"}]}),
            says("This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."),
            says("invalid role: This model's maximum context length is 20 tokens"),
            json!({"error": {"message": {"deep": quoted}}}),
            json!("text"),
            json!([]),
            json!(null),
        ] {
            assert_eq!(read(BoundName::MaxTokens, &body), None, "{body}");
        }
        assert_eq!(Objection::read(BoundName::MaxTokens, 1, b"<html>Unsupported parameter: 'max_tokens'"), None);
        assert_eq!(Objection::read(BoundName::MaxTokens, 1, b""), None);
    }

    #[test]
    fn how_much_a_model_answers_is_read_from_the_words_of_many_servers() {
        for (message, most) in [
            (
                "max_tokens is too large: 4096. This model supports at most 2048 completion tokens, whereas you provided 4096.",
                2_048,
            ),
            (
                "max_tokens: 4096 > 1024, which is the maximum allowed number of output tokens for claude-3-20240229",
                1_024,
            ),
            (
                "`max_tokens` must be less than or equal to `2048`, the maximum value for `max_tokens` is less than the `context_window`",
                2_048,
            ),
            ("Invalid max_tokens value, the valid range of max_tokens is [1, 2000]", 2_000),
            ("Range of max_tokens should be [1, 2000]", 2_000),
            ("<400> InternalError.Algo.InvalidParameter: Range of max_tokens should be [1, 2000]", 0),
            (
                "Unable to submit request because it has a maxOutputTokens value of 4096 but the supported range is from 1 (inclusive) to 2049 (exclusive). Update the value and try again.",
                2_048,
            ),
            (
                "The maximum tokens you requested exceeds the model limit of 3000. Try again with a maximum tokens value that is lower than 3000.",
                3_000,
            ),
            (
                "too many tokens: max tokens must be less than or equal to 4000, the maximum output for this model - received 4096.",
                4_000,
            ),
            ("max_tokens must be at least 8", 0),
            ("max_tokens is too large: 4096.", 0),
        ] {
            let read = read(BoundName::MaxTokens, &says(message));
            assert_eq!(read, Some(Objection::MoreThanAnswers(most)).filter(|_| most > 0), "{message}");
        }
        let pydantic =
            json!({"detail": [{"type": "less_than_equal", "loc": ["body", "max_tokens"], "ctx": {"le": 512}}]});
        assert_eq!(read(BoundName::MaxTokens, &pydantic), Some(Objection::MoreThanAnswers(512)));
    }

    #[test]
    fn how_long_a_context_is_is_read_from_the_words_of_many_servers() {
        for message in [
            "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (4904 in the messages, 4096 in the completion). Please reduce the length of the messages or completion.",
            "'max_tokens' or 'max_completion_tokens' is too large: 4096. This model's maximum context length is 8192 tokens and your request has 5000 input tokens (4096 > 8192 - 5000).",
            "max_tokens=4096 cannot be greater than max_model_len=8192. Please request fewer output tokens.",
            "Requested token count exceeds the model's maximum context length of 8192 tokens. You requested a total of 9000 tokens: 4904 tokens from the input messages and 4096 tokens for the completion.",
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 5000 `inputs` tokens and 4096 `max_new_tokens`",
        ] {
            let read = read(BoundName::MaxTokens, &says(message));
            assert_eq!(read, Some(Objection::MoreThanContext(8_192)), "{message}");
        }
    }
}
