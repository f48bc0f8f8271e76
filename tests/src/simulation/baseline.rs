//! The other ways to place requests, for comparison. Sidecars of these never talk to each other.
//!
//! Every one takes a replica that refused a connection or broke off an answer out for ten seconds, as a health check would.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use super::{
    cache::BlockCache,
    replica::Scrape,
    routing::Routing,
    setup::{Policy, Setup},
};
use crate::traces::{
    Request,
    random::{Random, mix},
};

const OUT_FOR: Duration = Duration::from_secs(10);
const MAX_ORDER: usize = 3;
/// Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016), with the c of Envoy's documentation.
const BOUND: f64 = 1.25;

/// All sidecars of a run.
#[derive(Debug)]
pub struct Baseline {
    policy: Policy,
    cache_tokens: u64,
    seed: u64,
    replicas: usize,
    sidecars: Vec<Sidecar>,
}

#[derive(Debug)]
struct Sidecar {
    random: Random,
    turn: usize,
    replicas: Vec<Known>,
    /// Which replica has the request.
    under_way: HashMap<usize, usize>,
}

/// What a sidecar knows of a replica.
#[derive(Debug)]
struct Known {
    in_flight: u64,
    scraped: Option<Scrape>,
    sent_since_scrape: u64,
    out_until: Duration,
    /// What was sent there, for those who look for prefixes; as large as the replica's own cache.
    sent: BlockCache,
}

impl Known {
    fn new(cache_tokens: u64) -> Self {
        Self {
            in_flight: 0,
            scraped: None,
            sent_since_scrape: 0,
            out_until: Duration::ZERO,
            sent: BlockCache::new(cache_tokens),
        }
    }

    fn waiting(&self) -> f64 {
        self.scraped.map_or(0.0, |scraped| scraped.waiting as f64)
    }
}

impl Baseline {
    /// Sidecars that know nothing yet.
    pub fn new(setup: &Setup) -> Self {
        let mut baseline = Self {
            policy: setup.policy,
            cache_tokens: setup.cache_tokens,
            seed: setup.seed,
            replicas: setup.replicas,
            sidecars: Vec::new(),
        };
        baseline.sidecars = (0..setup.sidecars).map(|index| baseline.sidecar(index)).collect();
        baseline
    }

    fn sidecar(&self, index: usize) -> Sidecar {
        let mut random = Random::new(self.seed, index as u64);
        Sidecar {
            turn: random.next_u64() as usize % self.replicas.max(1),
            random,
            replicas: (0..self.replicas).map(|_| Known::new(self.cache_tokens)).collect(),
            under_way: HashMap::new(),
        }
    }
}

impl Sidecar {
    /// The greater, the better; for each replica.
    fn scores(&mut self, policy: Policy, request: &Request) -> Vec<f64> {
        let count = self.replicas.len();
        let first = u64::from(request.blocks.first().copied().unwrap_or(u32::MAX));
        let hash = |index: usize| (mix(mix(first) ^ index as u64) >> 11) as f64 / (1_u64 << 53) as f64;
        let known = self.replicas.iter();
        match policy {
            // Ours is no baseline; without scores it would be random as well.
            Policy::Random | Policy::Ours => vec![0.0; count],
            Policy::RoundRobin => {
                self.turn = (self.turn + 1) % count.max(1);
                (0..count).map(|index| -(((index + count - self.turn) % count) as f64)).collect()
            }
            Policy::LeastRequests => known.map(|known| -(known.in_flight as f64)).collect(),
            Policy::LeastRequestsScraped => {
                let load = |known: &Known| {
                    let scraped = known.scraped.map_or(0, |scraped| scraped.waiting + scraped.running);
                    (scraped + known.sent_since_scrape) as f64
                };
                known.map(|known| -load(known)).collect()
            }
            Policy::FirstBlockHash => (0..count).map(hash).collect(),
            Policy::BoundedLoadHash => {
                let under_way = self.under_way.len() as f64;
                let bound = (BOUND * (under_way + 1.0) / count as f64).ceil();
                let below = |known: &Known| if (known.in_flight as f64) < bound { 1.0 } else { 0.0 };
                known.enumerate().map(|(index, known)| below(known) + hash(index)).collect()
            }
            Policy::LongestMatch => known.map(|known| known.sent.matched(&request.blocks) as f64).collect(),
            Policy::Scorer => {
                let waiting = self.replicas.iter().map(Known::waiting);
                let (least, most) =
                    waiting.fold((f64::MAX, 0.0_f64), |(least, most), waiting| (least.min(waiting), most.max(waiting)));
                let score = |known: &Known| {
                    let queue = if most > least { (most - known.waiting()) / (most - least) } else { 1.0 };
                    let kv = 1.0 - known.scraped.map_or(0.0, |scraped| scraped.kv_usage);
                    let prefix = known.sent.matched(&request.blocks) as f64 / request.blocks.len().max(1) as f64;
                    2.0 * queue + 2.0 * kv + 3.0 * prefix
                };
                known.map(score).collect()
            }
        }
    }

