//! All pools, by Backend, and who is in them: the endpoints that the configuration declares, with DNS names in place of which
//! stand the addresses that they have at the moment. Pools outlive configurations: a reload changes policies and endpoints, and
//! what is known stays.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use super::policy::PlacementMode;
use super::pool::Pool;
use crate::config::model::{Backend, Config, Endpoint, EndpointAddress};

/// All pools.
#[derive(Debug, Default)]
pub struct Fleet {
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    pools: HashMap<Arc<str>, Entry>,
    /// What DNS names stand for, as far as that is known; never empty.
    addresses: HashMap<Arc<str>, Vec<IpAddr>>,
}

#[derive(Debug)]
struct Entry {
    pool: Arc<Pool>,
    declared: Vec<Arc<Endpoint>>,
    names: Names,
}

/// What a DNS name among the endpoints stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    /// One replica for each of its addresses.
    Addresses,
    /// One replica, an Envoy cluster that resolves the name itself.
    Replica,
}

/// Whether anything has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// All is as before.
    Nothing,
    /// Endpoints came or went.
    Members,
}

impl Fleet {
    /// The pool of a backend; one that is not known yet begins.
    pub fn pool(&self, backend: &Backend, now: Instant) -> Arc<Pool> {
        if let Some(entry) = self.state.read().unwrap_or_else(PoisonError::into_inner).pools.get(&backend.cluster) {
            return Arc::clone(&entry.pool);
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let State { pools, addresses } = &mut *state;
        let entry = pools.entry(Arc::clone(&backend.cluster)).or_insert_with(|| {
            let entry = Entry::new(backend, now);
            entry.enlist(addresses, now);
            entry
        });
        Arc::clone(&entry.pool)
    }

    /// A new configuration holds. Pools of Backends that are no longer there go, with all that is known. Where several
    /// AIServiceBackends share a Backend, the policy of the first holds for the pool.
    pub fn adopt(&self, config: &Config, now: Instant) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let State { pools, addresses } = &mut *state;
        pools.retain(|cluster, _| config.backends.iter().any(|backend| backend.cluster == *cluster));
        for (index, backend) in config.backends.iter().enumerate() {
            if config.backends.iter().take(index).any(|other| other.cluster == backend.cluster) {
                continue;
            }
            let entry = pools.entry(Arc::clone(&backend.cluster)).or_insert_with(|| Entry::new(backend, now));
            entry.pool.set_policy(Arc::clone(&backend.affinity));
            entry.declared = declared(backend);
            let sharing = config.backends.iter().filter(|other| other.cluster == backend.cluster);
            // An Envoy cluster for each address is not to be had, so one that wants clusters decides for all.
            entry.names = sharing.map(names).find(|names| *names == Names::Replica).unwrap_or(Names::Addresses);
            entry.enlist(addresses, now);
        }
        let named: BTreeSet<Arc<str>> = pools.values().flat_map(Entry::hostnames).collect();
        addresses.retain(|hostname, _| named.contains(hostname));
    }

