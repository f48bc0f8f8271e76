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

/// A simulated model server: OpenAI's paths, a prefix cache, prefill time, vLLM's metrics, faults on request.
#[derive(Debug, Parser)]
#[command(version)]
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
