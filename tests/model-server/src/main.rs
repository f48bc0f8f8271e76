//! The command line of the simulated model server.

use std::{
    io::{self, Write as _},
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use attache_model_server::{Config, ModelServer};
use clap::Parser;
use tokio::{
    select,
    signal::unix::{SignalKind, signal},
};

/// What `--help` says behind the options.
const PATHS_AND_HEADERS: &str = "\
Paths:
  POST /v1/chat/completions, /v1/completions, /v1/responses        whole or streamed
  POST /v1/messages, /v1/messages/count_tokens                     Anthropic's; under /anthropic as well
  POST /v1/embeddings, /score, /v1/score, /tokenize, /detokenize
  POST /rerank, /v1/rerank (Jina's form), /v2/rerank (Cohere's)
  POST /v1/images/generations, /edits, /variations                 JSON or a form
  POST /v1/audio/transcriptions, /translations, /speech
  GET  /v1/models, /health, /metrics
  GET, DELETE /sim/requests                                        the last exchanges; forget them
  PUT, DELETE /sim/fault      {\"fault\": \"status=503\", \"requests\": 2}: of the next two exchanges; clear it

Headers of a request:
  x-sim-answer-tokens: N      the answer's length; max_tokens may cut it
  x-sim-reasoning-tokens: N   so many of them are reasoning
  x-sim-event-tokens: N       so many tokens come in an event of a stream
  x-sim-unbounded: 1          max_tokens does not cut it
  x-sim-completion-tokens-only: 1
                              max_tokens is refused, as by OpenAI's reasoning models
  x-sim-tools: N              the answer calls so many of the request's tools
  x-sim-encode: CODING        gzip, br, zstd, deflate, raw-deflate; auto: the best that accept-encoding allows;
                              lie: says gzip and is plain; hidden-gzip: is gzip and does not say so
                              gzip-members, gzip-trailing, gzip-short: of many members, with something behind it,
                              without its last bytes
  x-sim-fault: EFFECTS        what goes wrong: effects from the list below, with commas between them

Effects:
  hang=MS                     nothing is answered for so long
  status=CODE                 an error, with retry-after=SECONDS if you like
  reset, reset-after=K        the connection is reset before the headers, after K events, half-way through a JSON answer
  truncate=K                  the body ends in good order within the event after K events, half-way through a JSON answer
  slow=MS                     a pause before every event
  no-done                     a stream without [DONE]
  endless=MS                  behind its last event a stream stays open, with a comment each MS
  error-after=K               after K events a stream says an error, in the form of its path, and ends
  no-usage, null-usage        no usage; a null in its place
  negative-usage, huge-usage  figures below zero; of 2^64 - 1
  usage-twice                 the usage comes twice, first with three times the figures
  big=BYTES                   the answer, or its first event, grows by so many bytes
  long-length=BYTES, short-length=BYTES
                              content-length of a whole answer claims so many bytes more, or fewer, than it has
  gzip                        content-encoding: gzip, though nobody asked for it
  garbage                     before the second event, bytes that are no UTF-8 and an event that is no JSON
  split=BYTES                 events are written in pieces of so many bytes
  no-space, multi-line, comments, bom, crlf, cr, mixed
                              forms of events that are right by the standard

A token is four bytes of a prompt, and one word of an answer; an uploaded file counts its bytes.";

/// A simulated model server: OpenAI's, Anthropic's and Cohere's paths, a prefix cache, prefill time, vLLM's metrics, faults on request.
#[derive(Debug, Parser)]
#[command(version, after_help = PATHS_AND_HEADERS)]
struct Options {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000")]
    listen: String,
    /// A model that is served; repeatable. Without one, any name is accepted.
    #[arg(long = "model", value_name = "NAME")]
    models: Vec<String>,
    /// The size of the prefix cache, in tokens.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    cache_tokens: u64,
    /// The size of a cache block, in tokens.
    #[arg(long, value_name = "N", default_value = "16")]
    block_tokens: NonZeroUsize,
    /// How many uncached prompt tokens are computed in a second.
    #[arg(long, value_name = "TOKENS_PER_SECOND", default_value = "10000")]
    prefill_rate: NonZeroU64,
    /// The time from one token of an answer to the next, in milliseconds; may be a fraction.
    #[arg(long, value_name = "MS", default_value = "20", value_parser = milliseconds)]
    time_per_output_token_ms: Duration,
    /// The length of an answer when the request does not set it, in tokens.
    #[arg(long, value_name = "N", default_value_t = 32)]
    answer_tokens: u64,
    /// The key that /v1 wants as a bearer token.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
}

impl From<Options> for Config {
    fn from(options: Options) -> Self {
        Self {
            listen: options.listen,
            models: options.models,
            cache_tokens: options.cache_tokens,
            block_tokens: options.block_tokens,
            prefill_tokens_per_second: options.prefill_rate,
            time_per_output_token: options.time_per_output_token_ms,
            answer_tokens: options.answer_tokens,
            api_key: options.api_key,
        }
    }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds: f64 = text.parse().map_err(|_| "not a number of milliseconds".to_owned())?;
    Duration::try_from_secs_f64(milliseconds / 1_000.0).map_err(|error| error.to_string())
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let options = Options::parse();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let server = ModelServer::start(options.into()).await?;
    // Whoever started the server may have closed the pipe; that is no reason to end.
    let _ = writeln!(io::stdout(), "listening on {}", server.url());
    select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    server.shutdown().await;
    Ok(())
}
