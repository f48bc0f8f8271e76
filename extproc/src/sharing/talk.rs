//! One pool's talk with the peers: what is to be told, how far they were heard, and when to talk again.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::codec::{self, Dialect, EndpointHash, HashedNews};
use super::exchange::{Answer, HISTORY, Load, Position, Request, Rest};
use crate::affinity::{OwnLoad, Pool};
use crate::limit::{Errand, StoreError};

/// How long one call may take.
const DEADLINE: Duration = Duration::from_millis(500);
/// Between two calls where nobody has anything to say, or Redis does not let us; what is told is heard within a second then.
const QUIET: Duration = Duration::from_millis(800);
/// How many calls follow each other where there is much to hear: 2 MiB in a tick, so that a replay takes part of a core only.
const MOST_CALLS: usize = 8;
/// How many entries are told in one call; 256 KiB at most.
const MOST_TOLD: usize = 64;
/// The log of one pool takes no more than about so many bytes, which is as many hashes as an index knows ...
const LOG_BYTES: f64 = (32 * 1024 * 1024) as f64;
/// ... and no more than so many entries.
const LONGEST_LOG: f64 = 200_000.0;
/// What an entry takes beyond what is in it.
const ENTRY_OVERHEAD_BYTES: f64 = 64.0;
/// How much the last entry counts in their average length.
const AVERAGE: f64 = 1.0 / 64.0;
/// Whoever is further behind than this lets it go and hears what is new: so many calls, so many bytes.
const MOST_BEHIND: (usize, usize) = (4_096, 64 * 1024 * 1024);
/// After an outage, so much more than its length is heard again.
const MARGIN: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Talk {
    /// Who we are to peers. Another one with each start, so that what was told before is heard again.
    me: u64,
    dialect: Dialect,
    pool: Arc<Pool>,
    keys: [String; 2],
    /// The id of the last entry that was heard, unless that has to be found out anew.
    position: Option<String>,
    /// When all was heard last.
    heard: Option<Instant>,
    /// Redis's time then.
    now_ms: u64,
    /// Calls and bytes since all was heard.
    behind: (usize, usize),
    unsent: VecDeque<Vec<u8>>,
    entry_bytes: f64,
    /// What we have under way, and whether the peers were told of any before.
    load: Vec<u8>,
    told: Told,
    /// At which endpoints each peer had something under way.
    busy: HashMap<u64, Vec<EndpointHash>>,
    next: Instant,
    trouble: Option<StoreError>,
}

/// What peers know of our load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Idle,
    Busy,
}

impl Talk {
    /// From now on the pool keeps news for the peers.
    pub(super) fn new(pool: Arc<Pool>, dialect: Dialect, now: Instant) -> Self {
        pool.share();
        let key = |of: &str| format!("attache:affinity:{{{:016x}}}:{of}", xxh3_64(pool.id().as_bytes()));
        Self {
            me: RandomState::new().hash_one(std::process::id()),
            dialect,
            keys: [key("log"), key("loads")],
            pool,
            position: None,
            heard: None,
            now_ms: 0,
            behind: (0, 0),
            unsent: VecDeque::new(),
            entry_bytes: 1024.0,
            load: Vec::new(),
            told: Told::Idle,
            busy: HashMap::new(),
            next: now,
            trouble: None,
        }
    }

    pub(super) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Why the last call failed, if it did.
    pub(super) fn trouble(&self) -> Option<&StoreError> {
        self.trouble.as_ref()
    }

    /// Whether it is time for a call.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        if now < self.next && self.trouble.is_some() {
            // What is new waits in the pool, which keeps only so much.
            return false;
        }
        self.collect();
        now >= self.next || !self.unsent.is_empty() || !codec::is_idle(&self.load) || self.told == Told::Busy
    }

    /// Tells what is new and hears what peers tell, all of it unless that is much.
    pub(super) async fn exchange(&mut self, errand: &Errand) {
        self.trouble = None;
        let mut quiet = QUIET;
        for _ in 0..MOST_CALLS {
            let (rest, is_lively) = match self.call(errand).await {
                Ok(heard) => heard,
                Err(error) => {
                    // By its clock: after an outage the log may be another.
                    self.position = None;
                    self.behind = (0, 0);
                    self.trouble = Some(error);
                    break;
                }
            };
            if is_lively || rest == Rest::Perhaps {
                quiet = Duration::ZERO;
            }
            if rest == Rest::None {
                self.behind = (0, 0);
                break;
            }
            self.collect();
        }
        self.next = Instant::now() + quiet;
    }

    fn collect(&mut self) {
        let loads = self.pool.own_loads().into_iter().map(|(id, load)| (EndpointHash::of(&id), load));
        self.load = codec::load(&loads.collect::<Vec<_>>());
        if self.unsent.is_empty() {
            let news: Vec<_> = self.pool.take_news().into_iter().map(HashedNews::from).collect();
            self.unsent = self.dialect.entries(&news).into();
        }
    }
}

