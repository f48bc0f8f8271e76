//! A pool: the replicas of one Backend, what they probably hold, how busy they are, and where the next request goes.
//!
//! All of it is behind one lock that is held for microseconds and never across an await. Time comes from the caller.

mod beliefs;
mod placement;
mod stats;

pub use placement::{Ask, Placement, Reason, Standing};
pub use stats::{EndpointStats, PoolStats};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::decision::Sharing;
use super::index::{Index, MAX_SLOTS};
use super::load::{OwnLoad, Part, Scrape};
use super::member::{Member, Verdict};
use super::news::{News, Newsroom};
use super::policy::{AffinityPolicy, Basis};
use super::reuse::Reuse;
use super::scraping::Scraping;
use super::ticket::{Predicted, Ticket};
use super::under_way::{UnderWay, UnderWayId};
use crate::config::model::Endpoint;

/// Counts of requests halve after so many of them, or so long.
const EPOCH_REQUESTS: u32 = 4096;
const EPOCH: Duration = Duration::from_secs(60);
/// Before anything is known: as for limits (`limit::estimate`).
const BYTES_PER_TOKEN: f64 = 4.0;
/// How much the last answer counts in averages.
const AVERAGE: f64 = 1.0 / 64.0;
/// What peers heard before a pool began has an age as well: its time begins so many seconds before it does.
const TIME_BEFORE: u32 = 600;
/// What peers told counts as the whole picture for so long after the last word.
pub const SHARING_EXPIRES_AFTER: Duration = Duration::from_secs(2);

/// The replicas of one Backend.
#[derive(Debug)]
pub struct Pool {
    id: Arc<str>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    policy: Arc<AffinityPolicy>,
    started: Instant,
    members: Vec<Member>,
    /// The member in each slot of the index.
    slots: Vec<Option<usize>>,
    index: Index,
    epoch: u8,
    epoch_started: Instant,
    epoch_requests: u32,
    /// Requests of late, halved with each epoch.
    requests: f64,
    /// Moving averages of prompts, of which the ratio is wanted.
    bytes: f64,
    tokens: f64,
    average_uncached: f64,
    reuse: Reuse,
    under_way: UnderWay,
    /// Whether answers here say what came from a cache.
    tells_cached: bool,
    newsroom: Option<Newsroom>,
    shared_until: Option<Instant>,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Totals {
    prompt: f64,
    available: f64,
    predicted: f64,
    delivered: f64,
    restarts: u64,
}

impl Pool {
    /// A pool without endpoints.
    pub fn new(id: Arc<str>, policy: Arc<AffinityPolicy>, now: Instant) -> Self {
        Self { id, state: Mutex::new(State::new(policy, now)) }
    }

    /// The Backend's cluster.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// A new policy holds from now on. What is known stays, unless the index gets another size.
    pub fn set_policy(&self, policy: Arc<AffinityPolicy>) {
        self.state().set_policy(policy);
    }

    /// The endpoints are these from now on. Those that stay keep what is known of them; those that come start slowly, unless
    /// they are the first, and hold nothing, even where one of the same address has gone before.
    pub fn set_members(&self, endpoints: Vec<Arc<Endpoint>>, now: Instant) {
        self.state().set_members(endpoints, now);
    }

    /// The endpoints.
    pub fn members(&self) -> Vec<Arc<Endpoint>> {
        self.state().members.iter().map(|member| Arc::clone(&member.endpoint)).collect()
    }

    /// Where the request is to go: among the endpoints that are available or, where none is, among all. Nothing is noted of it
    /// before it is dispatched.
    pub fn place(&self, ask: &Ask, available: impl Fn(&Endpoint) -> bool, now: Instant) -> Placement {
        self.state().place(ask, available, now)
    }

    /// What each endpoint would be for the request, in the order of the pool.
    pub fn standings(&self, ask: &Ask, now: Instant) -> Vec<Standing> {
        self.state().standings(ask, now)
    }

