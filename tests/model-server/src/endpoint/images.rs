//! Pictures: made of a prompt, changed, or varied. A picture costs as many tokens as an answer is long; an uploaded file counts its bytes as a
//! prompt's. The pictures are not real.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::{Answer, Exchange};
use crate::{content::Words, dialect::ApiError, envelope::Envelope, prompt::Prompt, sse::Event};

/// What every PNG begins with.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

pub(super) async fn answer(exchange: &Exchange<'_>) -> Result<Answer, ApiError> {
    let fields = exchange.fields().await?;
    // A variation has no prompt.
    let text = Prompt::from_text(fields.option("prompt").unwrap_or_default());
    if text.tokens() == 0 && fields.files().is_empty() {
        return Err(ApiError::malformed("`prompt` is missing").about("prompt"));
    }
    let pictures: Vec<Prompt> = fields.files().iter().map(|file| Prompt::from_bytes(file)).collect();
    let count = fields.number("n").unwrap_or(1).clamp(1, 10);
    let seed = Prompt::joined([&text].into_iter().chain(&pictures));
    let text_tokens = exchange.compute(&[text]).await.prompt_tokens;
    let image_tokens = exchange.compute(&pictures).await.prompt_tokens;
    let output_tokens = exchange.answer_tokens()? * count;
    exchange.entry.generated(output_tokens);
    let usage = json!({
        "total_tokens": text_tokens + image_tokens + output_tokens,
        "input_tokens": text_tokens + image_tokens,
        "output_tokens": output_tokens,
        "input_tokens_details": {"text_tokens": text_tokens, "image_tokens": image_tokens},
    });
    let envelope = exchange.envelope(fields.text("model")?);
    if fields.is_set("stream") {
        let partial = fields.number("partial_images").unwrap_or_default().min(3);
        return Ok(Answer::Stream(stream::iter(events(&envelope, &seed, partial, usage)).boxed()));
    }
    let data = (0..count).map(|index| match fields.option("response_format") {
        Some("url") => json!({"url": format!("https://images.example/{}/{index}.png", envelope.id("img-"))}),
        _ => json!({"b64_json": picture(&seed, index)}),
    });
    let data: Vec<Value> = data.collect();
    // As the models of the first generation, which answer with URLs, give none.
    let usage = if fields.option("response_format") == Some("url") { Value::Null } else { usage };
    let mut body = json!({"created": envelope.created, "data": data, "output_format": "png", "size": "1024x1024"});
    if let Some(fields) = body.as_object_mut().filter(|_| !usage.is_null()) {
        fields.insert("usage".to_owned(), usage);
    }
    Ok(Answer::Json(body))
}

fn events(envelope: &Envelope, seed: &Prompt, partial: u64, usage: Value) -> Vec<Event> {
    let base = |picture: String| {
        json!({
            "b64_json": picture, "created_at": envelope.created, "size": "1024x1024", "quality": "high",
            "background": "opaque", "output_format": "png",
        })
    };
    let mut events = Vec::new();
    for index in 0..partial {
        let mut body = base(picture(seed, index + 1));
        if let Some(fields) = body.as_object_mut() {
            fields.insert("partial_image_index".to_owned(), json!(index));
        }
        events.push(Event::named("image_generation.partial_image", body));
    }
    let mut body = base(picture(seed, 0));
    if let Some(fields) = body.as_object_mut() {
        fields.insert("usage".to_owned(), usage);
    }
    events.extend([Event::named("image_generation.completed", body), Event::End]);
    events
}

/// A PNG's first bytes and some words, in base64.
fn picture(seed: &Prompt, index: u64) -> String {
    let words: String = Words::new(seed, index).take(12).collect();
    BASE64_STANDARD.encode([PNG, words.as_bytes()].concat())
}