impl Talk {
    /// One call. Tells whether there may be more, and whether anybody had something to say.
    async fn call(&mut self, errand: &Errand) -> Result<(Rest, bool), StoreError> {
        let asked = Instant::now();
        let is_busy = !codec::is_idle(&self.load);
        let request = Request {
            me: self.me,
            position: self.position(asked),
            longest_log: (LOG_BYTES / (self.entry_bytes + ENTRY_OVERHEAD_BYTES)).min(LONGEST_LOG) as usize,
            // That there is nothing any more is told once.
            load: (is_busy || self.told == Told::Busy).then(|| self.load.clone()),
            entries: self.unsent.iter().take(MOST_TOLD).map(Vec::as_slice).collect(),
        };
        let count = request.entries.len();
        let answer = errand.run(self.keys.to_vec(), request.arguments(), DEADLINE).await?;
        let answer =
            Answer::read(answer).ok_or_else(|| StoreError::Failed("it answered what is no answer".to_owned()))?;
        for entry in self.unsent.drain(..count.min(self.unsent.len())) {
            self.entry_bytes += AVERAGE * (entry.len() as f64 - self.entry_bytes);
        }
        self.told = if is_busy { Told::Busy } else { Told::Idle };
        let is_lively = count > 0 || is_busy || !answer.news.is_empty() || !answer.loads.is_empty();
        let rest = self.hear(answer, asked).await;
        Ok((rest, is_lively))
    }

    fn position(&self, now: Instant) -> Position {
        match &self.position {
            Some(id) => Position::After(id.clone()),
            None => {
                let since = self.heard.map_or(HISTORY, |heard| now.saturating_duration_since(heard) + MARGIN);
                Position::Last(since.min(HISTORY))
            }
        }
    }

    async fn hear(&mut self, answer: Answer, asked: Instant) -> Rest {
        let Answer { now_ms, position, mut rest, news, loads } = answer;
        let endpoints: HashMap<EndpointHash, Arc<str>> =
            self.pool.own_loads().into_iter().map(|(id, _)| (EndpointHash::of(&id), id)).collect();
        self.hear_loads(loads, &endpoints, asked);

        self.behind.0 += 1;
        for (age, entry) in news {
            self.behind.1 += entry.len();
            self.entry_bytes += AVERAGE * (entry.len() as f64 - self.entry_bytes);
            for heard in self.dialect.news(&entry).unwrap_or_default() {
                if let Some(endpoint) = endpoints.get(&heard.endpoint) {
                    self.pool.hear_news(&heard.of(Arc::clone(endpoint)), age, asked);
                }
            }
            // Requests come first: what is heard in one go takes less than 100 us.
            tokio::task::yield_now().await;
        }

        // Where its clock went back, ids may be smaller from now on.
        let went_back = now_ms < self.now_ms;
        self.position = (!went_back).then_some(position);
        self.now_ms = now_ms;
        let (calls, bytes) = self.behind;
        let (most_calls, most_bytes) = MOST_BEHIND;
        if rest == Rest::Perhaps && (calls > most_calls || bytes > most_bytes) {
            self.position = None;
            rest = Rest::None;
        }
        if rest == Rest::None {
            self.heard = Some(asked);
            self.pool.heard_all(Instant::now());
        }
        rest
    }

    fn hear_loads(&mut self, loads: Vec<Load>, endpoints: &HashMap<EndpointHash, Arc<str>>, asked: Instant) {
        let mut busy = HashMap::with_capacity(loads.len());
        for Load { age, peer, bytes } in loads {
            // What a peer of another version says is not known.
            let Some(told) = codec::read_load(&bytes) else { continue };
            // It counts for so long from when it was written, not from when it was read.
            let Some(written) = asked.checked_sub(age) else { continue };
            let before = self.busy.remove(&peer).unwrap_or_default();
            let now_idle = before.into_iter().filter(|before| !told.iter().any(|(endpoint, _)| endpoint == before));
            let now_idle: Vec<_> = now_idle.map(|endpoint| (endpoint, OwnLoad::default())).collect();
            for (endpoint, load) in told.iter().chain(&now_idle) {
                if let Some(endpoint) = endpoints.get(endpoint) {
                    self.pool.hear_load(peer, endpoint, *load, written);
                }
            }
            busy.insert(peer, told.into_iter().map(|(endpoint, _)| endpoint).collect());
        }
        self.busy = busy;
    }
}
