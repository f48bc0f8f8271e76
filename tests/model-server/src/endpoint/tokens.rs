//! `/tokenize` and `/detokenize`, as vLLM has them. By this server's rule a token is four bytes: its number is those, least significant first, so
//! that prompts of tokens and of text are the same.

use serde_json::{Value, json};

use super::{Answer, Exchange};
use crate::{dialect::ApiError, prompt::Prompt};

/// As vLLM says it of a model.
const MAX_MODEL_LEN: u64 = 131_072;

pub(super) async fn tokenize(exchange: &Exchange<'_>) -> Result<Answer, ApiError> {
    let fields = exchange.fields().await?;
    let prompt = match fields.value("messages") {
        Some(Value::Array(messages)) => {
            let tools = fields.value("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            Prompt::from_chat(tools, messages)
        }
        _ => Prompt::from_text(fields.text("prompt")?),
    };
    let tokens = prompt.token_numbers();
    let body = json!({"count": tokens.len(), "max_model_len": MAX_MODEL_LEN, "tokens": tokens, "token_strs": null});
    Ok(Answer::Json(body))
}

pub(super) async fn detokenize(exchange: &Exchange<'_>) -> Result<Answer, ApiError> {
    let fields = exchange.fields().await?;
    let wrong = || ApiError::malformed("`tokens` is no array of tokens").about("tokens");
    let tokens = fields.value("tokens").ok_or_else(wrong)?;
    let prompt = Prompt::from_tokens(tokens).ok_or_else(wrong)?;
    Ok(Answer::Json(json!({"prompt": prompt.to_text()})))
}
