//! A pool: the replicas of one Backend, what they probably hold, how busy they are, and where the next request goes.
//!
//! All of it is behind one lock that is held for microseconds and never across an await. Time comes from the caller.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::blocks::{PrefixChain, block_len};
use super::decision::{Candidate, Decision, Keyed, Question, Sharing, decide};
use super::index::{Index, MAX_SLOTS, Slots, WasHot};
use super::load::{OwnLoad, Part, Scrape};
use super::member::{Member, Verdict};
use super::news::{News, Newsroom};
use super::policy::{AffinityPolicy, Basis};
use super::rank::preference;
use super::ticket::{Predicted, Ticket};
use crate::config::model::Endpoint;

/// The most leading blocks that can be hot.
const HOT_BLOCKS: usize = 64;
/// A block is hot when it is in more than this part of what one endpoint gets of the requests, and is no longer below the other.
const HOT_ABOVE: f64 = 0.5;
const COLD_BELOW: f64 = 0.25;
/// So many requests must have carried a block of late before it can be hot: where there are fewer, one endpoint can serve them
/// all, and one conversation is all there is.
const HOT_REQUESTS: f64 = 32.0;
/// Counts of requests halve after so many of them, or so long.
const EPOCH_REQUESTS: u32 = 4096;
const EPOCH: Duration = Duration::from_secs(60);
/// A block that peers heard of is told again only when it has not been used for so long, in seconds.
const RETELL_AFTER: u32 = 5;
/// Before anything is known: as for limits (`limit::estimate`).
const BYTES_PER_TOKEN: f64 = 4.0;
/// How much the last answer counts in averages.
const AVERAGE: f64 = 1.0 / 64.0;
/// What peers told counts as the whole picture for so long after the last word.
pub const SHARING_EXPIRES_AFTER: Duration = Duration::from_secs(2);

/// A request that is to be placed.
#[derive(Debug, Clone)]
pub struct Ask {
    /// What else than its text makes its prefix: [`PrefixScope::hash`](super::PrefixScope::hash).
    pub scope: u64,
    /// Its prompt; `None` where it leaves nothing in a cache.
    pub prompt: Option<Arc<PrefixChain>>,
    /// The hash of a key that the client or the operator named: it wins over the prompt.
    pub session: Option<u64>,
    /// Any number that differs from request to request.
    pub entropy: u64,
}

/// Where a request goes.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The choice, then at most two to fall back on. Empty only where there are no endpoints.
    pub order: Vec<Arc<Endpoint>>,
    /// Why.
    pub reason: Reason,
    /// What the choice costs, in seconds: comparable between pools.
    pub cost: f64,
    /// What is expected of caches.
    pub predicted: Predicted,
    ask: Ask,
}

impl Placement {
    /// What was asked.
    pub(super) fn ask(&self) -> &Ask {
        &self.ask
    }
}

/// Why a request goes where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// With the other requests of its session.
    Session,
    /// To where most of its prompt is in cache.
    Prefix,
    /// To the home of its prompt, of which we know nothing.
    Home,
    /// Away from where its prompt is in cache, or its home: it would have waited there for longer than it takes to compute it
    /// anew.
    Load,
    /// Nothing speaks for one endpoint.
    Spread,
    /// No endpoint is available; it is tried all the same.
    NoneAvailable,
}

impl Reason {
    /// As metrics and `x-attache-decision` name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Prefix => "prefix",
            Self::Home => "home",
            Self::Load => "load",
            Self::Spread => "spread",
            Self::NoneAvailable => "none_available",
        }
    }
}

/// What one endpoint would be for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Its id.
    pub endpoint: Arc<str>,
    /// Bytes of the prompt, from the beginning, that it probably holds.
    pub matched_bytes: u64,
    /// Tokens to compute before.
    pub pending_tokens: f64,
    /// Its place in the key's order; 0 is the home.
    pub rank: usize,
    /// In seconds.
    pub cost: f64,
}

/// Figures of a pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolStats {
    /// Blocks that the index knows.
    pub index_blocks: usize,
    /// What it takes, in bytes.
    pub index_bytes: usize,
    /// What it may take, in bytes.
    pub index_budget_bytes: usize,
    /// Blocks that had to go for others.
    pub index_evictions: u64,
    /// Tokens of prompts that some endpoint probably held.
    pub available_tokens: u64,
    /// Tokens of prompts that the chosen endpoint probably held.
    pub predicted_tokens: u64,
    /// Tokens of prompts that came from a cache, as answers said.
    pub delivered_tokens: u64,
    /// News that peers were not told, as they were too many.
    pub dropped_news: u64,
    /// Engines that had begun anew, as their answers showed.
    pub restarts: u64,
    /// Of each endpoint.
    pub endpoints: Vec<EndpointStats>,
}