    /// The request is sent to the first of its order.
    pub fn dispatch(self: &Arc<Self>, placement: &Placement) -> Option<Ticket> {
        let endpoint = placement.order.first()?;
        let sent = self.state().sent(&endpoint.id, placement)?;
        Some(Ticket::new(Arc::clone(self), placement, sent))
    }

    /// What an endpoint's metrics page said.
    pub fn scraped(&self, endpoint: &str, scrape: Scrape, now: Instant) {
        if let Some(member) = self.state().member_mut(endpoint) {
            member.load.scraped(scrape, now);
        }
    }

    /// An endpoint's engine has begun anew, as its metrics page shows: its cache is empty.
    pub fn restarted(&self, endpoint: &str, now: Instant) {
        let mut state = self.state();
        let seconds = state.seconds(now);
        if let Some(member) = state.member_mut(endpoint) {
            member.restarted(seconds);
            state.totals.restarts += 1;
        }
    }

    /// How its endpoints' metrics pages are to be read, if at all.
    pub fn scraping(&self) -> Option<Scraping> {
        self.state().policy.scraping.clone()
    }

    /// Whether any endpoint is one of those; `None` while there are no endpoints.
    pub fn any(&self, wanted: impl Fn(&Endpoint) -> bool) -> Option<bool> {
        let state = self.state();
        (!state.members.is_empty()).then(|| state.members.iter().any(|member| wanted(&member.endpoint)))
    }

    /// The endpoint of this id.
    pub fn member(&self, id: &str) -> Option<Arc<Endpoint>> {
        self.state().member_mut(id).map(|member| Arc::clone(&member.endpoint))
    }

    /// From now on news for peers are kept until they are taken.
    pub fn share(&self) {
        self.state().newsroom.get_or_insert_default();
    }

    /// What peers are to be told.
    pub fn take_news(&self) -> Vec<News> {
        self.state().newsroom.as_mut().map(Newsroom::take).unwrap_or_default()
    }

    /// What this sidecar has under way at each endpoint.
    pub fn own_loads(&self) -> Vec<(Arc<str>, OwnLoad)> {
        let state = self.state();
        state.members.iter().map(|member| (Arc::clone(&member.endpoint.id), member.load.own())).collect()
    }

    /// A peer told so, `age` ago.
    pub fn hear_news(&self, news: &News, age: Duration, now: Instant) {
        self.state().hear_news(news, age, now);
    }

    /// A peer told what it has under way at an endpoint.
    pub fn hear_load(&self, peer: u64, endpoint: &str, load: OwnLoad, now: Instant) {
        if let Some(member) = self.state().member_mut(endpoint) {
            member.load.peer(peer, load, now);
        }
    }

    /// All that peers had to say up to now is heard: what is known is the whole picture, for a while.
    pub fn heard_all(&self, now: Instant) {
        self.state().shared_until = Some(now + SHARING_EXPIRES_AFTER);
    }

    /// Whether what is known is the whole picture now.
    pub fn hears_peers(&self, now: Instant) -> bool {
        self.state().sharing(now) == Sharing::Live
    }

    /// Its figures.
    pub fn stats(&self, now: Instant) -> PoolStats {
        self.state().stats(now)
    }

    /// The prompt's first byte of answer is there.
    pub(super) fn computed(&self, endpoint: &str, part: &mut Part) {
        if let Some(member) = self.state().member_mut(endpoint) {
            member.load.computed(part);
        }
    }

    /// A request has ended.
    pub(super) fn ended(&self, endpoint: &str, part: Part) {
        if let Some(member) = self.state().member_mut(endpoint) {
            member.load.end(part);
        }
    }

    /// The request was answered, or is gone.
    pub(super) fn over(&self, ask: &Ask, under_way: Option<UnderWayId>) {
        if let Some(under_way) = under_way {
            self.state().under_way.remove(ask, under_way);
        }
    }

    /// The endpoint answered the request with success: it has its prompt.
    pub(super) fn served(&self, endpoint: &str, ask: &Ask, predicted: &Predicted, now: Instant) {
        self.state().served(endpoint, ask, predicted, now);
    }

