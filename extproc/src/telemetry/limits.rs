//! What single limits do: what they refuse, what is used of them, and what went over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::exchange::LimitEvent;
use crate::limit::{CostProgram, Enforcement, LimitFigure};

#[derive(Default)]
pub(super) struct LimitMetrics {
    refusals: Family<LimitLabels, Counter>,
    shadow_refusals: Family<LimitLabels, Counter>,
    /// Counted by the ledger.
    overdraft_tokens: Family<LimitLabels, Counter>,
    /// Counted by the programs themselves.
    cost_fallbacks: Family<LimitLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    limit: Arc<str>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EnforcedLabels {
    limit: Arc<str>,
    enforcement: &'static str,
}

impl LimitMetrics {
    pub(super) fn register(&self, attache: &mut Registry) {
        attache.register("limit_refusals", "Requests that a limit refused", self.refusals.clone());
        attache.register(
            "limit_shadow_refusals",
            "Requests that a limit in shadow would have refused",
            self.shadow_refusals.clone(),
        );
        attache.register(
            "limit_overdraft_tokens",
            "Tokens that were charged beyond a limit, by the answers that went over it",
            self.overdraft_tokens.clone(),
        );
        attache.register(
            "limit_cost_fallbacks",
            "Answers whose cost expression failed with their numbers, so that all of their tokens were charged",
            self.cost_fallbacks.clone(),
        );
    }

    pub(super) fn observe(&self, event: &LimitEvent) {
        let (metric, limit) = match event {
            LimitEvent::Refused(limit) => (&self.refusals, limit),
            LimitEvent::WouldRefuse(limit) => (&self.shadow_refusals, limit),
        };
        metric.get_or_create(&LimitLabels { limit: Arc::clone(limit) }).inc();
    }

    /// Takes over what is counted elsewhere. What is answered is for this page alone: a limit that is gone has no share any more.
    pub(super) fn show(&self, figures: &[LimitFigure]) -> Registry {
        let set = |counter: &Family<LimitLabels, Counter>, limit: Arc<str>, count: u64| {
            counter.get_or_create(&LimitLabels { limit }).inner().store(count, Ordering::Relaxed);
        };
        for (limit, count) in CostProgram::fallbacks() {
            set(&self.cost_fallbacks, limit, count);
        }
        let highest_use = Family::<EnforcedLabels, Gauge<f64, AtomicU64>>::default();
        for LimitFigure { limit, enforcement, highest_share, overdraft_tokens } in figures {
            if *overdraft_tokens > 0 {
                set(&self.overdraft_tokens, Arc::clone(limit), *overdraft_tokens);
            }
            let enforcement = match enforcement {
                Enforcement::Refuse => "refuse",
                Enforcement::Shadow => "shadow",
            };
            highest_use.get_or_create(&EnforcedLabels { limit: Arc::clone(limit), enforcement }).set(*highest_share);
        }
        let mut of_page = Registry::with_prefix("attache");
        of_page.register(
            "limit_highest_use_ratio",
            "The share of a limit that is used by whoever has used most of it, as far as this sidecar has seen",
            highest_use,
        );
        of_page
    }
}

#[cfg(test)]
mod tests {
    use attache_proto::Usage;

    use crate::limit::{CostContext, CostProgram, Enforcement, LedgerStats, LimitFigure};
    use crate::telemetry::{PoolFigures, Telemetry};
    use std::sync::Arc;

    fn page(telemetry: &Telemetry, limits: &[LimitFigure]) -> String {
        telemetry.page(&LedgerStats::default(), limits, 0, PoolFigures::default())
    }

    #[test]
    fn costs_that_failed_are_on_the_page_under_their_limit() {
        let limit = Arc::from("ns/policy/weighted");
        let program = CostProgram::compile("input_tokens - cached_input_tokens").unwrap().of_limit(&limit);
        let [model, backend, route] = ["m", "ns/backend", "ns/route"].map(Arc::<str>::from);
        let context = CostContext { served_model: Arc::clone(&model), model, backend, route };
        let odd = Usage { input: 100, output: 10, total: 110, cached_input: 200, ..Usage::default() };
        program.cost(&odd, &context);
        program.cost(&Usage { cached_input: 0, ..odd }, &context);
        let page = page(&Telemetry::default(), &[]);
        assert!(page.contains("attache_limit_cost_fallbacks_total{limit=\"ns/policy/weighted\"} 1\n"), "{page}");
    }

    #[test]
    fn a_limit_is_on_the_page_with_what_is_used_of_it_for_as_long_as_it_is_in_force() {
        let telemetry = Telemetry::default();
        let figure = |enforcement, highest_share, overdraft_tokens| LimitFigure {
            limit: "ns/policy/l".into(),
            enforcement,
            highest_share,
            overdraft_tokens,
        };
        let first = page(&telemetry, &[figure(Enforcement::Refuse, 0.9, 75)]);
        for line in [
            "attache_limit_highest_use_ratio{limit=\"ns/policy/l\",enforcement=\"refuse\"} 0.9\n",
            "attache_limit_overdraft_tokens_total{limit=\"ns/policy/l\"} 75\n",
        ] {
            assert!(first.contains(line), "{line}{first}");
        }
        let in_shadow = page(&telemetry, &[figure(Enforcement::Shadow, 1.5, 75)]);
        assert!(
            in_shadow.contains("enforcement=\"shadow\"} 1.5\n") && !in_shadow.contains("\"refuse\""),
            "{in_shadow}"
        );
        assert!(!page(&telemetry, &[]).contains("highest_use_ratio{"));
    }
}
