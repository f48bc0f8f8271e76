//! `metrics` of a CacheAffinityPolicy: how the replicas' own metrics pages are read.

use std::sync::Arc;
use std::time::Duration;

use crate::affinity::{Capacity, MetricNames, Scraping, Series};
use crate::config::fields::{Fields, FromNode, Log, describe};
use crate::config::node::{Node, Value};
use crate::config::value::{Port, one_of, text_of_at_most};

/// More often is a burden to an engine, and more seldom a page is stale before the next: `STALE_AFTER` is 5 s.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(4);
const MAX_PATH_BYTES: usize = 1_024;
/// The port of Triton's metrics, whatever its other ports are.
const TRITON_PORT: u16 = 8_002;

/// The field as it is written. `None` in it: pages are not read.
#[derive(Debug)]
pub(in crate::config) struct MetricsSpec(pub(in crate::config) Option<Scraping>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Vllm,
    Sglang,
    Triton,
    None,
}

impl FromNode for MetricsSpec {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Fields::read(node, log, |fields| {
            let engine = fields.take("engine").unwrap_or(Engine::Vllm);
            if engine == Engine::None {
                for field in ["path", "port", "interval", "names"] {
                    if fields.has(field) {
                        let message = format!("`engine: none` reads no metrics pages, so `{field}` says nothing");
                        fields.reject(field, message, "remove it, or name the engine");
                    }
                }
                return Some(Self(None));
            }
            let default = Scraping::default();
            let path = fields.take_with("path", read_path);
            let port = fields.take("port").map(|Port(port)| port);
            let interval = fields.take_with("interval", read_interval).unwrap_or(default.interval);
            let mut names = match engine {
                Engine::Vllm | Engine::None => MetricNames::vllm(),
                Engine::Sglang => MetricNames::sglang(),
                Engine::Triton => MetricNames::triton_tensorrt_llm(),
            };
            if fields.has("names") {
                fields.take_with("names", |node, log| read_names(node, log, &mut names));
            }
            Some(Self(Some(Scraping {
                path: path.unwrap_or(default.path),
                port: port.or((engine == Engine::Triton).then_some(TRITON_PORT)),
                interval,
                timeout: default.timeout.min(interval),
                names,
            })))
        })
    }
}

impl FromNode for Engine {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let engines = [("vllm", Self::Vllm), ("sglang", Self::Sglang), ("triton", Self::Triton), ("none", Self::None)];
        one_of(node, log, &engines)
    }
}

fn read_path(node: &Node, log: &mut Log) -> Option<Arc<str>> {
    let path = text_of_at_most(node, log, MAX_PATH_BYTES)?;
    if path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Some(path);
    }
    log.fail(node, format!("{} is not a path", describe(node)), "write it like `/metrics`")
}

fn read_interval(node: &Node, log: &mut Log) -> Option<Duration> {
    let interval = Duration::from_node(node, log)?;
    if INTERVALS.contains(&interval) {
        return Some(interval);
    }
    let help = "write one from 100ms to 4s: a page that is older than 5 s says nothing any more";
    log.fail(node, "pages are not read at that interval", help)
}

/// Each name that is given takes the place of the engine's.
fn read_names(node: &Node, log: &mut Log, names: &mut MetricNames) -> Option<()> {
    Fields::read(node, log, |fields| {
        let mut any =
            [("waiting", &mut names.waiting), ("running", &mut names.running), ("kvUsage", &mut names.kv_usage)];
        for (field, series) in &mut any {
            if let Some(given) = fields.take_with(field, read_series) {
                **series = given;
            }
        }
        if let Some(given) = fields.take::<Series>("capacity") {
            names.capacity = Some(Capacity::Tokens(given));
        }
        Some(())
    })
}

/// One name or several, of which each page has one.
fn read_series(node: &Node, log: &mut Log) -> Option<Vec<Series>> {
    if !matches!(node.value, Value::Sequence(_)) {
        return Some(vec![Series::from_node(node, log)?]);
    }
    let list = Vec::<Series>::from_node(node, log)?;
    if list.is_empty() {
        return log.fail(node, "the list is empty", "write a name, or leave the field out");
    }
    Some(list)
}

impl FromNode for Series {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let text = Arc::<str>::from_node(node, log)?;
        text.parse().ok().or_else(|| {
            let help = "write it as the page does: `vllm:num_requests_waiting` or \"name{label=value}\"";
            log.fail(node, format!("{} is not the name of a metric", describe(node)), help)
        })
    }
}