    /// What an answer said of its prompt: its tokens, and how many of them came from a cache.
    pub(super) fn learn(
        &self,
        endpoint: &str,
        predicted: &Predicted,
        prompt_tokens: Option<u64>,
        cached: u64,
        now: Instant,
    ) {
        self.state().learn(endpoint, predicted, prompt_tokens, cached, now);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // What a panic left half done is a wrong belief about a cache, no worse.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a dispatch left behind, for its ticket.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) part: Part,
    pub(super) under_way: Option<UnderWayId>,
}

impl State {
    fn new(policy: Arc<AffinityPolicy>, now: Instant) -> Self {
        Self {
            index: Index::new(policy.index_bytes, 0),
            policy,
            started: now,
            members: Vec::new(),
            slots: Vec::new(),
            epoch: 0,
            epoch_started: now,
            epoch_requests: 0,
            requests: 0.0,
            bytes: 1024.0 * BYTES_PER_TOKEN,
            tokens: 1024.0,
            average_uncached: 1024.0,
            reuse: Reuse::default(),
            under_way: UnderWay::default(),
            tells_cached: false,
            newsroom: None,
            shared_until: None,
            totals: Totals::default(),
        }
    }

    fn set_policy(&mut self, policy: Arc<AffinityPolicy>) {
        let has_other_size = policy.index_bytes != self.policy.index_bytes;
        self.policy = policy;
        if has_other_size {
            self.begin_index_anew(self.index.slots());
        }
    }

    fn begin_index_anew(&mut self, slots: usize) {
        self.index = Index::new(self.policy.index_bytes, slots);
        self.members.iter_mut().for_each(|member| member.ages = Default::default());
    }

    fn set_members(&mut self, endpoints: Vec<Arc<Endpoint>>, now: Instant) {
        let is_first_time = self.members.is_empty();
        let mut before = std::mem::take(&mut self.members);
        self.slots.fill(None);
        let (staying, coming): (Vec<_>, Vec<_>) = endpoints
            .into_iter()
            .map(|endpoint| match before.iter().position(|member| member.endpoint.id == endpoint.id) {
                Some(at) => {
                    let mut member = before.swap_remove(at);
                    member.endpoint = endpoint;
                    Ok(member)
                }
                None => Err(endpoint),
            })
            .partition(Result::is_ok);
        for member in staying.into_iter().flatten() {
            self.enlist(member);
        }
        // Before others come into their slots.
        self.under_way.keep_only(|slot| self.slots.get(slot).copied().flatten().is_some());
        let needed = (self.members.len() + coming.len()).min(MAX_SLOTS);
        if needed > self.index.slots() {
            self.begin_index_anew(needed);
        }
        let horizon = if is_first_time { 0 } else { self.seconds(now).saturating_add(1) };
        for endpoint in coming.into_iter().filter_map(Result::err) {
            let slot = (0..self.index.slots()).find(|slot| self.slots.get(*slot).is_none_or(Option::is_none));
            self.enlist(Member::new(endpoint, slot, (!is_first_time).then_some(now), horizon));
        }
    }

    fn enlist(&mut self, member: Member) {
        if let Some(slot) = member.slot {
            if self.slots.len() <= slot {
                self.slots.resize(slot + 1, None);
            }
            if let Some(place) = self.slots.get_mut(slot) {
                *place = Some(self.members.len());
            }
        }
        self.members.push(member);
    }

    fn sent(&mut self, endpoint: &str, placement: &Placement) -> Option<Sent> {
        let at = self.position(endpoint)?;
        let bytes_per_token = self.bytes_per_token();
        let Predicted { bytes, chosen, .. } = placement.predicted;
        // What does not fit into a cache is not computed: it is refused.
        let bytes = self.capacity_bytes(at).map_or(bytes, |capacity| bytes.min(capacity));
        let uncached = bytes.saturating_sub(chosen) as f64 / bytes_per_token;
        let has_prefix = self.policy.basis == Basis::Prefix;
        let slot = self.members.get(at)?.slot.filter(|_| has_prefix);
        let under_way = slot.and_then(|slot| self.under_way.add(slot, placement.ask()));
        let member = self.members.get_mut(at)?;
        Some(Sent { part: member.load.add(uncached), under_way })
    }

