//! What a run was worth.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use serde::Serialize;

use super::setup::Incident;
use crate::traces::Trace;

/// What became of every request.
#[derive(Debug, Clone)]
pub struct Run {
    /// In the trace's order.
    pub outcomes: Vec<Outcome>,
    /// Those that were there from the start.
    pub replicas: usize,
    /// When the incident was, if there was one.
    pub half_time: Duration,
}

/// What became of one request.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// Since the trace's start.
    pub arrival: Duration,
    /// Through which it came.
    pub sidecar: usize,
    /// Which served it last.
    pub replica: usize,
    /// The prompt's length.
    pub input_tokens: u64,
    /// How many of those the replica had.
    pub cached_tokens: u64,
    /// Since the arrival; none where it failed.
    pub time_to_first_token: Option<Duration>,
}

/// The figures of a run or of a part of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// How many were asked.
    pub requests: usize,
    /// How many got no whole answer.
    pub failed: usize,
    /// Cached of all prompt tokens.
    pub hit_ratio: f64,
    /// The hit ratio divided by that of the pooled bound over the same requests.
    pub share_of_bound: f64,
    /// The largest share of prompt tokens that one replica got, divided by the mean.
    pub imbalance_routed: f64,
    /// The same of the tokens that were not cached.
    pub imbalance_prefilled: f64,
    /// Time to first token, in seconds.
    pub ttft_mean_s: f64,
    /// Half wait no longer.
    pub ttft_p50_s: f64,
    /// Nine of ten wait no longer.
    pub ttft_p90_s: f64,
}

impl Run {
    /// The figures of all requests; `pooled` are the cached tokens of each under the pooled bound.
    pub fn figures(&self, pooled: &[u64]) -> Figures {
        self.figures_where(pooled, |_| true)
    }

    /// The figures of the minutes after the incident.
    pub fn aftermath(&self, pooled: &[u64]) -> Figures {
        self.figures_where(pooled, |outcome| self.is_aftermath(outcome))
    }

    /// Whether a request came in the minutes after the incident.
    pub fn is_aftermath(&self, outcome: &Outcome) -> bool {
        (self.half_time..self.half_time + Incident::AFTERMATH).contains(&outcome.arrival)
    }

    /// The share of prefixes that moved: of those that had been served before the incident and came again in the minutes after
    /// it, how many went to a replica that had not served them. What every replica had served counts for nothing.
    pub fn moved(&self, trace: &Trace) -> f64 {
        let mut served: HashMap<u32, u64> = HashMap::new();
        let mut counted = HashSet::new();
        let mut moved = 0;
        let everywhere = (1_u64 << self.replicas.min(63)) - 1;
        for (outcome, request) in self.outcomes.iter().zip(&trace.requests) {
            let replica = 1_u64 << outcome.replica.min(63);
            if outcome.arrival < self.half_time {
                request.blocks.iter().for_each(|block| *served.entry(*block).or_default() |= replica);
                continue;
            }
            if !self.is_aftermath(outcome) {
                break;
            }
            let deepest = request.blocks.iter().rev().find_map(|block| Some((*block, *served.get(block)?)));
            let Some((block, by)) = deepest.filter(|(_, by)| *by != everywhere) else { continue };
            if counted.insert(block) && by & replica == 0 {
                moved += 1;
            }
        }
        ratio(moved, counted.len() as u64)
    }

    /// The figures of the requests that are `wanted`.
    pub fn figures_where(&self, pooled: &[u64], wanted: impl Fn(&Outcome) -> bool) -> Figures {
        let wanted: Vec<(&Outcome, u64)> =
            self.outcomes.iter().zip(pooled.iter().copied()).filter(|(outcome, _)| wanted(outcome)).collect();
        let mut routed = vec![0; self.replicas];
        let mut prefilled = vec![0; self.replicas];
        let (mut input, mut cached, mut bound) = (0, 0, 0);
        let mut waits = Vec::with_capacity(wanted.len());
        for (outcome, pooled) in &wanted {
            input += outcome.input_tokens;
            cached += outcome.cached_tokens;
            bound += pooled;
            if let Some((routed, prefilled)) = routed.get_mut(outcome.replica).zip(prefilled.get_mut(outcome.replica)) {
                *routed += outcome.input_tokens;
                *prefilled += outcome.input_tokens - outcome.cached_tokens;
            }
            waits.extend(outcome.time_to_first_token.map(|wait| wait.as_secs_f64()));
        }
        waits.sort_by(f64::total_cmp);
        Figures {
            requests: wanted.len(),
            failed: wanted.len() - waits.len(),
            hit_ratio: ratio(cached, input),
            share_of_bound: ratio(cached, bound),
            imbalance_routed: imbalance(&routed),
            imbalance_prefilled: imbalance(&prefilled),
            ttft_mean_s: waits.iter().sum::<f64>() / waits.len().max(1) as f64,
            ttft_p50_s: percentile(&waits, 50),
            ttft_p90_s: percentile(&waits, 90),
        }
    }
}

/// 0 of nothing.
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The largest divided by the mean.
fn imbalance(loads: &[u64]) -> f64 {
    let largest = loads.iter().copied().max().unwrap_or_default();
    ratio(largest * loads.len() as u64, loads.iter().sum())
}

/// The smallest value that is not below `percent` of all; 0 of none.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (percent * sorted.len()).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}
