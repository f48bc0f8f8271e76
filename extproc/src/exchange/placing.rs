//! Where a request goes: of a rule's targets the one that suits its conversation, then of that one's replicas. Pure, but for
//! what the pools know; nothing is noted of the request before it is dispatched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use attache_proto::Operation;
use attache_proto::request::RequestScan;
use xxhash_rust::xxh3::xxh3_64;

use super::event::Headers;
use super::plan::Memory;
use crate::affinity::prefix;
use crate::affinity::{Ask, Basis, Canon, Placement, Pool, PrefixChain, PrefixScope, Tenancy};
use crate::config::model::{Backend, Config, Endpoint, ModelName, Rule, Target};
use crate::route::{
    self, Witness,
    site::{self, Choice, Site, SiteReason},
};

/// A site is left only where that saves more than this: the next turn of the conversation would be at home again.
const LEAST_PATIENCE: Duration = Duration::from_millis(100);

/// What is known of a request that is to be placed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) operation: Operation,
    pub(super) scan: &'a RequestScan,
    pub(super) body: &'a [u8],
    pub(super) headers: &'a Headers,
    pub(super) tenant: Option<&'a str>,
    /// Who asks, for endpoints that have failed him.
    pub(super) witness: Witness,
    /// The model asked for.
    pub(super) model: &'a ModelName,
    /// A fresh random number.
    pub(super) entropy: u64,
}

/// A target that could take it, and what would become of it there.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) target: &'a Target,
    pub(super) backend: &'a Backend,
    /// The model as the target knows it.
    pub(super) served_model: ModelName,
    pub(super) pool: Arc<Pool>,
    pub(super) placement: Placement,
}

/// The candidates, and which of them it is.
#[derive(Debug)]
pub(super) struct Placed<'a> {
    pub(super) candidates: Vec<Candidate<'a>>,
    pub(super) choice: Choice,
}

impl<'a> Placed<'a> {
    /// The one that takes it, and why.
    pub(super) fn into_chosen(self) -> Option<(Candidate<'a>, SiteReason)> {
        let Self { candidates, choice } = self;
        Some((candidates.into_iter().nth(choice.site)?, choice.reason))
    }
}

impl Request<'_> {
    /// Places it among the targets of a rule. `None` where nobody is there.
    pub(super) fn place<'c>(
        &self,
        rule: &'c Rule,
        config: &'c Config,
        memory: &Memory,
        now: Instant,
    ) -> Option<Placed<'c>> {
        let admits = |endpoint: &Endpoint| memory.cooldown.admits_for(&endpoint.cluster, self.witness, now);
        let serves = |backend: &Backend| memory.fleet.serves(backend, admits, now);
        let mut prompts = Prompts { request: self, read: Vec::new() };
        let candidates: Vec<Candidate<'c>> = route::candidates(rule, config, self.operation, serves)
            .into_iter()
            .filter_map(|target| Some((target, config.backends.get(target.backend)?)))
            .map(|(target, backend)| {
                let served_model = match &target.model_override {
                    Some(name) => ModelName { name: Arc::clone(name), group: None },
                    None => self.model.clone(),
                };
                let pool = memory.fleet.pool(backend, now);
                let ask = self.ask(prompts.by(&backend.affinity.canon), &served_model.name, backend);
                let placement = pool.place(&ask, admits, now);
                Candidate { target, backend, served_model, pool, placement }
            })
            .collect();
        let sites: Vec<Site> = match candidates.as_slice() {
            // Nothing to weigh.
            [_] => vec![Site { id: String::new(), weight: 1, cost: 0.0, patience: None }],
            several => several.iter().map(Candidate::site).collect(),
        };
        let choice = site::choose(&sites, key(&candidates), self.entropy)?;
        Some(Placed { candidates, choice })
    }

    /// What it has in common with those whose cache it can use at this target.
    fn ask(&self, prompt: Option<&Prompt>, served_model: &str, backend: &Backend) -> Ask {
        let policy = &backend.affinity;
        let session = policy.session_header.as_deref().and_then(|name| self.headers.bytes(name));
        let session = session.filter(|session| !session.is_empty()).map(xxh3_64);
        let scope = PrefixScope {
            pool: &backend.cluster,
            model: served_model,
            tenant: self.tenant.filter(|_| policy.tenancy == Tenancy::Isolated),
            cache_salt: prompt.and_then(|prompt| prompt.cache_salt),
        };
        Ask {
            scope: scope.hash(),
            prompt: prompt.map(|prompt| Arc::clone(&prompt.chain)),
            session: session.or(prompt.and_then(|prompt| prompt.explicit)),
            entropy: self.entropy,
        }
    }
}

/// A request's prompt, as one canon reads it.
struct Prompt {
    chain: Arc<PrefixChain>,
    cache_salt: Option<u64>,
    explicit: Option<u64>,
}

/// A request's prompt in all readings: read once by each canon, and most often there is one. Sites differ in the scope of a
/// prompt, not in its text.
struct Prompts<'r, 'c> {
    request: &'r Request<'r>,
    read: Vec<(&'c Canon, Prompt)>,
}

impl<'c> Prompts<'_, 'c> {
    fn by(&mut self, canon: &'c Canon) -> Option<&Prompt> {
        let Request { operation, scan, body, .. } = self.request;
        // An embedding leaves nothing in a cache that another could use.
        if !operation.generates() {
            return None;
        }
        let known = self.read.iter().position(|(other, _)| *other == canon);
        let at = known.unwrap_or_else(|| {
            let prefix::Prompt { chain, cache_salt, explicit } = canon.read(&scan.segments, body);
            self.read.push((canon, Prompt { chain: Arc::new(chain), cache_salt, explicit }));
            self.read.len() - 1
        });
        self.read.get(at).map(|(_, prompt)| prompt)
    }
}

impl Candidate<'_> {
    fn site(&self) -> Site {
        let policy = &self.backend.affinity;
        Site {
            id: format!("{} {}", self.backend.name, self.served_model.name),
            weight: self.target.weight,
            cost: self.placement.cost,
            patience: (policy.basis == Basis::Prefix).then(|| policy.weights.far.max(LEAST_PATIENCE)),
        }
    }
}

/// What tells the request's conversation from others: its session, or the first block of its prompt that is hot at none of the
/// sites.
fn key(candidates: &[Candidate<'_>]) -> Option<u64> {
    let session = candidates.iter().find_map(|candidate| candidate.placement.ask().session);
    session.or_else(|| {
        let hot = candidates.iter().map(|candidate| candidate.placement.hot_blocks).max()?;
        candidates.first()?.placement.ask().prompt.as_ref()?.blocks.get(hot).copied()
    })
}

#[cfg(test)]
mod tests;
