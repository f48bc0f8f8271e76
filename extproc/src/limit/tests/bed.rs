//! A store of either kind, and a way to let time go by for it.
//!
//! The memory store's clock can be turned. Redis's cannot, so everything that is in it is made older instead: leases end
//! earlier, counters are of earlier windows, keys live shorter; what the sidecar saw of them, it forgets. Windows in these tests
//! are so long that no real one ends.

use ::redis;

use super::redis_server::{PATIENCE, RedisServer, ask, free_port, say, until};
use super::*;

/// The window of limits under test: the present one lasts until 2035.
pub(super) const ERA: Duration = Duration::from_secs(4_000 * 86_400);

const MAKE_OLDER: &str = r"
    local by = tonumber(ARGV[1])
    local function length_of(window)
      local of_calendar = { hour = 3600000, day = 86400000, week = 604800000 }
      return tonumber(string.match(window, '^[fs](%d+)$')) or of_calendar[string.match(window, '^(%a+)@')]
    end
    for _, key in ipairs(redis.call('KEYS', 'att1:*')) do
      local left = redis.call('PTTL', key)
      local window = string.match(key, '^att1:{%x+}:%x+:([^:]+):%x+$')
      if string.match(key, ':leases$') then
        for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
          redis.call('ZINCRBY', key, -by, member)
        end
      elseif window then
        local bucket, rest = struct.unpack('<I4', redis.call('GET', key)), string.sub(redis.call('GET', key), 5)
        bucket = bucket - math.floor(by / length_of(window))
        redis.call('SET', key, struct.pack('<I4', bucket) .. rest)
      end
      redis.call('PEXPIRE', key, left - by)
    end";

pub(super) enum Bed {
    Memory { store: MemoryStore, hand: Arc<Hand> },
    Redis { store: RedisStore, server: RedisServer },
}

impl Bed {
    pub(super) fn memory() -> Self {
        let hand = Arc::new(Hand::default());
        Self::Memory { store: MemoryStore::with_clock(Arc::clone(&hand) as Arc<dyn Clock>), hand }
    }

    pub(super) async fn redis() -> Self {
        let server = RedisServer::start().await;
        Self::Redis { store: connect(&server), server }
    }

    /// A cluster of one node: each group of counters has calls of its own all the same.
    pub(super) async fn cluster() -> Self {
        let server = RedisServer::start_on_port(|_, _| {
            let bus = free_port();
            let words = format!("--cluster-enabled yes --cluster-port {bus}");
            words.split_whitespace().map(str::to_owned).collect()
        })
        .await;
        let mut connection = server.connection().await;
        say(&mut connection, "CLUSTER ADDSLOTSRANGE 0 16383").await;
        until(async || {
            let info = ask(&mut connection, "CLUSTER INFO").await.unwrap();
            format!("{info:?}").contains("cluster_state:ok")
        })
        .await;
        let url = format!("redis+cluster://127.0.0.1:{}", server.port());
        Self::Redis { store: connect_to(&url), server }
    }

    pub(super) async fn reserve(&self, request: &ReserveRequest) -> Admission {
        match self {
            Self::Memory { store, .. } => store.reserve(request).await.unwrap(),
            Self::Redis { store, .. } => store.reserve(request).await.unwrap(),
        }
    }

    pub(super) async fn granted(&self, holds: Vec<Hold>) -> ReserveRequest {
        let request = request(holds);
        let admission = self.reserve(&request).await;
        assert!(matches!(admission, Admission::Granted { .. }), "{admission:?}");
        request
    }

    pub(super) async fn refused(&self, holds: Vec<Hold>) -> (usize, Vec<CounterState>) {
        match self.reserve(&request(holds)).await {
            Admission::Refused { by, states } => (by, states),
            admission @ Admission::Granted { .. } => panic!("{admission:?}"),
        }
    }