    /// The DNS names among the endpoints.
    pub fn hostnames(&self) -> BTreeSet<Arc<str>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.pools.values().flat_map(Entry::hostnames).collect()
    }

    /// A name stands for these addresses from now on. No address is no answer: what it stood for stays.
    pub fn resolved(&self, hostname: &Arc<str>, answer: Vec<IpAddr>, now: Instant) -> Change {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let State { pools, addresses } = &mut *state;
        let users = || pools.values().filter(|entry| entry.hostnames().any(|name| name == *hostname));
        if answer.is_empty() || addresses.get(hostname) == Some(&answer) || users().next().is_none() {
            return Change::Nothing;
        }
        addresses.insert(Arc::clone(hostname), answer);
        users().for_each(|entry| entry.enlist(addresses, now));
        Change::Members
    }

    /// Where an endpoint is reached: an IP address, or the first that its name stands for.
    pub fn address(&self, endpoint: &Endpoint) -> Option<SocketAddr> {
        match &endpoint.address {
            EndpointAddress::Ip(address) => Some(*address),
            EndpointAddress::Fqdn { hostname, port } => {
                let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
                Some(SocketAddr::new(*state.addresses.get(hostname)?.first()?, *port))
            }
            EndpointAddress::Unix(_) => None,
        }
    }

    /// Whether a backend can serve: whether any of its replicas is one that `admits`. While none is known, its names are asked for
    /// instead.
    pub fn serves(&self, backend: &Backend, admits: impl Fn(&Endpoint) -> bool, now: Instant) -> bool {
        self.pool(backend, now).any(&admits).unwrap_or_else(|| backend.endpoints.iter().any(admits))
    }

    /// The cluster names of all endpoints, those that are declared and those that are members.
    pub fn endpoint_clusters(&self) -> HashSet<Arc<str>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let all = state.pools.values().flat_map(|entry| entry.pool.members().into_iter().chain(entry.declared.clone()));
        all.map(|endpoint| Arc::clone(&endpoint.cluster)).collect()
    }

    /// All of them, in the order of their names.
    pub fn pools(&self) -> Vec<Arc<Pool>> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let mut pools: Vec<Arc<Pool>> = state.pools.values().map(|entry| Arc::clone(&entry.pool)).collect();
        pools.sort_by(|one, other| one.id().cmp(other.id()));
        pools
    }
}

impl Entry {
    fn new(backend: &Backend, now: Instant) -> Self {
        let pool = Arc::new(Pool::new(Arc::clone(&backend.cluster), Arc::clone(&backend.affinity), now));
        Self { pool, declared: declared(backend), names: names(backend) }
    }

    /// Tells the pool who its members are.
    fn enlist(&self, addresses: &HashMap<Arc<str>, Vec<IpAddr>>, now: Instant) {
        let mut members: Vec<Arc<Endpoint>> = Vec::with_capacity(self.declared.len());
        let mut seen = HashSet::new();
        for endpoint in &self.declared {
            let replicas = match &endpoint.address {
                EndpointAddress::Fqdn { hostname, port } if self.names == Names::Addresses => {
                    let known = addresses.get(hostname).map_or(&[][..], Vec::as_slice);
                    known.iter().map(|ip| self.replica(SocketAddr::new(*ip, *port))).collect()
                }
                _ => vec![Arc::clone(endpoint)],
            };
            // Names may stand for one address together, and addresses be declared beside them.
            members.extend(replicas.into_iter().filter(|replica| seen.insert(Arc::clone(&replica.id))));
        }
        self.pool.set_members(members, now);
    }

    fn replica(&self, address: SocketAddr) -> Arc<Endpoint> {
        let id: Arc<str> = Arc::from(address.to_string());
        let cluster = Arc::from(format!("{}/{id}", self.pool.id()));
        Arc::new(Endpoint { id, cluster, address: EndpointAddress::Ip(address) })
    }

    fn hostnames(&self) -> impl Iterator<Item = Arc<str>> {
        self.declared.iter().filter_map(|endpoint| match &endpoint.address {
            EndpointAddress::Fqdn { hostname, .. } => Some(Arc::clone(hostname)),
            EndpointAddress::Ip(_) | EndpointAddress::Unix(_) => None,
        })
    }
}

fn declared(backend: &Backend) -> Vec<Arc<Endpoint>> {
    backend.endpoints.iter().map(|endpoint| Arc::new(endpoint.clone())).collect()
}

