//! What a metrics page says, in Prometheus's text format. It may say anything: nothing is taken over that no engine could mean.
//!
//! <https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format>

use std::borrow::Cow;

use thiserror::Error;

use super::load::Scrape;
use super::scraping::{Capacity, MetricNames, Series};

/// When the process began, in seconds since 1970; Prometheus's client libraries add it to pages.
const STARTED: &str = "process_start_time_seconds";
/// No engine has more requests, waiting or running.
const MOST_REQUESTS: f64 = 1e6;
/// A share that is above 1 by rounding.
const FULL: f64 = 1.001;
/// No cache has room for more tokens: a hundred times what a rack of GPUs has.
const MOST_TOKENS: f64 = 1e11;

/// What a page says.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MetricsPage {
    /// The load.
    pub scrape: Scrape,
    /// When the process began, in seconds since 1970.
    pub started: Option<f64>,
    /// A counter that began at 0 with the engine.
    pub counter: Option<f64>,
}

/// Why a page is not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PageError {
    /// It is no text.
    #[error("the page is no text")]
    NotText,
    /// It does not say how many requests wait.
    #[error("the page does not say how many requests wait")]
    Missing,
    /// A figure is one that no engine can mean.
    #[error("the page has figures that cannot be")]
    Implausible,
}

impl MetricsPage {
    /// Reads a page.
    ///
    /// # Errors
    /// [`PageError`] when it is not to be believed. Lines that are broken are passed over, as are lines of no interest.
    pub fn read(page: &[u8], names: &MetricNames) -> Result<Self, PageError> {
        let page = std::str::from_utf8(page).map_err(|_| PageError::NotText)?;
        let samples = page.lines().filter_map(Sample::read);
        let samples = Samples(samples.filter(|sample| sample.name == STARTED || names.have(sample.name)).collect());
        let requests = |series: &[Series]| match samples.sum_of_any(series) {
            Some(sum) if !(0.0..=MOST_REQUESTS).contains(&sum) => Err(PageError::Implausible),
            sum => Ok(sum),
        };
        let kv_usage = names.kv_usage.iter().find_map(|series| samples.max(series)).unwrap_or(0.0);
        if !(0.0..=FULL).contains(&kv_usage) {
            return Err(PageError::Implausible);
        }
        Ok(Self {
            scrape: Scrape {
                waiting: requests(&names.waiting)?.ok_or(PageError::Missing)?,
                running: requests(&names.running)?.unwrap_or(0.0),
                kv_usage: kv_usage.min(1.0),
                capacity_tokens: names.capacity.as_ref().and_then(|capacity| samples.capacity(capacity)),
            },
            started: samples.values(|sample| sample.name == STARTED).reduce(worse).filter(|started| *started > 0.0),
            counter: names.counter.as_ref().and_then(|series| samples.sum(series)).filter(|sum| *sum >= 0.0),
        })
    }
}

impl MetricNames {
    fn have(&self, name: &str) -> bool {
        let capacity: [Option<&Series>; 2] = match &self.capacity {
            Some(Capacity::Labels { series, .. } | Capacity::Tokens(series)) => [Some(series), None],
            Some(Capacity::Blocks { blocks, block_tokens }) => [Some(blocks), Some(block_tokens)],
            None => [None, None],
        };
        let figures = self.waiting.iter().chain(&self.running).chain(&self.kv_usage).chain(&self.counter);
        figures.chain(capacity.into_iter().flatten()).any(|series| *series.name == *name)
    }
}

/// The greater of two, and not a number where either is not.
fn worse(one: f64, other: f64) -> f64 {
    if one.is_nan() || one > other { one } else { other }
}

struct Samples<'a>(Vec<Sample<'a>>);

