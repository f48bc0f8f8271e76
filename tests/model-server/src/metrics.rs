//! What the server counts, and its Prometheus page under vLLM's names.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::Config;

/// The server's counters and gauges.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Prompts that wait for their prefill.
    pub(crate) waiting: Gauge,
    /// Prompts in prefill, and answers being generated.
    pub(crate) running: Gauge,
    /// Tokens that running sequences occupy in the cache.
    pub(crate) occupied_tokens: Gauge,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generated_tokens: Counter,
    /// Prompt tokens looked up in the prefix cache, and those found. vLLM counts tokens here, not look-ups.
    pub(crate) queried_tokens: Counter,
    pub(crate) hit_tokens: Counter,
}

impl Figures {
    /// The Prometheus page, text format 0.0.4. The exchanges that the journal has counted are on it as well.
    pub(crate) fn page(&self, config: &Config, exchanges: u64) -> String {
        let block = config.block_tokens;
        let blocks = config.cache_blocks();
        let model = config.primary_model();
        // As vLLM: cached blocks that no running sequence uses count as free.
        let usage = (self.occupied_tokens.value() as f64 / config.cache_tokens.max(1) as f64).min(1.0);
        let mut page = String::new();
        let mut add = |kind: &str, name: &str, labels: String, value: String| {
            // Writing to a `String` cannot fail.
            let _ = writeln!(page, "# TYPE {name} {kind}\n{name}{labels} {value}");
        };
        let labels = format!("{{engine=\"0\",model_name=\"{}\"}}", escape(model));
        let gauges = [
            ("vllm:num_requests_running", self.running.value().to_string()),
            ("vllm:num_requests_waiting", self.waiting.value().to_string()),
            ("vllm:kv_cache_usage_perc", usage.to_string()),
        ];
        for (name, value) in gauges {
            add("gauge", name, labels.clone(), value);
        }
        let counters = [
            ("vllm:prompt_tokens_total", &self.prompt_tokens),
            ("vllm:generation_tokens_total", &self.generated_tokens),
            ("vllm:prefix_cache_queries_total", &self.queried_tokens),
            ("vllm:prefix_cache_hits_total", &self.hit_tokens),
        ];
        for (name, counter) in counters {
            add("counter", name, labels.clone(), counter.value().to_string());
        }
        let cache_labels = format!(
            "{{block_size=\"{block}\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"{blocks}\"}}"
        );
        add("gauge", "vllm:cache_config_info", cache_labels, "1".to_owned());
        add("counter", "sim_requests_total", String::new(), exchanges.to_string());
        page
    }
}

/// A figure that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A figure that is the sum of what is held at the moment.
#[derive(Debug, Default)]
pub(crate) struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Adds the amount for as long as the result lives.
    pub(crate) fn hold(&self, amount: u64) -> Held {
        self.0.fetch_add(amount, Ordering::Relaxed);
        Held { gauge: Arc::clone(&self.0), amount }
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A part of a gauge; gone when dropped, so that a client who leaves cannot leave it behind.
#[derive(Debug)]
pub(crate) struct Held {
    gauge: Arc<AtomicU64>,
    amount: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gauge.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// Escapes a label's value.
fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_vllms_names_with_the_model_as_a_label() {
        let figures = Figures::default();
        let config = Config { models: vec!["a\"b".to_owned()], cache_tokens: 1_600, ..Config::default() };
        figures.hit_tokens.add(32);
        let _running = figures.running.hold(1);
        let _occupied = figures.occupied_tokens.hold(400);
        let page = figures.page(&config, 7);
        for line in [
            "# TYPE vllm:num_requests_running gauge",
            "vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"b\"} 1",
            "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"a\\\"b\"} 0.25",
            "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"a\\\"b\"} 32",
            "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"100\"} 1",
            "sim_requests_total 7",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in:\n{page}");
        }
    }

    #[test]
    fn a_gauge_falls_when_its_part_is_dropped() {
        let gauge = Gauge::default();
        let first = gauge.hold(3);
        let _second = gauge.hold(4);
        drop(first);
        assert_eq!(gauge.value(), 4);
    }
}