    fn order(&mut self, policy: Policy, request: &Request, now: Duration) -> Vec<usize> {
        let scores = self.scores(policy, request);
        let out: HashSet<usize> = self
            .replicas
            .iter()
            .enumerate()
            .filter(|(_, known)| known.out_until > now)
            .map(|(index, _)| index)
            .collect();
        // A random number breaks ties.
        let mut order: Vec<(bool, f64, u64, usize)> = scores
            .into_iter()
            .enumerate()
            .map(|(index, score)| (!out.contains(&index), score, self.random.next_u64(), index))
            .collect();
        order.sort_by(|one, other| {
            other.0.cmp(&one.0).then(other.1.total_cmp(&one.1)).then_with(|| other.2.cmp(&one.2))
        });
        order.into_iter().map(|(.., index)| index).take(MAX_ORDER).collect()
    }

    fn over(&mut self, number: usize) -> Option<usize> {
        let replica = self.under_way.remove(&number)?;
        let known = self.replicas.get_mut(replica)?;
        known.in_flight = known.in_flight.saturating_sub(1);
        Some(replica)
    }

    fn take_out(&mut self, replica: usize, now: Duration) {
        if let Some(known) = self.replicas.get_mut(replica) {
            known.out_until = now + OUT_FOR;
            known.sent.clear();
        }
    }
}

impl Routing for Baseline {
    fn place(&mut self, sidecar: usize, _number: usize, request: &Request, now: Duration) -> Vec<usize> {
        let policy = self.policy;
        self.sidecars.get_mut(sidecar).map(|sidecar| sidecar.order(policy, request, now)).unwrap_or_default()
    }

    fn answered(
        &mut self,
        sidecar: usize,
        number: usize,
        request: &Request,
        served: Option<usize>,
        refused: &[usize],
        now: Duration,
    ) {
        let looks_for_prefixes = matches!(self.policy, Policy::LongestMatch | Policy::Scorer);
        let Some(sidecar) = self.sidecars.get_mut(sidecar) else { return };
        refused.iter().for_each(|replica| sidecar.take_out(*replica, now));
        let Some(replica) = served else { return };
        let Some(known) = sidecar.replicas.get_mut(replica) else { return };
        known.in_flight += 1;
        known.sent_since_scrape += 1;
        if looks_for_prefixes {
            known.sent.touch(&request.blocks);
        }
        sidecar.under_way.insert(number, replica);
    }

    fn first_byte(&mut self, _sidecar: usize, _number: usize, _now: Duration) {}

    fn finished(&mut self, sidecar: usize, number: usize, _request: &Request, _cached_tokens: u64, _now: Duration) {
        if let Some(sidecar) = self.sidecars.get_mut(sidecar) {
            sidecar.over(number);
        }
    }

    fn reset(&mut self, sidecar: usize, number: usize, now: Duration) {
        let Some(sidecar) = self.sidecars.get_mut(sidecar) else { return };
        if let Some(replica) = sidecar.over(number) {
            sidecar.take_out(replica, now);
        }
    }

    fn scraped(&mut self, sidecar: usize, replica: usize, scrape: Option<Scrape>, _now: Duration) {
        let known = self.sidecars.get_mut(sidecar).and_then(|sidecar| sidecar.replicas.get_mut(replica));
        if let Some(known) = known {
            (known.scraped, known.sent_since_scrape) = (scrape, 0);
        }
    }

    fn restarted(&mut self, sidecar: usize, _now: Duration) {
        let fresh = self.sidecar(sidecar);
        if let Some(sidecar) = self.sidecars.get_mut(sidecar) {
            *sidecar = fresh;
        }
    }

    fn members(&mut self, replicas: usize, _now: Duration) {
        self.replicas = replicas;
        for sidecar in &mut self.sidecars {
            sidecar.replicas.resize_with(replicas, || Known::new(self.cache_tokens));
        }
    }
}
