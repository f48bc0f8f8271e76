//! What the tests of this room share, and the suite that both stores pass.

mod bed;
mod faults;
mod floors;
mod history;
mod ledger;
mod on_redis;
mod proxy;
mod recorded;
mod sliding;
mod suite;
mod topology;
mod warnings;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::*;
use crate::testing::{log, redis_server};

/// A clock that only tests turn.
pub(super) struct Hand(AtomicU64);

/// A day into a window of [`bed::ERA`], and minutes and hours begin with it.
impl Default for Hand {
    fn default() -> Self {
        Self(AtomicU64::new(milliseconds(5 * bed::ERA + Duration::from_secs(86_400))))
    }
}

impl Hand {
    pub(super) fn advance(&self, by: Duration) {
        self.0.fetch_add(milliseconds(by), Ordering::Relaxed);
    }

    pub(super) fn set_back(&self, by: Duration) {
        self.0.fetch_sub(milliseconds(by), Ordering::Relaxed);
    }
}

impl Clock for Hand {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap()
}

/// Tokens in a fixed minute, for everyone together.
pub(super) fn limit(id: &str, amount: u64, mode: Mode) -> Limit {
    Limit {
        id: id.into(),
        per: vec![],
        when: vec![],
        quantity: Quantity::Tokens(Cost::Total),
        amount,
        low_priority_percent: 100,
        window: Window::Fixed(Duration::from_secs(60)),
        mode,
        cap: Cap::Open,
        default_max_tokens: None,
        enforcement: Enforcement::Refuse,
        on_store_error: OnStoreError::Deny,
    }
}

/// The context of a request for a model that one backend serves under the same name.
pub(super) fn asking(model: &str) -> Arc<CostContext> {
    let model: Arc<str> = model.into();
    Arc::new(CostContext {
        served_model: Arc::clone(&model),
        model,
        backend: "ns/backend".into(),
        route: "ns/route".into(),
    })
}

pub(super) fn nobody<'a>() -> Subject<'a> {
    static CONTEXT: LazyLock<Arc<CostContext>> = LazyLock::new(|| asking("m"));
    Subject {
        key_id: None,
        tenant: None,
        priority: Priority::Normal,
        context: &CONTEXT,
        groups: crate::limit::ModelGroups::default(),
        model_class: None,
        label: &|_| None,
        header: &|_| None,
    }
}

/// A hold of the counter that `tenant` has.
pub(super) fn hold(limit: &Arc<Limit>, tenant: &str, estimate: u64) -> Hold {
    let per_tenant = Limit { per: vec![Dimension::Tenant], ..Limit::clone(limit) };
    let counter = CounterKey::new(&per_tenant, &Subject { tenant: Some(tenant), ..nobody() });
    Hold { limit: Arc::clone(limit), counter, estimate, ceiling: limit.amount }
}

pub(super) fn request(holds: Vec<Hold>) -> ReserveRequest {
    let (id, context) = (ReservationId::random(), asking("m"));
    ReserveRequest { id, key_id: None, context, estimate: Estimate::default(), holds, judge: Judge::Anyone }
}

/// What a store answered, as the request's client gets to know it.
pub(super) fn decision(request: &ReserveRequest, admission: Admission) -> Decision {
    Decision::new(Arc::new(request.clone()), admission, Keeper::Store)
}

pub(super) fn renewal(request: &ReserveRequest) -> Growth {
    let request = Arc::new(request.clone());
    Growth { from: Arc::clone(&request), doubt: None, to: request, keeper: Keeper::Store }
}

pub(super) fn settlement(request: &ReserveRequest, actual: &[u64]) -> Settlement {
    assert_eq!(request.holds.len(), actual.len());
    let charges = request.holds.iter().cloned().zip(actual).map(|(hold, actual)| Charge { hold, actual: *actual });
    Settlement { id: request.id.clone(), charges: charges.collect(), doubt: None, keeper: Keeper::Store }
}
