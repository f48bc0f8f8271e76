//! What would become of a request, told instead of done: the same way as [`plan`](super::plan), up to the placement.

use std::sync::Arc;
use std::time::Instant;

use attache_proto::Operation;
use attache_proto::request::{self, ScanError};

use super::event::Headers;
use super::placing::{Candidate, Placed, Request};
use super::plan::Memory;
use crate::affinity::{Reason, Standing};
use crate::config::model::{Backend, Config, Target};
use crate::route::site::SiteReason;
use crate::route::{self, Resolution, Witness};

/// A request to explain.
#[derive(Debug)]
pub struct Question<'a> {
    /// What is called.
    pub operation: Operation,
    /// The body, as a client would send it.
    pub body: &'a [u8],
    /// The headers, for routes and session keys.
    pub headers: &'a Headers,
    /// The routes (`namespace/name`) that the caller may call; `None` is all of them.
    pub routes: Option<&'a [String]>,
    /// Whose caller it is.
    pub tenant: Option<&'a str>,
    /// A fresh random number.
    pub entropy: u64,
}

/// What would become of it. Lengths, hashes and names; nothing of the text.
#[derive(Debug)]
pub struct Explanation<'c> {
    /// The model asked for.
    pub model: Arc<str>,
    /// The route taken.
    pub route: Arc<str>,
    /// The length of the prompt's stream, in bytes; `None` where it leaves nothing in a cache.
    pub prompt_bytes: Option<u64>,
    /// How many blocks it makes.
    pub blocks: usize,
    /// The targets among which one is chosen.
    pub sites: Vec<SiteExplanation<'c>>,
    /// The index of the one that is.
    pub chosen: usize,
    /// Why that one.
    pub reason: SiteReason,
}

/// What would become of it at one target.
#[derive(Debug)]
pub struct SiteExplanation<'c> {
    /// The target.
    pub target: &'c Target,
    /// Its replicas.
    pub backend: &'c Backend,
    /// The model's name there.
    pub served_model: Arc<str>,
    /// Blocks at the beginning that are in so many requests there that they count nothing.
    pub hot_blocks: usize,
    /// How long a token is there, as learned.
    pub bytes_per_token: f64,
    /// Whether a session decides in place of the prompt.
    pub by_session: bool,
    /// The endpoints that would be tried, in order.
    pub order: Vec<Arc<str>>,
    /// Why.
    pub reason: Reason,
    /// What the first would cost, in seconds.
    pub cost: f64,
    /// What each endpoint would be.
    pub standings: Vec<Standing>,
}

/// Why there is nothing to explain.
#[derive(Debug, thiserror::Error)]
pub enum Unexplained {
    /// The body.
    #[error("{0}")]
    Malformed(#[from] ScanError),
    /// No rule serves the model, or none for this caller.
    #[error("no route serves the model `{0}` for this caller and these headers")]
    NoRoute(String),
    /// A rule without a target that takes anything.
    #[error("no backend of the route takes requests")]
    NoBackend,
}

/// Explains. Nothing is noted: asking changes no belief.
///
/// # Errors
/// [`Unexplained`] for what would be refused.
pub fn explain<'c>(
    question: &Question<'_>,
    config: &'c Config,
    memory: &Memory,
    now: Instant,
) -> Result<Explanation<'c>, Unexplained> {
    let scan = request::scan(question.operation, question.body)?;
    let no_route = || Unexplained::NoRoute(scan.model.chars().take(100).collect());
    let may_call = |route: &str| question.routes.is_none_or(|routes| routes.iter().any(|attached| attached == route));
    let Resolution::Rule(id) = route::resolve_for(config, &scan.model, may_call, |name| question.headers.only(name))
    else {
        return Err(no_route());
    };
    let (route, rule) = config.route(id).zip(config.rule(id)).ok_or_else(no_route)?;
    let model = config.model_named(&scan.model, rule);
    let request = Request {
        operation: question.operation,
        scan: &scan,
        body: question.body,
        headers: question.headers,
        tenant: question.tenant,
        witness: Witness::default(),
        model: &model,
        entropy: question.entropy,
    };
    let Placed { candidates, choice } = request.place(rule, config, memory, now).ok_or(Unexplained::NoBackend)?;
    let prompt = candidates.first().and_then(|candidate| candidate.placement.ask().prompt.clone());
    Ok(Explanation {
        model: Arc::clone(&model.name),
        route: Arc::clone(&route.id),
        prompt_bytes: prompt.as_ref().map(|prompt| prompt.bytes),
        blocks: prompt.map_or(0, |prompt| prompt.blocks.len()),
        sites: candidates.into_iter().map(|candidate| site(candidate, now)).collect(),
        chosen: choice.site,
        reason: choice.reason,
    })
}

fn site(candidate: Candidate<'_>, now: Instant) -> SiteExplanation<'_> {
    let Candidate { target, backend, served_model, pool, placement } = candidate;
    SiteExplanation {
        target,
        backend,
        served_model: served_model.name,
        hot_blocks: placement.hot_blocks,
        bytes_per_token: placement.bytes_per_token,
        by_session: placement.ask().session.is_some(),
        order: placement.order.iter().map(|endpoint| Arc::clone(&endpoint.id)).collect(),
        reason: placement.reason,
        cost: placement.cost,
        standings: pool.standings(placement.ask(), now),
    }
}
