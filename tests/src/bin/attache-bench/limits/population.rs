//! Requests as callers send them, without a gateway: for what the store itself costs.

use std::{fmt::Write as _, sync::Arc};

use attache::limit::{CostContext, Estimate, Limit, ModelGroups, Priority, ReserveRequest, Subject};
use attache_tests::{Result, counters};

/// Keys of this many tenants.
const TENANTS: usize = 100;

/// The limits of one request, the most usual first. Nobody reaches them.
pub(super) const USUAL: [&str; 6] = [
    "{name: key-minute, per: [key], limit: 1000000000000, window: 1m}",
    "{name: key-requests, per: [key], limit: 1000000000000, window: 1m, cost: requests}",
    "{name: tenant-day, per: [tenant], limit: 1000000000000, window: 1d}",
    "{name: key-in-flight, per: [key], concurrency: 1000000}",
    "{name: tenant-model, per: [tenant, model], limit: 1000000000000, window: 1m, mode: strict}",
    "{name: tenant-month, per: [tenant], limit: 1000000000000, window: 30d, cost: output}",
];

/// Callers and their limits.
#[derive(Debug)]
pub(super) struct Population {
    limits: Vec<Arc<Limit>>,
    keys: usize,
    context: Arc<CostContext>,
}

impl Population {
    /// So many keys, each under these limits, which are written as operators write them.
    pub(super) fn new(limits: &[&str], keys: usize) -> Result<Self> {
        let limits = counters::limits(&counters::compile(&yaml(limits))?);
        let [model, backend, route] = ["m", "default/pool", "default/chat"].map(Arc::from);
        let context = CostContext { served_model: Arc::clone(&model), model, backend, route };
        Ok(Self { limits, keys, context: Arc::new(context) })
    }

    /// A request that will probably use so many tokens: of key 0, of key 1 and so on, and again.
    pub(super) fn request(&self, index: usize, tokens: u64) -> ReserveRequest {
        let key = index % self.keys;
        let subject = Subject {
            key_id: Some(&format!("default/key-{key}")),
            tenant: Some(&format!("tenant-{}", key % TENANTS)),
            priority: Priority::Normal,
            context: &self.context,
            groups: ModelGroups::default(),
            model_class: None,
            label: &|_| None,
            header: &|_| None,
        };
        let input = tokens / 2;
        ReserveRequest::new(&self.limits, &subject, Estimate { input, output: tokens - input, ..Estimate::default() })
    }
}

fn yaml(limits: &[&str]) -> String {
    let mut yaml = r"apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: pool}
spec: {endpoints: [{ip: {address: 127.0.0.1, port: 1}}]}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: pool}
spec:
  schema: {name: OpenAI}
  backendRef: {group: gateway.envoyproxy.io, kind: Backend, name: pool}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: chat}
spec:
  rules:
  - matches: [{headers: [{name: x-ai-eg-model, value: m}]}]
    backendRefs: [{name: pool}]
---
apiVersion: attache.dev/v1alpha1
kind: TokenLimitPolicy
metadata: {name: limits}
spec:
  targetRefs: [{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: chat}]
  limits:
"
    .to_owned();
    for limit in limits {
        // Writing to a string does not fail.
        let _ = writeln!(yaml, "  - {limit}");
    }
    yaml
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_one_hold_for_each_limit_and_keys_share_what_their_tenants_have() {
        let population = Population::new(&USUAL, 1_000).unwrap();
        let counters = |index| -> Vec<_> {
            population.request(index, 40).holds.into_iter().map(|hold| (hold.counter, hold.estimate)).collect()
        };
        let (first, second, neighbour) = (counters(0), counters(1_000), counters(TENANTS));
        assert_eq!(first.iter().map(|(_, estimate)| *estimate).collect::<Vec<_>>(), [40, 1, 40, 1, 40, 20]);
        assert_eq!(first, second);
        let shared: Vec<_> = first.iter().zip(&neighbour).map(|(one, other)| one == other).collect();
        assert_eq!(shared, [false, false, true, false, true, true]);
    }
}
