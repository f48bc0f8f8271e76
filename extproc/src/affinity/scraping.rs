//! What an endpoint's metrics page is asked for: where it is, how often it is read, and what the figures are called there.
//!
//! The names are those of the engines' own documents: <https://docs.vllm.ai/en/stable/usage/metrics/>,
//! <https://docs.sglang.io/references/production_metrics.html>, and the statistics of Triton's TensorRT-LLM backend.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// How metrics pages are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scraping {
    /// The path of the page; begins with a slash.
    pub path: Arc<str>,
    /// Where the page is not at the port of the endpoint: Triton has one of its own for it. Unix sockets have no ports.
    pub port: Option<u16>,
    /// How often each endpoint is asked.
    pub interval: Duration,
    /// How long it may take to answer, to the last byte.
    pub timeout: Duration,
    /// What the figures are called.
    pub names: MetricNames,
}

impl Default for Scraping {
    fn default() -> Self {
        Self {
            path: Arc::from("/metrics"),
            port: None,
            interval: Duration::from_secs(1),
            timeout: Duration::from_millis(500),
            names: MetricNames::vllm(),
        }
    }
}

/// What an engine calls its figures. Where there are several names, each page has one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricNames {
    /// Requests that wait for their prefill; summed over all label sets.
    pub waiting: Vec<Series>,
    /// Requests in prefill or decode; summed.
    pub running: Vec<Series>,
    /// The share of the KV cache that running requests occupy, from 0 to 1; the highest counts.
    pub kv_usage: Vec<Series>,
    /// Where the page says how much the KV cache has room for; summed.
    pub capacity: Option<Capacity>,
    /// A counter that begins at 0 with the engine; summed. It tells of restarts where the page has no
    /// `process_start_time_seconds`.
    pub counter: Option<Series>,
}

/// How a page says what the KV cache has room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Capacity {
    /// As labels of a series: how many blocks, and tokens in each.
    Labels {
        /// The series; its value means nothing.
        series: Series,
        /// The label with the number of blocks.
        blocks: Arc<str>,
        /// The label with the tokens of a block.
        block_tokens: Arc<str>,
    },
    /// As two figures: how many blocks, and tokens in each.
    Blocks {
        /// The number of blocks.
        blocks: Series,
        /// The tokens of a block.
        block_tokens: Series,
    },
    /// As a number of tokens.
    Tokens(Series),
}

impl MetricNames {
    /// vLLM's.
    pub fn vllm() -> Self {
        Self {
            waiting: vec![Series::named("vllm:num_requests_waiting")],
            running: vec![Series::named("vllm:num_requests_running")],
            // The second until 0.9.
            kv_usage: vec![Series::named("vllm:kv_cache_usage_perc"), Series::named("vllm:gpu_cache_usage_perc")],
            capacity: Some(Capacity::Labels {
                series: Series::named("vllm:cache_config_info"),
                blocks: Arc::from("num_gpu_blocks"),
                block_tokens: Arc::from("block_size"),
            }),
            counter: Some(Series::named("vllm:prompt_tokens_total")),
        }
    }

    /// SGLang's, with `--enable-metrics`.
    pub fn sglang() -> Self {
        Self {
            waiting: vec![Series::named("sglang:num_queue_reqs")],
            running: vec![Series::named("sglang:num_running_reqs")],
            kv_usage: vec![Series::named("sglang:token_usage")],
            capacity: Some(Capacity::Tokens(Series::named("sglang:max_total_num_tokens"))),
            counter: Some(Series::named("sglang:prompt_tokens_total")),
        }
    }

    /// Those of Triton's TensorRT-LLM backend. The page is at a port of its own, 8002 by default.
    pub fn triton_tensorrt_llm() -> Self {
        let requests = |kind| Series::labelled("nv_trt_llm_request_metrics", "request_type", kind);
        let blocks = |kind| Series::labelled("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", kind);
        Self {
            waiting: vec![requests("waiting")],
            running: vec![requests("scheduled")],
            kv_usage: vec![blocks("fraction")],
            capacity: Some(Capacity::Blocks { blocks: blocks("max"), block_tokens: blocks("tokens_per") }),
            counter: Some(Series::named("nv_inference_request_success")),
        }
    }
}

/// A figure of a page: all series of one name or, of those, the ones that have a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// The metric's name.
    pub name: Arc<str>,
    /// A label and the value that it must have.
    pub label: Option<(Arc<str>, Arc<str>)>,
}

impl Series {
    fn named(name: &str) -> Self {
        Self { name: Arc::from(name), label: None }
    }

    fn labelled(name: &str, label: &str, value: &str) -> Self {
        Self { name: Arc::from(name), label: Some((Arc::from(label), Arc::from(value))) }
    }
}

/// A text that names no series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this is not the name of a metric, `name` or `name{{label=value}}`")]
pub struct NotASeries;

impl FromStr for Series {
    type Err = NotASeries;

    /// Reads `name` or `name{label=value}`, as the endpoint pickers of Kubernetes have it; the value may be in quotes.
    fn from_str(text: &str) -> Result<Self, NotASeries> {
        let is_name = |text: &str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '.' | '-');
            text.chars().all(is_part) && text.starts_with(|c: char| !c.is_ascii_digit())
        };
        let Some((name, rest)) = text.split_once('{') else {
            return if is_name(text) { Ok(Self::named(text)) } else { Err(NotASeries) };
        };
        let (label, value) = rest.strip_suffix('}').and_then(|rest| rest.split_once('=')).ok_or(NotASeries)?;
        let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
        let is_value = !value.is_empty() && !value.contains(['"', '\\', '{', '}', ',']);
        if is_name(name) && is_name(label) && is_value {
            Ok(Self::labelled(name, label, value))
        } else {
            Err(NotASeries)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_a_name_and_maybe_a_label() {
        let read = |text: &str| text.parse::<Series>();
        assert_eq!(read("vllm:num_requests_waiting"), Ok(MetricNames::vllm().waiting.remove(0)));
        let waiting = MetricNames::triton_tensorrt_llm().waiting.remove(0);
        assert_eq!(read("nv_trt_llm_request_metrics{request_type=waiting}"), Ok(waiting.clone()));
        assert_eq!(read("nv_trt_llm_request_metrics{request_type=\"waiting\"}"), Ok(waiting));
        for wrong in ["", "a b", "1a", "a{", "a{b}", "a{b=}", "a{=c}", "{b=c}", "a{b=c,d=e}", "a{b=c} ", "ä"] {
            assert_eq!(read(wrong), Err(NotASeries), "{wrong}");
        }
    }
}