    /// What is learned of prompts is learned here, of those alone that somebody computed.
    fn served(&mut self, endpoint: &str, ask: &Ask, predicted: &Predicted, now: Instant) {
        self.count_request(now);
        let Some(at) = self.position(endpoint) else { return };
        self.hold(at, ask, now);
        let bytes_per_token = self.bytes_per_token();
        let Predicted { bytes, hot, available, chosen } = *predicted;
        self.totals.available += available as f64 / bytes_per_token;
        self.totals.predicted += chosen as f64 / bytes_per_token;
        if bytes > 0 {
            let uncached = bytes.saturating_sub(chosen) as f64 / bytes_per_token;
            self.average_uncached += AVERAGE * (uncached - self.average_uncached);
            self.reuse.known(available.saturating_sub(hot), bytes.saturating_sub(hot));
        }
        let tokens = bytes as f64 / bytes_per_token;
        self.totals.prompt += tokens;
        if let Some(member) = self.members.get_mut(at) {
            member.routed_tokens += tokens as u64;
            member.recent_tokens.add(tokens, now);
        }
    }

    fn count_request(&mut self, now: Instant) {
        self.epoch_requests += 1;
        if self.epoch_requests >= EPOCH_REQUESTS || now.saturating_duration_since(self.epoch_started) >= EPOCH {
            let passed = now.saturating_duration_since(self.epoch_started).as_secs() / EPOCH.as_secs();
            // After a long silence nothing is left anyway.
            let halvings = u8::try_from(passed).unwrap_or(u8::MAX).clamp(1, 32);
            self.epoch = self.epoch.wrapping_add(halvings);
            self.requests /= f64::from(1_u32.checked_shl(u32::from(halvings)).unwrap_or(u32::MAX));
            (self.epoch_started, self.epoch_requests) = (now, 0);
        }
        self.requests += 1.0;
    }

    fn learn(&mut self, endpoint: &str, predicted: &Predicted, prompt_tokens: Option<u64>, cached: u64, now: Instant) {
        if predicted.bytes == 0 {
            return;
        }
        if let Some(tokens) = prompt_tokens.filter(|tokens| *tokens > 0) {
            self.bytes += AVERAGE * (predicted.bytes as f64 - self.bytes);
            self.tokens += AVERAGE * (tokens as f64 - self.tokens);
        }
        self.totals.delivered += cached as f64;
        self.tells_cached |= cached > 0;
        if !self.tells_cached {
            return;
        }
        let delivered = (cached as f64 * self.bytes_per_token()) as u64;
        self.reuse.delivered(delivered.saturating_sub(predicted.hot), predicted.bytes.saturating_sub(predicted.hot));
        let seconds = self.seconds(now);
        let Some(member) = self.member_mut(endpoint) else { return };
        if member.learn(predicted.chosen, delivered) == Verdict::Restarted {
            member.forget(seconds);
            self.totals.restarts += 1;
        }
    }

    /// Bytes of prompts that the member's cache has room for, if that is known.
    fn capacity_bytes(&self, at: usize) -> Option<u64> {
        let told = self.members.get(at)?.load.capacity_tokens();
        let tokens = self.policy.cache_tokens.or(told)?;
        Some((tokens as f64 * self.bytes_per_token()) as u64)
    }

    fn position(&self, endpoint: &str) -> Option<usize> {
        self.members.iter().position(|member| *member.endpoint.id == *endpoint)
    }

    fn member_mut(&mut self, endpoint: &str) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| *member.endpoint.id == *endpoint)
    }

    fn bytes_per_token(&self) -> f64 {
        (self.bytes / self.tokens).clamp(0.5, 16.0)
    }

    fn seconds(&self, now: Instant) -> u32 {
        let passed = u32::try_from(now.saturating_duration_since(self.started).as_secs()).unwrap_or(u32::MAX);
        passed.saturating_add(TIME_BEFORE)
    }
}
