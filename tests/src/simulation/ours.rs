//! The production placement, sidecar by sidecar: its pools, tickets and cool-down tables, and what it tells peers.
//!
//! Nothing here decides. The policy is the default one, whatever the trace.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use attache::{
    affinity::{AffinityPolicy, Answered, Ask, News, Placement, Pool, PrefixChain, Scrape as Page, Ticket},
    config::model::{Endpoint, EndpointAddress},
    route::CoolDown,
};

use super::{
    replica::Scrape,
    routing::Routing,
    setup::{Setup, Sharing},
};
use crate::traces::{Request, Trace};

/// All requests are for one model and one pool.
const SCOPE: u64 = 1;
/// A sidecar that starts hears what was told in the last ten minutes.
const REPLAYED: Duration = Duration::from_secs(600);

/// All sidecars of a run.
#[derive(Debug)]
pub(super) struct Ours<'a> {
    chains: &'a [Arc<PrefixChain>],
    sharing: Sharing,
    /// The moment that the run's time 0 stands for.
    start: Instant,
    endpoints: Vec<Arc<Endpoint>>,
    sidecars: Vec<Sidecar>,
    /// What the store would keep of the news, the oldest first, with the time of each.
    log: VecDeque<(Duration, Vec<News>)>,
}

#[derive(Debug)]
struct Sidecar {
    pool: Arc<Pool>,
    cooldown: CoolDown,
    placed: HashMap<usize, Placement>,
    tickets: HashMap<usize, Ticket>,
}

impl<'a> Ours<'a> {
    pub(super) fn new(trace: &'a Trace, setup: &Setup) -> Self {
        let mut ours = Self {
            chains: trace.chains(),
            sharing: setup.sharing,
            start: Instant::now(),
            endpoints: (0..setup.replicas).map(endpoint).collect(),
            sidecars: Vec::new(),
            log: VecDeque::new(),
        };
        ours.sidecars = (0..setup.sidecars).map(|_| ours.sidecar(Duration::ZERO)).collect();
        ours
    }

    fn sidecar(&self, now: Duration) -> Sidecar {
        let at = self.start + now;
        let pool = Arc::new(Pool::new("default/vllm".into(), Arc::new(AffinityPolicy::default()), at));
        pool.set_members(self.endpoints.clone(), at);
        if self.sharing == Sharing::Shared {
            pool.share();
            for (told, news) in &self.log {
                news.iter().for_each(|news| pool.hear_news(news, now.saturating_sub(*told), at));
            }
        }
        Sidecar { pool, cooldown: CoolDown::default(), placed: HashMap::new(), tickets: HashMap::new() }
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

impl Routing for Ours<'_> {
    fn place(&mut self, sidecar: usize, number: usize, _request: &Request, now: Duration) -> Vec<usize> {
        let at = self.start + now;
        let Some(sidecar) = self.sidecars.get_mut(sidecar) else { return Vec::new() };
        let ask = Ask { scope: SCOPE, prompt: self.chains.get(number).cloned(), session: None, entropy: number as u64 };
        let placement = sidecar.pool.place(&ask, |endpoint| sidecar.cooldown.admits(&endpoint.cluster, at), at);
        let index = |endpoint: &Arc<Endpoint>| self.endpoints.iter().position(|other| other.id == endpoint.id);
        let order = placement.order.iter().filter_map(index).collect();
        sidecar.placed.insert(number, placement);
        order
    }

    fn answered(
        &mut self,
        sidecar: usize,
        number: usize,
        _request: &Request,
        served: Option<usize>,
        refused: &[usize],
        now: Duration,
    ) {
        let at = self.start + now;
        let Some(sidecar) = self.sidecars.get_mut(sidecar) else { return };
        let Some(placement) = sidecar.placed.remove(&number) else { return };
        let ticket = sidecar.pool.dispatch(&placement);
        for refused in refused.iter().filter_map(|index| self.endpoints.get(*index)) {
            sidecar.cooldown.failed(&refused.cluster, at);
        }
        let served = served.and_then(|index| self.endpoints.get(index));
        let Some((mut ticket, served)) = ticket.zip(served) else { return };
        sidecar.cooldown.served(&served.cluster);
        ticket.answered(Answered::Well, Some(&served.id), at);
        sidecar.tickets.insert(number, ticket);
    }

    fn first_byte(&mut self, sidecar: usize, number: usize, _now: Duration) {
        if let Some(ticket) = self.sidecars.get_mut(sidecar).and_then(|sidecar| sidecar.tickets.get_mut(&number)) {
            ticket.first_byte();
        }
    }

    fn finished(&mut self, sidecar: usize, number: usize, request: &Request, cached_tokens: u64, now: Duration) {
        let at = self.start + now;
        if let Some(ticket) = self.sidecars.get_mut(sidecar).and_then(|sidecar| sidecar.tickets.remove(&number)) {
            ticket.finish(Some(request.input_tokens), cached_tokens, at);
        }
    }

    fn reset(&mut self, sidecar: usize, number: usize, _now: Duration) {
        if let Some(sidecar) = self.sidecars.get_mut(sidecar) {
            sidecar.tickets.remove(&number);
        }
    }

    fn scraped(&mut self, sidecar: usize, replica: usize, scrape: Option<Scrape>, now: Duration) {
        let at = self.start + now;
        let Some((sidecar, endpoint)) = self.sidecars.get(sidecar).zip(self.endpoints.get(replica)) else { return };
        let Some(Scrape { waiting, running, kv_usage, capacity_tokens }) = scrape else { return };
        let page =
            Page { waiting: waiting as f64, running: running as f64, kv_usage, capacity_tokens: Some(capacity_tokens) };
        sidecar.pool.scraped(&endpoint.id, page, at);
    }

    fn share_news(&mut self, now: Duration) {
        let at = self.start + now;
        for (author, sidecar) in self.sidecars.iter().enumerate() {
            let news = sidecar.pool.take_news();
            for (_, peer) in self.sidecars.iter().enumerate().filter(|(peer, _)| *peer != author) {
                news.iter().for_each(|news| peer.pool.hear_news(news, Duration::ZERO, at));
            }
            if !news.is_empty() {
                self.log.push_back((now, news));
            }
        }
        while self.log.front().is_some_and(|(told, _)| *told + REPLAYED < now) {
            self.log.pop_front();
        }
    }

    fn share_loads(&mut self, now: Duration) {
        let at = self.start + now;
        for (author, sidecar) in (0_u64..).zip(&self.sidecars) {
            let loads = sidecar.pool.own_loads();
            for (_, peer) in (0_u64..).zip(&self.sidecars).filter(|(peer, _)| *peer != author) {
                loads.iter().for_each(|(endpoint, load)| peer.pool.hear_load(author, endpoint, *load, at));
            }
        }
        self.sidecars.iter().for_each(|sidecar| sidecar.pool.heard_all(at));
    }

    fn restarted(&mut self, sidecar: usize, now: Duration) {
        let fresh = self.sidecar(now);
        if let Some(sidecar) = self.sidecars.get_mut(sidecar) {
            *sidecar = fresh;
        }
    }

    fn members(&mut self, replicas: usize, now: Duration) {
        let at = self.start + now;
        self.endpoints = (0..replicas).map(endpoint).collect();
        for sidecar in &self.sidecars {
            sidecar.pool.set_members(self.endpoints.clone(), at);
        }
    }
}