    /// Answers how the counters stand after it.
    pub(super) async fn settle(&self, settlement: &Settlement) -> Vec<CounterState> {
        match self {
            Self::Memory { store, .. } => store.settle(settlement).await.unwrap(),
            Self::Redis { store, .. } => store.settle(settlement).await.unwrap(),
        }
    }

    pub(super) async fn grow(&self, growth: &Growth) -> Admission {
        match self {
            Self::Memory { store, .. } => store.grow(growth).await.unwrap(),
            Self::Redis { store, .. } => store.grow(growth).await.unwrap(),
        }
    }

    pub(super) async fn renew(&self, request: &ReserveRequest) {
        let admission = self.grow(&renewal(request)).await;
        assert!(matches!(admission, Admission::Granted { .. }), "{admission:?}");
    }

    pub(super) async fn reset(&self, holds: &[Hold]) {
        match self {
            Self::Memory { store, .. } => store.reset(holds).await.unwrap(),
            Self::Redis { store, .. } => store.reset(holds).await.unwrap(),
        }
    }

    pub(super) async fn state(&self, hold: &Hold) -> CounterState {
        let holds = std::slice::from_ref(hold);
        let states = match self {
            Self::Memory { store, .. } => store.peek(holds).await.unwrap(),
            Self::Redis { store, .. } => store.peek(holds).await.unwrap(),
        };
        let [state] = states.try_into().unwrap();
        assert!(state.left > Duration::ZERO && state.left <= state.length);
        assert!(state.length <= hold.limit.window.longest());
        state
    }

    /// A counter's (used, held).
    pub(super) async fn peek(&self, hold: &Hold) -> (u64, u64) {
        let state = self.state(hold).await;
        (state.used(), state.held)
    }

    /// What time it is for the store.
    pub(super) fn now_ms(&self) -> u64 {
        let now = match self {
            Self::Memory { hand, .. } => hand.now(),
            Self::Redis { .. } => SystemClock.now(),
        };
        now.as_millis().try_into().unwrap()
    }

    /// Somewhere it is neither before nor after midnight by less than an hour or so.
    pub(super) fn zone_where_no_day_ends_soon(&self) -> jiff::tz::TimeZone {
        let hour = self.now_ms() / 3_600_000 % 24;
        jiff::tz::TimeZone::get(if (3..21).contains(&hour) { "UTC" } else { "Asia/Kolkata" }).unwrap()
    }

    pub(super) async fn advance(&self, by: Duration) {
        match self {
            Self::Memory { hand, .. } => hand.advance(by),
            Self::Redis { server, store } => {
                make_older(server, i64::try_from(by.as_millis()).unwrap()).await;
                store.forget_what_was_seen();
            }
        }
    }

    pub(super) async fn set_clock_back(&self, by: Duration) {
        match self {
            Self::Memory { hand, .. } => hand.set_back(by),
            Self::Redis { server, store } => {
                make_older(server, -i64::try_from(by.as_millis()).unwrap()).await;
                store.forget_what_was_seen();
            }
        }
    }

    /// Forgets everything.
    pub(super) async fn clear(&mut self) {
        match self {
            Self::Memory { .. } => *self = Self::memory(),
            Self::Redis { server, store } => {
                let () = redis::cmd("FLUSHALL").query_async(&mut server.connection().await).await.unwrap();
                store.forget_what_was_seen();
            }
        }
    }
}

/// A store with deadlines for a busy machine.
pub(super) fn connect(server: &RedisServer) -> RedisStore {
    connect_to(&server.url())
}

fn connect_to(url: &str) -> RedisStore {
    RedisStore::connect(url, RedisOptions { deadline: PATIENCE, settle_deadline: PATIENCE }).unwrap()
}

async fn make_older(server: &RedisServer, by_ms: i64) {
    let mut connection = server.connection().await;
    let () = redis::cmd("EVAL").arg(MAKE_OLDER).arg(0).arg(by_ms).query_async(&mut connection).await.unwrap();
}
