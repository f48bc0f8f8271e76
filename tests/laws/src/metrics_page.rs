//! The pages on which model servers publish their load.

use attache::affinity::{MetricNames, MetricsPage};

/// A page that is believed says what an engine can mean.
pub fn metrics_page(input: &[u8]) {
    for names in [MetricNames::vllm(), MetricNames::sglang(), MetricNames::triton_tensorrt_llm()] {
        let Ok(page) = MetricsPage::read(input, &names) else { continue };
        let load = page.scrape;
        assert!((0.0..=1e6).contains(&load.waiting) && (0.0..=1e6).contains(&load.running), "{load:?}");
        assert!((0.0..=1.0).contains(&load.kv_usage), "{load:?}");
        assert!(page.started.is_none_or(|started| started > 0.0), "{page:?}");
        assert!(page.counter.is_none_or(|counter| counter >= 0.0), "{page:?}");
    }
}