/// Figures of one endpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointStats {
    /// Its id.
    pub endpoint: Arc<str>,
    /// What this sidecar has under way there.
    pub own: OwnLoad,
    /// Its metrics page, if that is not stale.
    pub page: Option<Scrape>,
    /// How far predictions are believed.
    pub trust: f64,
    /// Its weight among others; below 1 while it starts slowly.
    pub weight: f64,
    /// Bytes of prompts that it is believed to hold.
    pub held_bytes: u64,
    /// Prompt tokens of all requests that this sidecar sent there.
    pub routed_tokens: u64,
}

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
    /// Whether answers here say what came from a cache.
    tells_cached: bool,
    newsroom: Option<Newsroom>,
    shared_until: Option<Instant>,
    totals: Totals,
}

#[derive(Debug, Default)]
struct Totals {
    available: f64,
    predicted: f64,
    delivered: f64,
    restarts: u64,
}

/// A prompt's way through the index.
struct Walk {
    /// For each member, how many bytes of the prompt's beginning it holds.
    matched: Vec<u64>,
    hot_bytes: u64,
    /// The first block that is not hot.
    key: Option<u64>,
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
    pub fn dispatch(self: &Arc<Self>, placement: &Placement, now: Instant) -> Option<Ticket> {
        let endpoint = placement.order.first()?;
        let sent = self.state().sent(&endpoint.id, placement, now)?;
        Some(Ticket::new(Arc::clone(self), placement, sent))
    }