impl<'a> Samples<'a> {
    fn values(&self, wanted: impl Fn(&Sample<'a>) -> bool) -> impl Iterator<Item = f64> {
        self.0.iter().filter(move |sample| wanted(sample)).map(|sample| sample.value)
    }

    fn sum(&self, series: &Series) -> Option<f64> {
        self.values(|sample| sample.is_of(series)).reduce(|sum, value| sum + value)
    }

    fn max(&self, series: &Series) -> Option<f64> {
        self.values(|sample| sample.is_of(series)).reduce(worse)
    }

    /// Of the first of the names that the page has. A value below 0 makes the sum one.
    fn sum_of_any(&self, names: &[Series]) -> Option<f64> {
        let series = names.iter().find(|series| self.0.iter().any(|sample| sample.is_of(series)))?;
        let is_negative = self.values(|sample| sample.is_of(series)).any(|value| value < 0.0);
        if is_negative { Some(-1.0) } else { self.sum(series) }
    }

    fn capacity(&self, capacity: &Capacity) -> Option<u64> {
        let tokens = match capacity {
            Capacity::Labels { series, blocks, block_tokens } => {
                let number = |sample: &Sample<'_>, label| sample.label(label)?.parse::<f64>().ok();
                let of_engine = |sample| Some(number(sample, blocks)? * number(sample, block_tokens)?);
                let engines = self.0.iter().filter(|sample| sample.is_of(series));
                engines.filter_map(of_engine).reduce(|sum, tokens| sum + tokens)?
            }
            Capacity::Blocks { blocks, block_tokens } => self.sum(blocks)? * self.max(block_tokens)?,
            Capacity::Tokens(series) => self.sum(series)?,
        };
        // An engine that does not know yet says 0, or nothing that is a number.
        (1.0..=MOST_TOKENS).contains(&tokens).then_some(tokens as u64)
    }
}

/// One line: `name{label="value"} 1.5`, maybe with a timestamp.
struct Sample<'a> {
    name: &'a str,
    /// What is between the braces.
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let line = line.trim();
        if line.starts_with('#') {
            return None;
        }
        let (name, rest) = line.split_at_checked(line.find(['{', ' ', '\t'])?)?;
        let rest = rest.trim_start();
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_at_checked(end_of_labels(rest)?)?,
            None => ("", rest),
        };
        let value = rest.trim_start_matches('}').split_ascii_whitespace().next()?.parse().ok()?;
        Some(Self { name, labels, value })
    }

    fn is_of(&self, series: &Series) -> bool {
        *self.name == *series.name
            && series
                .label
                .as_ref()
                .is_none_or(|(label, value)| self.label(label).is_some_and(|found| found == **value))
    }

    fn label(&self, wanted: &str) -> Option<Cow<'a, str>> {
        let mut rest = self.labels;
        loop {
            let (name, after) = rest.split_once('=')?;
            let quoted = after.trim_start().strip_prefix('"')?;
            let end = end_of_quoted(quoted)?;
            let value = quoted.get(..end)?;
            if name.trim_matches([',', ' ', '\t']) == wanted {
                return Some(unescaped(value));
            }
            rest = quoted.get(end + 1..)?;
        }
    }
}

/// Where the brace is that closes the labels; one in quotes is part of a value.
fn end_of_labels(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.find(['"', '}'])?;
        if text.get(at..)?.starts_with('}') {
            return Some(at);
        }
        from = at + 1 + end_of_quoted(text.get(at + 1..)?)? + 1;
    }
}

/// Where the quote is that closes the value; one behind a backslash is part of it.
fn end_of_quoted(text: &str) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.find(['"', '\\'])?;
        if text.get(at..)?.starts_with('"') {
            return Some(at);
        }
        from = at + 1 + text.get(at + 1..)?.chars().next()?.len_utf8();
    }
}