fn names(backend: &Backend) -> Names {
    match backend.affinity.mode {
        PlacementMode::Endpoint => Names::Addresses,
        PlacementMode::Cluster => Names::Replica,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::Settings;
    use crate::config::{self, Documents};

    fn config(endpoints: &str, policy: &str) -> Config {
        let text = format!(
            "{{apiVersion: gateway.envoyproxy.io/v1alpha1, kind: Backend, metadata: {{name: b}}, \
             spec: {{endpoints: [{endpoints}]}}}}\n---\n\
             apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIServiceBackend\nmetadata: {{name: b}}\n\
             spec: {{schema: {{name: OpenAI}}, backendRef: {{group: gateway.envoyproxy.io, kind: Backend, name: b}}}}\n{policy}"
        );
        let outcome = config::compile(Documents::from_text("a.yaml", &text), Settings::default(), 1, None).unwrap();
        assert!(outcome.diagnostics.iter().all(|diagnostic| !diagnostic.is_error()), "{:?}", outcome.diagnostics);
        outcome.config
    }

    const NAME: &str = "{fqdn: {hostname: models.internal, port: 8000}}";
    const MIXED: &str = "{ip: {address: 10.0.0.1, port: 8000}}, {fqdn: {hostname: models.internal, port: 8000}}";
    const IN_CLUSTERS: &str = "---\napiVersion: attache.dev/v1alpha1\nkind: CacheAffinityPolicy\nmetadata: {name: p}\n\
        spec: {targetRefs: [{group: aigateway.envoyproxy.io, kind: AIServiceBackend, name: b}], mode: cluster}\n";

    fn ids(fleet: &Fleet) -> Vec<String> {
        fleet.pools()[0].members().iter().map(|member| member.id.to_string()).collect()
    }

    fn resolve(fleet: &Fleet, addresses: &[&str]) -> Change {
        let answer = addresses.iter().map(|address| address.parse().unwrap()).collect();
        fleet.resolved(&Arc::from("models.internal"), answer, Instant::now())
    }

    #[test]
    fn the_addresses_of_a_name_are_replicas_that_come_and_go_and_outlast_a_reload() {
        let (fleet, config) = (Fleet::default(), config(MIXED, ""));
        fleet.adopt(&config, Instant::now());
        assert_eq!(ids(&fleet), ["10.0.0.1:8000"]);
        assert_eq!(fleet.hostnames().into_iter().collect::<Vec<_>>(), [Arc::from("models.internal")]);
        assert_eq!(resolve(&fleet, &["10.0.0.2", "10.0.0.1", "fd00::1"]), Change::Members);
        assert_eq!(ids(&fleet), ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"], "none is twice");
        fleet.adopt(&config, Instant::now());
        assert_eq!(ids(&fleet), ["10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000"]);
        assert_eq!(resolve(&fleet, &["10.0.0.2", "10.0.0.1", "fd00::1"]), Change::Nothing);
        assert_eq!(resolve(&fleet, &[]), Change::Nothing, "no answer");
        assert_eq!(resolve(&fleet, &["10.0.0.3"]), Change::Members);
        assert_eq!(ids(&fleet), ["10.0.0.1:8000", "10.0.0.3:8000"]);
        let clusters = fleet.endpoint_clusters();
        assert!(clusters.contains("default/b/10.0.0.3:8000") && !clusters.contains("default/b/10.0.0.2:8000"));
    }

    #[test]
    fn in_cluster_mode_a_name_is_one_replica() {
        let fleet = Fleet::default();
        fleet.adopt(&config(NAME, IN_CLUSTERS), Instant::now());
        resolve(&fleet, &["10.0.0.2", "10.0.0.3"]);
        assert_eq!(ids(&fleet), ["models.internal:8000"]);
        let member = fleet.pools()[0].members().remove(0);
        assert_eq!(fleet.address(&member), Some(([10, 0, 0, 2], 8000).into()), "for its metrics page");
    }

    #[test]
    fn what_nobody_asks_for_any_more_is_forgotten() {
        let fleet = Fleet::default();
        fleet.adopt(&config(NAME, ""), Instant::now());
        resolve(&fleet, &["10.0.0.2"]);
        fleet.adopt(&config("{ip: {address: 10.0.0.1, port: 8000}}", ""), Instant::now());
        assert_eq!((ids(&fleet), fleet.hostnames().len()), (vec!["10.0.0.1:8000".to_owned()], 0));
        assert_eq!(resolve(&fleet, &["10.0.0.2"]), Change::Nothing, "a late answer");
        fleet.adopt(&config(NAME, ""), Instant::now());
        assert_eq!(ids(&fleet), [""; 0]);
    }
}
