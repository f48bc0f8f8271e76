//! Speech to text, and text to speech. An uploaded file counts its bytes as a prompt's; a second of it is [`BYTES_PER_SECOND`]. The sounds are not real.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::{Answer, Exchange};
use crate::{content::Words, dialect::ApiError, prompt::Prompt, sse::Event, usage::Usage};

/// 16,000 samples of two bytes.
const BYTES_PER_SECOND: usize = 32_000;

/// What a token of text sounds like, in bytes.
const BYTES_PER_SPOKEN_TOKEN: u64 = 1_000;

/// Longer speech is cut.
const MAX_SOUND_BYTES: usize = 64 * 1024 * 1024;

pub(super) async fn transcribe(exchange: &Exchange<'_>) -> Result<Answer, ApiError> {
    let fields = exchange.fields().await?;
    let file = fields.files().first().ok_or_else(|| ApiError::malformed("`file` is missing").about("file"))?;
    let sound = Prompt::from_bytes(file);
    let seconds = file.len().div_ceil(BYTES_PER_SECOND);
    let mut usage = exchange.compute(std::slice::from_ref(&sound)).await;
    usage.completion_tokens = exchange.answer_tokens()?;
    exchange.entry.generated(usage.completion_tokens);
    let words = Words::new(&sound, 0).take(usize::try_from(usage.completion_tokens).unwrap_or(usize::MAX));
    if fields.is_set("stream") {
        return Ok(Answer::Stream(stream::iter(transcript_events(words, usage)).boxed()));
    }
    let text: String = words.collect();
    Ok(match fields.option("response_format") {
        None | Some("json") => Answer::Json(json!({"text": text, "usage": usage_json(usage)})),
        Some("verbose_json") => {
            let segment = json!({
                "id": 0, "seek": 0, "start": 0.0, "end": seconds, "text": text, "tokens": [], "temperature": 0.0,
                "avg_logprob": -0.5, "compression_ratio": 1.0, "no_speech_prob": 0.0,
            });
            Answer::Json(json!({
                "task": "transcribe", "language": "english", "duration": seconds, "text": text, "segments": [segment],
                "usage": {"type": "duration", "seconds": seconds},
            }))
        }
        Some(_) => plain(text),
    })
}

/// `text`, `srt`, `vtt`: no JSON, and no usage.
fn plain(text: String) -> Answer {
    Answer::Bytes { content_type: "text/plain; charset=utf-8", bytes: (text + "\n").into() }
}

fn transcript_events(words: impl Iterator<Item = String>, usage: Usage) -> Vec<Event> {
    let mut text = String::new();
    let mut events = Vec::new();
    for word in words {
        text.push_str(&word);
        events.push(Event::named("transcript.text.delta", json!({"delta": word})));
    }
    let done = json!({"text": text, "usage": usage_json(usage)});
    events.extend([Event::named("transcript.text.done", done), Event::End]);
    events
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "type": "tokens",
        "input_tokens": usage.prompt_tokens,
        "input_token_details": {"text_tokens": 0, "audio_tokens": usage.prompt_tokens},
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total(),
    })
}

pub(super) async fn speak(exchange: &Exchange<'_>) -> Result<Answer, ApiError> {
    let fields = exchange.fields().await?;
    let prompt = Prompt::from_text(fields.text("input")?);
    let mut usage = exchange.compute(std::slice::from_ref(&prompt)).await;
    usage.completion_tokens = exchange.answer_tokens()?;
    exchange.entry.generated(usage.completion_tokens);
    let bytes = sound(&prompt, usage.completion_tokens * BYTES_PER_SPOKEN_TOKEN);
    if fields.option("stream_format") == Some("sse") {
        let pieces = bytes.chunks(1 + bytes.len() / 4);
        let deltas =
            pieces.map(|piece| Event::named("speech.audio.delta", json!({"audio": BASE64_STANDARD.encode(piece)})));
        let usage = json!({
            "input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens, "total_tokens": usage.total(),
        });
        let done = Event::named("speech.audio.done", json!({"usage": usage}));
        let events: Vec<Event> = deltas.chain([done, Event::End]).collect();
        return Ok(Answer::Stream(stream::iter(events).boxed()));
    }
    let content_type = match fields.option("response_format") {
        None | Some("mp3") => "audio/mpeg",
        Some("opus") => "audio/ogg",
        Some("aac") => "audio/aac",
        Some("flac") => "audio/flac",
        Some("wav") => "audio/wav",
        Some(_) => "audio/pcm",
    };
    Ok(Answer::Bytes { content_type, bytes })
}

/// Bytes that are a function of the text; most of them are no UTF-8.
fn sound(prompt: &Prompt, bytes: u64) -> Bytes {
    let seed = Words::new(prompt, 0).next().unwrap_or_default().into_bytes();
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).min(MAX_SOUND_BYTES);
    seed.iter().cycle().enumerate().map(|(place, byte)| byte.wrapping_add(place as u8) | 0x80).take(bytes).collect()
}