    /// What an endpoint's metrics page said.
    pub fn scraped(&self, endpoint: &str, scrape: Scrape, now: Instant) {
        if let Some(member) = self.state().member_mut(endpoint) {
            member.load.scraped(scrape, now);
        }
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

    /// The endpoint did not take the request: it does not have what it was believed to get, from block `first_new` on.
    pub(super) fn undo(&self, endpoint: &str, ask: &Ask, first_new: usize) {
        self.state().undo(endpoint, ask, first_new);
    }

    /// Another endpoint than the first took the request.
    pub(super) fn served(&self, endpoint: &str, ask: &Ask, now: Instant) {
        let mut state = self.state();
        if let Some(member) = state.position(endpoint) {
            state.hold(member, ask, now);
        }
    }

    /// What an answer said of its prompt: its tokens, and how many of them came from a cache.
    pub(super) fn learn(&self, endpoint: &str, predicted: &Predicted, prompt_tokens: u64, cached: u64, now: Instant) {
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
    /// The first block that the endpoint did not have.
    pub(super) first_new: usize,
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

    fn place(&mut self, ask: &Ask, available: impl Fn(&Endpoint) -> bool, now: Instant) -> Placement {
        for member in &mut self.members {
            let is_available = available(&member.endpoint);
            member.note_available(is_available, now);
        }
        let walk = self.walk(ask);
        let is_candidate = |member: &Member| available(&member.endpoint);
        let mut candidates: Vec<usize> =
            self.members.iter().enumerate().filter(|(_, member)| is_candidate(member)).map(|(at, _)| at).collect();
        let none_available = candidates.is_empty();
        if none_available {
            candidates = (0..self.members.len()).collect();
        }
        let (decision, keyed) = self.decide(&candidates, ask, &walk, now);
        let pick = decision.order.first().copied();
        let member = |at: usize| candidates.get(at).and_then(|at| self.members.get(*at));
        let matched = |at: usize| candidates.get(at).and_then(|at| walk.matched.get(*at)).copied().unwrap_or(0);
        let most = (0..candidates.len()).map(matched).max().unwrap_or(0);
        let predicted = pick.map_or(0, matched);
        let rank = pick.and_then(|pick| decision.ranks.get(pick)).copied().unwrap_or(0);
        let reason = if none_available {
            Reason::NoneAvailable
        } else if ask.session.is_some() && rank == 0 {
            Reason::Session
        } else if keyed == Keyed::No {
            Reason::Spread
        } else if predicted > walk.hot_bytes && predicted == most {
            Reason::Prefix
        } else if rank == 0 {
            Reason::Home
        } else {
            Reason::Load
        };
        Placement {
            order: decision
                .order
                .iter()
                .filter_map(|at| member(*at))
                .map(|member| Arc::clone(&member.endpoint))
                .collect(),
            reason,
            cost: pick.and_then(|pick| decision.costs.get(pick)).copied().unwrap_or(f64::MAX),
            predicted: Predicted {
                bytes: ask.prompt.as_ref().map_or(0, |prompt| prompt.bytes),
                available: most,
                chosen: predicted,
            },
            ask: ask.clone(),
        }
    }

    fn standings(&mut self, ask: &Ask, now: Instant) -> Vec<Standing> {
        let walk = self.walk(ask);
        let all: Vec<usize> = (0..self.members.len()).collect();
        let (Decision { costs, ranks, .. }, _) = self.decide(&all, ask, &walk, now);
        let facts = self.members.iter().zip(walk.matched).zip(costs).zip(ranks);
        facts
            .map(|(((member, matched_bytes), cost), rank)| Standing {
                endpoint: Arc::clone(&member.endpoint.id),
                matched_bytes,
                pending_tokens: member.load.pending_tokens(self.average_uncached, now),
                rank,
                cost,
            })
            .collect()
    }

    fn decide(&self, candidates: &[usize], ask: &Ask, walk: &Walk, now: Instant) -> (Decision, Keyed) {
        let key = ask.session.or(walk.key);
        let keyed = if key.is_some() { Keyed::Yes } else { Keyed::No };
        // A number that counts up is no hash yet.
        let key = key.unwrap_or_else(|| xxh3_64(&ask.entropy.to_le_bytes()));
        let goes_by_key_alone = self.policy.basis == Basis::KeyOnly;
        let facts: Vec<Candidate> = candidates
            .iter()
            .filter_map(|at| Some((self.members.get(*at)?, *walk.matched.get(*at)?)))
            .map(|(member, matched)| Candidate {
                preference: preference(key, &member.endpoint.id, member.weight(now)),
                matched: matched.saturating_sub(walk.hot_bytes) as f64 * member.trust,
                pending_tokens: if goes_by_key_alone {
                    0.0
                } else {
                    member.load.pending_tokens(self.average_uncached, now)
                },
                kv_usage: member.load.page(now).map_or(0.0, |page| if goes_by_key_alone { 0.0 } else { page.kv_usage }),
            })
            .collect();
        let question = Question {
            bytes: ask.prompt.as_ref().map_or(0.0, |prompt| prompt.bytes as f64),
            hot_bytes: walk.hot_bytes as f64,
            bytes_per_token: self.bytes_per_token(),
            keyed,
            sharing: if self.shared_until.is_some_and(|until| now <= until) { Sharing::Live } else { Sharing::None },
        };
        (decide(&facts, &question, &self.policy.weights), keyed)
    }

    /// Follows the prompt through the index as far as anybody holds it.
    fn walk(&self, ask: &Ask) -> Walk {
        let mut walk = Walk { matched: vec![0; self.members.len()], hot_bytes: 0, key: None };
        let Some(prompt) = ask.prompt.as_ref().filter(|_| self.policy.basis == Basis::Prefix) else {
            walk.key = ask.prompt.as_ref().and_then(|prompt| prompt.blocks.first()).map(|hash| hash ^ ask.scope);
            return walk;
        };
        let latest_horizon = self.members.iter().map(|member| member.horizon).max().unwrap_or(0);
        let mut holders = Slots::NONE;
        self.members.iter().filter_map(|member| member.slot).for_each(|slot| holders.insert(slot));
        let mut bytes = 0;
        let mut is_hot = true;
        for (depth, hash) in prompt.blocks.iter().enumerate() {
            let key = hash ^ ask.scope;
            let place = self.index.find(key);
            is_hot &= depth < HOT_BLOCKS && place.is_some_and(|place| self.index.is_hot(place));
            if is_hot {
                walk.hot_bytes += block_len(depth) as u64;
            } else if walk.key.is_none() {
                walk.key = Some(key);
            }
            let Some(place) = place else { break };
            let mut still = self.index.holders(place).and(&holders);
            let last_used = self.index.last_used(place);
            if last_used < latest_horizon {
                still = self.without_forgotten(&still, last_used);
            }
            for slot in holders.without(&still).iter() {
                self.note_matched(&mut walk, slot, bytes);
            }
            holders = still;
            if holders.is_empty() && !is_hot {
                break;
            }
            bytes += block_len(depth) as u64;
        }
        for slot in holders.iter() {
            self.note_matched(&mut walk, slot, bytes);
        }
        walk
    }

    fn note_matched(&self, walk: &mut Walk, slot: usize, bytes: u64) {
        let member = self.slots.get(slot).copied().flatten();
        if let Some(matched) = member.and_then(|member| walk.matched.get_mut(member)) {
            *matched = bytes;
        }
    }

    /// Those of the holders that did not lose what was last used then.
    fn without_forgotten(&self, holders: &Slots, last_used: u32) -> Slots {
        let mut still = Slots::NONE;
        for slot in holders.iter() {
            let member = self.slots.get(slot).copied().flatten().and_then(|at| self.members.get(at));
            if member.is_some_and(|member| member.horizon <= last_used) {
                still.insert(slot);
            }
        }
        still
    }

    fn sent(&mut self, endpoint: &str, placement: &Placement, now: Instant) -> Option<Sent> {
        let at = self.position(endpoint)?;
        self.count_request(now);
        let first_new = self.hold(at, &placement.ask, now);
        let bytes_per_token = self.bytes_per_token();
        let Predicted { bytes, available, chosen } = placement.predicted;
        self.totals.available += available as f64 / bytes_per_token;
        self.totals.predicted += chosen as f64 / bytes_per_token;
        let uncached = bytes.saturating_sub(chosen) as f64 / bytes_per_token;
        if bytes > 0 {
            self.average_uncached += AVERAGE * (uncached - self.average_uncached);
        }
        let member = self.members.get_mut(at)?;
        member.routed_tokens += (bytes as f64 / bytes_per_token) as u64;
        Some(Sent { part: member.load.add(uncached), first_new })
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

    /// The member holds the prompt from now on. Tells the first block that it did not hold before.
    fn hold(&mut self, at: usize, ask: &Ask, now: Instant) -> usize {
        let Some(prompt) = ask.prompt.clone().filter(|_| self.policy.basis == Basis::Prefix) else { return 0 };
        let Some((slot, endpoint)) =
            self.members.get(at).and_then(|member| Some((member.slot?, Arc::clone(&member.endpoint.id))))
        else {
            return 0;
        };
        let now = self.seconds(now);
        let mut first_new = prompt.blocks.len();
        let mut news = None;
        for (depth, hash) in prompt.blocks.iter().enumerate() {
            let held = self.hold_block(slot, hash ^ ask.scope, depth, now);
            if depth < HOT_BLOCKS {
                self.warm(hash ^ ask.scope, now);
            }
            if held == Held::New {
                first_new = first_new.min(depth);
            }
            if held != Held::Recently && news.is_none() {
                news = Some(depth);
            }
        }
        if let (Some(newsroom), Some(depth)) = (&mut self.newsroom, news) {
            let keys = prompt.blocks.iter().skip(depth).map(|hash| hash ^ ask.scope).collect();
            newsroom.add(News { endpoint, depth, keys });
        }
        if let Some(capacity) = self.capacity_bytes(at)
            && let Some(member) = self.members.get_mut(at)
        {
            member.keep_within(capacity);
        }
        first_new
    }

    fn hold_block(&mut self, slot: usize, key: u64, depth: usize, now: u32) -> Held {
        let bytes = block_len(depth) as u64;
        let Some(place) = self.index.find(key) else {
            let (place, evicted) = self.index.insert(key, depth, now);
            if let Some(evicted) = evicted {
                self.uncount(&evicted.holders, block_len(evicted.depth) as u64, evicted.last_used);
            }
            if let Some(place) = place {
                let mut holders = Slots::NONE;
                holders.insert(slot);
                self.index.set_holders(place, &holders);
                self.count(&holders, bytes, now);
            }
            return Held::New;
        };
        let last_used = self.index.last_used(place);
        let before = self.index.holders(place);
        let mut holders = self.without_forgotten(&before, last_used);
        let age = now.saturating_sub(last_used);
        // Of what many hold it matters less when exactly it was used, and noting it costs more.
        if age > (holders.iter().count() / 16) as u32 {
            self.uncount(&holders, bytes, last_used);
            self.count(&holders, bytes, now);
            self.index.touch(place, now);
        }
        let held = match (holders.contains(slot), age > RETELL_AFTER) {
            (false, _) => Held::New,
            (true, true) => Held::LongAgo,
            (true, false) => Held::Recently,
        };
        if held == Held::New {
            let mut one = Slots::NONE;
            one.insert(slot);
            self.count(&one, bytes, self.index.last_used(place));
            holders.insert(slot);
        }
        if holders != before {
            self.index.set_holders(place, &holders);
        }
        held
    }

    fn warm(&mut self, key: u64, now: u32) {
        let share_of_one = 1.0 / self.members.len().max(1) as f64;
        let requests = self.requests.max(1.0);
        let is_alone = self.members.len() < 2;
        let judge = |heat: f64, was: WasHot| {
            let bound = match was {
                WasHot::Yes => COLD_BELOW,
                WasHot::No => HOT_ABOVE,
            };
            !is_alone && heat >= HOT_REQUESTS * bound / HOT_ABOVE && heat / requests > bound * share_of_one
        };
        if let Some(place) = self.index.find(key) {
            self.index.warm(place, self.epoch, now, judge);
        }
    }

    fn undo(&mut self, endpoint: &str, ask: &Ask, first_new: usize) {
        let Some(prompt) = &ask.prompt else { return };
        let Some(slot) = self.position(endpoint).and_then(|at| self.members.get(at)?.slot) else { return };
        for (depth, hash) in prompt.blocks.iter().enumerate().skip(first_new) {
            let Some(place) = self.index.find(hash ^ ask.scope) else { continue };
            let before = self.index.holders(place);
            let mut one = Slots::NONE;
            one.insert(slot);
            let one = one.and(&before);
            self.uncount(&one, block_len(depth) as u64, self.index.last_used(place));
            self.index.set_holders(place, &before.without(&one));
        }
    }

    fn hear_news(&mut self, news: &News, age: Duration, now: Instant) {
        let Some(slot) = self.position(&news.endpoint).and_then(|at| self.members.get(at)?.slot) else { return };
        let then = self.seconds(now).saturating_sub(u32::try_from(age.as_secs()).unwrap_or(u32::MAX));
        for (depth, key) in news.keys.iter().enumerate() {
            self.hold_block(slot, *key, news.depth.saturating_add(depth), then);
        }
    }

    fn learn(&mut self, endpoint: &str, predicted: &Predicted, prompt_tokens: u64, cached: u64, now: Instant) {
        if prompt_tokens == 0 || predicted.bytes == 0 {
            return;
        }
        self.bytes += AVERAGE * (predicted.bytes as f64 - self.bytes);
        self.tokens += AVERAGE * (prompt_tokens as f64 - self.tokens);
        self.totals.delivered += cached as f64;
        self.tells_cached |= cached > 0;
        if !self.tells_cached {
            return;
        }
        let delivered = (cached as f64 * self.bytes_per_token()) as u64;
        let seconds = self.seconds(now);
        let Some(member) = self.member_mut(endpoint) else { return };
        if member.learn(predicted.chosen, delivered) == Verdict::Restarted {
            member.forget(seconds);
            self.totals.restarts += 1;
        }
    }

    fn stats(&self, now: Instant) -> PoolStats {
        let endpoints = self.members.iter().map(|member| EndpointStats {
            endpoint: Arc::clone(&member.endpoint.id),
            own: member.load.own(),
            page: member.load.page(now),
            trust: member.trust,
            weight: member.weight(now),
            held_bytes: member.ages.bytes(),
            routed_tokens: member.routed_tokens,
        });
        PoolStats {
            index_blocks: self.index.len(),
            index_bytes: self.index.bytes(),
            index_budget_bytes: self.policy.index_bytes,
            index_evictions: self.index.evictions(),
            available_tokens: self.totals.available as u64,
            predicted_tokens: self.totals.predicted as u64,
            delivered_tokens: self.totals.delivered as u64,
            dropped_news: self.newsroom.as_ref().map_or(0, Newsroom::dropped),
            restarts: self.totals.restarts,
            endpoints: endpoints.collect(),
        }
    }

    /// Bytes of prompts that the member's cache has room for, if that is known.
    fn capacity_bytes(&self, at: usize) -> Option<u64> {
        let told = self.members.get(at)?.load.capacity_tokens();
        let tokens = self.policy.cache_tokens.or(told)?;
        Some((tokens as f64 * self.bytes_per_token()) as u64)
    }

    fn count(&mut self, holders: &Slots, bytes: u64, at: u32) {
        for slot in holders.iter() {
            if let Some(member) = self.in_slot(slot) {
                member.ages.add(bytes, at);
            }
        }
    }

    fn uncount(&mut self, holders: &Slots, bytes: u64, at: u32) {
        for slot in holders.iter() {
            if let Some(member) = self.in_slot(slot).filter(|member| member.horizon <= at) {
                member.ages.remove(bytes, at);
            }
        }
    }

    fn in_slot(&mut self, slot: usize) -> Option<&mut Member> {
        let at = self.slots.get(slot).copied().flatten()?;
        self.members.get_mut(at)
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
        u32::try_from(now.saturating_duration_since(self.started).as_secs()).unwrap_or(u32::MAX)
    }
}

/// Whether an endpoint held a block already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    New,
    LongAgo,
    Recently,
}
