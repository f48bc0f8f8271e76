//! A pool that has been busy for long: its index is full, and so are the caches of its replicas.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use attache::{
    affinity::{AffinityPolicy, Answered, Ask, Placement, Pool, PrefixChain, Scrape, Ticket},
    config::model::{Endpoint, EndpointAddress},
    route::CoolDown,
};

use super::prompts::next;

/// Blocks of the prompts that fill the index: 384 KiB.
const FILL_BLOCKS: usize = 240;
const FILL_BYTES: u64 = 384 * 1024;

/// So much time passes from request to request.
pub(super) const BETWEEN: Duration = Duration::from_millis(10);

/// What all replicas of a pool have in cache together, in tokens, at least: 300,000,000, or so much each. More than a large
/// prompt has, and less than the index knows.
const LEAST_CACHE_TOKENS: usize = 1_500_000;
const MOST_CACHE_TOKENS: usize = 16_000_000;

/// A pool and its time.
#[derive(Debug)]
pub(super) struct Bed {
    pub(super) pool: Arc<Pool>,
    endpoints: Vec<Arc<Endpoint>>,
    cooldown: CoolDown,
    now: Instant,
    scraped: Instant,
    random: u64,
}

impl Bed {
    /// A pool of which nothing is known.
    pub(super) fn new(endpoints: usize, budget: usize) -> Self {
        let now = Instant::now();
        let cache = (300_000_000 / endpoints.max(1)).clamp(LEAST_CACHE_TOKENS, MOST_CACHE_TOKENS);
        let policy =
            AffinityPolicy { index_bytes: budget, cache_tokens: Some(cache as u64), ..AffinityPolicy::default() };
        let pool = Arc::new(Pool::new("default/vllm".into(), Arc::new(policy), now));
        let endpoints: Vec<_> = (0..endpoints).map(endpoint).collect();
        pool.set_members(endpoints.clone(), now);
        let mut bed = Self { pool, endpoints, cooldown: CoolDown::default(), now, scraped: now, random: 1 };
        bed.scrape();
        bed
    }

    /// Sends prompts until one block in ten that the index knew had to go.
    pub(super) fn fill(&mut self) {
        loop {
            for _ in 0..100 {
                let blocks = (0..FILL_BLOCKS).map(|_| next(&mut self.random)).collect();
                let chain = PrefixChain { seed: 0, blocks, tail: 0, bytes: FILL_BYTES };
                self.send(&self.ask(Arc::new(chain)));
            }
            let stats = self.pool.stats(self.now);
            if stats.index_evictions as usize > stats.index_blocks / 10 {
                return;
            }
        }
    }

    pub(super) fn ask(&self, prompt: Arc<PrefixChain>) -> Ask {
        let entropy = prompt.tail;
        Ask { scope: 0x5eed, prompt: Some(prompt), session: None, entropy }
    }

    /// Places a prompt, and has it answered.
    pub(super) fn send(&mut self, ask: &Ask) {
        self.pass_time();
        let placement = self.place(ask, self.now);
        if let Some(ticket) = self.dispatch(&placement) {
            self.end(ticket, &placement, self.now);
        }
    }

    /// What a request waits for first.
    pub(super) fn place(&self, ask: &Ask, now: Instant) -> Placement {
        self.pool.place(ask, |endpoint| self.cooldown.admits(&endpoint.cluster, now), now)
    }

    /// What it waits for then.
    pub(super) fn dispatch(&self, placement: &Placement) -> Option<Ticket> {
        self.pool.dispatch(placement)
    }

    /// What happens at its answer: all that was predicted came from the cache.
    pub(super) fn end(&self, mut ticket: Ticket, placement: &Placement, now: Instant) {
        ticket.answered(Answered::Well, None, now);
        ticket.first_byte();
        let tokens = |bytes: u64| (bytes as f64 / placement.bytes_per_token) as u64;
        let predicted = placement.predicted;
        ticket.finish(Some(tokens(predicted.bytes).max(1)), tokens(predicted.chosen), now);
    }

    /// To the next request; once a second all metrics pages are read.
    pub(super) fn pass_time(&mut self) {
        self.now += BETWEEN;
        if self.now - self.scraped >= Duration::from_secs(1) {
            self.scrape();
        }
    }

    /// Until those who have an answer ask again.
    pub(super) fn pause(&mut self) {
        self.now += Duration::from_secs(30);
        self.scrape();
    }

    fn scrape(&mut self) {
        self.scraped = self.now;
        for endpoint in &self.endpoints {
            let random = next(&mut self.random);
            let [waiting, running, usage, ..] = random.to_le_bytes().map(f64::from);
            let scrape = Scrape {
                waiting: (waiting / 64.0).floor(),
                running: (running / 8.0).floor(),
                kv_usage: usage / 256.0,
                capacity_tokens: None,
            };
            self.pool.scraped(&endpoint.id, scrape, self.now);
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }
}

fn endpoint(index: usize) -> Arc<Endpoint> {
    let [.., high, low] = index.to_be_bytes();
    let address = SocketAddr::from(([10, 0, high, low], 8000));
    Arc::new(Endpoint {
        id: address.to_string().into(),
        cluster: format!("default/vllm/{address}").into(),
        address: EndpointAddress::Ip(address),
    })
}
