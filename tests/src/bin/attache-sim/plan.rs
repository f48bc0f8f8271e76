//! Which runs a trace gets.

use attache_tests::{
    simulation::{Incident, Policy, Setup, Sharing},
    traces::Trace,
};

use crate::options::Options;

/// A trace and its runs.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) setups: Vec<Setup>,
}

const INCIDENTS: [Incident; 4] =
    [Incident::SidecarRestart, Incident::AllSidecarsRestart, Incident::ReplicaLoss, Incident::ScaleUp];

impl<'a> Plan<'a> {
    pub(crate) fn of(trace: &'a Trace, options: &Options) -> Self {
        let setup = |policy| options.apply(Setup::of(trace, policy));
        let alone = |policy| Setup { sidecars: 1, ..setup(policy) };
        let ours = |sharing, incident| Setup { sharing, incident, ..setup(Policy::Ours) };
        let mut setups = vec![
            setup(Policy::Random),
            setup(Policy::RoundRobin),
            setup(Policy::LeastRequests),
            setup(Policy::LeastRequestsScraped),
            setup(Policy::FirstBlockHash),
            alone(Policy::BoundedLoadHash),
            setup(Policy::BoundedLoadHash),
            alone(Policy::LongestMatch),
            setup(Policy::LongestMatch),
            alone(Policy::Scorer),
            setup(Policy::Scorer),
            alone(Policy::Ours),
        ];
        for sharing in [Sharing::Apart, Sharing::Shared] {
            setups.push(ours(sharing, Incident::None));
        }
        for sharing in [Sharing::Apart, Sharing::Shared] {
            setups.extend(INCIDENTS.map(|incident| ours(sharing, incident)));
        }
        setups.dedup();
        Self { trace, setups }
    }
}

/// What tables call a run, but for its incident.
pub(crate) fn name(setup: &Setup) -> String {
    let policy = setup.policy.name();
    let count = setup.sidecars;
    match (setup.policy, setup.sharing) {
        // What does not depend on the sidecar is the same with any number of them.
        (Policy::Random | Policy::FirstBlockHash, _) => policy.to_owned(),
        (Policy::Ours, Sharing::Shared) => format!("{policy}, {count} sharing"),
        _ if count == 1 => format!("{policy}, one sidecar"),
        _ => format!("{policy}, {count} sidecars"),
    }
}