fn unescaped(value: &str) -> Cow<'_, str> {
    if !value.contains('\\') {
        return Cow::Borrowed(value);
    }
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match (c, chars.clone().next()) {
            ('\\', Some(next)) => {
                chars.next();
                text.push(if next == 'n' { '\n' } else { next });
            }
            _ => text.push(c),
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vllm(page: &str) -> Result<MetricsPage, PageError> {
        MetricsPage::read(page.as_bytes(), &MetricNames::vllm())
    }

    #[test]
    fn of_several_engines_on_one_page_requests_and_room_are_summed_and_the_fullest_cache_counts() {
        let page = "\
# HELP vllm:num_requests_waiting Requests that wait.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine=\"0\",model_name=\"a\"} 3.0
vllm:num_requests_waiting{engine=\"1\",model_name=\"a\"} 4.0 1700000000000
vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 99
vllm:num_requests_running{engine=\"0\",model_name=\"}\\\"{ \\\\\"} 1
vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 2
vllm:kv_cache_usage_perc{engine=\"0\"} 0.25
vllm:kv_cache_usage_perc{engine=\"1\"} 0.75
vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"0\",num_gpu_blocks=\"100\"} 1.0
vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"1\",num_gpu_blocks=\"50\"} 1.0
vllm:prompt_tokens_total{engine=\"0\"} 1e3
vllm:prompt_tokens_total{engine=\"1\"} 5
process_start_time_seconds 1.7e+09
";
        let scrape = Scrape { waiting: 7.0, running: 3.0, kv_usage: 0.75, capacity_tokens: Some(2_400) };
        let expected = MetricsPage { scrape, started: Some(1.7e9), counter: Some(1_005.0) };
        assert_eq!(vllm(page), Ok(expected));
        assert_eq!(vllm(&page.replace('\n', "\r\n")), Ok(expected));
    }

    #[test]
    fn the_older_name_of_the_cache_usage_is_known_and_what_is_not_said_is_nothing() {
        let scrape = vllm("vllm:num_requests_waiting 1\nvllm:gpu_cache_usage_perc 0.5").unwrap().scrape;
        assert_eq!(scrape, Scrape { waiting: 1.0, running: 0.0, kv_usage: 0.5, capacity_tokens: None });
    }

    #[test]
    fn sglangs_and_tritons_pages_are_read() {
        let page = "sglang:num_queue_reqs{model_name=\"m\"} 2\nsglang:num_running_reqs{model_name=\"m\"} 5\n\
                    sglang:token_usage{model_name=\"m\"} 0.28\nsglang:max_total_num_tokens{model_name=\"m\"} 454274\n";
        let read = |page: &str, names| MetricsPage::read(page.as_bytes(), &names).map(|page| page.scrape);
        let expected = Scrape { waiting: 2.0, running: 5.0, kv_usage: 0.28, capacity_tokens: Some(454_274) };
        assert_eq!(read(page, MetricNames::sglang()), Ok(expected));
        let page = "nv_trt_llm_request_metrics{model=\"t\",request_type=\"waiting\",version=\"1\"} 3\n\
                    nv_trt_llm_request_metrics{model=\"t\",request_type=\"scheduled\",version=\"1\"} 4\n\
                    nv_trt_llm_request_metrics{model=\"t\",request_type=\"max\",version=\"1\"} 512\n\
                    nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"t\"} 0.5\n\
                    nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\",model=\"t\"} 64\n\
                    nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"t\"} 6239\n";
        let expected = Scrape { waiting: 3.0, running: 4.0, kv_usage: 0.5, capacity_tokens: Some(399_296) };
        assert_eq!(read(page, MetricNames::triton_tensorrt_llm()), Ok(expected));
    }

    #[test]
    fn a_page_with_figures_that_cannot_be_is_not_believed() {
        for figures in [
            "vllm:num_requests_waiting NaN",
            "vllm:num_requests_waiting -1",
            "vllm:num_requests_waiting{engine=\"0\"} -1\nvllm:num_requests_waiting{engine=\"1\"} 5",
            "vllm:num_requests_waiting 1e300",
            "vllm:num_requests_waiting +Inf",
            "vllm:num_requests_waiting 1\nvllm:num_requests_running 1e300",
            "vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc NaN",
            "vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc NaN",
            "vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 50",
            "vllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc -0.5",
        ] {
            assert_eq!(vllm(figures), Err(PageError::Implausible), "{figures}");
        }
        for page in [
            "",
            "<html>",
            "vllm:num_requests_waiting",
            "vllm:num_requests_waiting{",
            "vllm:num_requests_waiting{a=\"} 1",
        ] {
            assert_eq!(vllm(page), Err(PageError::Missing), "{page}");
        }
        assert_eq!(MetricsPage::read(&[0xff, 0xfe], &MetricNames::vllm()), Err(PageError::NotText));
    }

    #[test]
    fn room_that_cannot_be_is_not_known() {
        for labels in [
            "num_gpu_blocks=\"None\",block_size=\"16\"",
            "num_gpu_blocks=\"1e300\",block_size=\"16\"",
            "num_gpu_blocks=\"-5\",block_size=\"16\"",
            "num_gpu_blocks=\"0\",block_size=\"16\"",
            "block_size=\"16\"",
        ] {
            let page = vllm(&format!("vllm:num_requests_waiting 0\nvllm:cache_config_info{{{labels}}} 1"));
            assert_eq!(page.unwrap().scrape.capacity_tokens, None, "{labels}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(page: Vec<u8>) {
            let _ = MetricsPage::read(&page, &MetricNames::vllm());
        }

        #[test]
        fn whatever_is_made_of_the_formats_parts_is_believed_only_within_bounds(
            parts in prop::collection::vec(prop::sample::select(vec![
                "vllm:num_requests_waiting", "vllm:cache_config_info", "vllm:kv_cache_usage_perc", "{", "}", "\"", "\\", "=",
                ",", " ", "\n", "#", "1", "-", "e9", "NaN", "inf", "num_gpu_blocks", "block_size", "ä",
            ]), 0..60)
        ) {
            if let Ok(page) = vllm(&parts.concat()) {
                let Scrape { waiting, running, kv_usage, capacity_tokens } = page.scrape;
                prop_assert!((0.0..=MOST_REQUESTS).contains(&waiting) && (0.0..=MOST_REQUESTS).contains(&running));
                prop_assert!((0.0..=1.0).contains(&kv_usage));
                prop_assert!(capacity_tokens.is_none_or(|tokens| tokens as f64 <= MOST_TOKENS));
            }
        }

        #[test]
        fn a_labels_value_comes_back_whatever_is_in_it(value: String) {
            let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let line = format!("m{{a=\"x\",b=\"{escaped}\",c=\"y\"}} 1");
            let sample = Sample::read(&line).unwrap();
            prop_assert_eq!(sample.label("b"), Some(Cow::Borrowed(&*value)));
            prop_assert_eq!(sample.label("c"), Some(Cow::Borrowed("y")));
        }
    }
}
