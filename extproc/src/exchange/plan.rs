//! What to do with a request whose body is complete: pure, from the body and the configuration to a [`Plan`].

use std::sync::Arc;
use std::time::Instant;

use attache_gate::{Caller, KeyPriority};
use attache_proto::encoding;
use attache_proto::fields::FieldEdits;
use attache_proto::request::{
    BoundName, IncludeUsage, OutputBounds, RequestScan, ScanError, Segment, SegmentKind, UsageEvent,
};
use attache_proto::response::UsageVisibility;
use attache_proto::splice::Splice;
use attache_proto::{ApiError, Dialect, ErrorKind, Operation, Usage, headers};
use bytes::Bytes;

use super::Head;
use super::asked::{self, Asked};
use super::body_memory::BodyMemory;
use super::bounds;
use super::event::{Headers, LocalResponse, Mutations, Routing};
use super::placing::{Candidate, Placed, Request};
use super::response::Answer;
use super::upstream::{self, Access, Rewrite};
use crate::affinity::{Fleet, Placement, PlacementMode, Pool};
use crate::config::model::{Backend, Config, Endpoint, LimitsKnown, ModelName, RuleId};
use crate::config::upstream::{Credentials, Mutation};
use crate::limit::{
    CostContext, Estimate, EstimateInput, Experience, Form, Lesson, MEDIA_TOKENS, ModelGroups, Priority, Prompt,
    Reservation, ReserveRequest, ServedAt, Subject,
};
use crate::route::site::SiteReason;
use crate::route::{self, CoolDown};

/// What was decided for one request.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) rule: RuleId,
    pub(super) model: ModelName,
    pub(super) served_model: ModelName,
    pub(super) backend: usize,
    pub(super) pool: Arc<Pool>,
    pub(super) placement: Placement,
    pub(super) site: SiteReason,
    mutation: Arc<Mutation>,
    rewrite: Rewrite,
    pub(super) splice: Splice,
    pub(super) visibility: UsageVisibility,
    pub(super) estimate: Estimate,
    pub(super) unreported: Unreported,
    pub(super) context: Arc<CostContext>,
    pub(super) reservation: Option<Arc<ReserveRequest>>,
    pub(super) output: Output,
    /// Whose answers teach how such answers can be bounded.
    pub(super) served_at: ServedAt,
    /// Tokens of output for each that is seen in an event of a stream.
    pub(super) tokens_per_seen: f64,
    /// Whether its server may run tools by itself.
    runs_tools: bool,
    /// The prompt, but for its tokens, where it is text alone.
    prompt: Option<Prompt>,
}

/// What was learned, and who has failed: what a plan depends on besides its request and the configuration.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    /// What answers taught.
    pub experience: Arc<Experience>,
    /// Endpoints that failed.
    pub cooldown: Arc<CoolDown>,
    /// What replicas hold, and how busy they are.
    pub fleet: Arc<Fleet>,
    /// What bodies take until they have gone on.
    pub bodies: Arc<BodyMemory>,
}

/// Decides.
pub(super) fn plan(
    body: &Bytes,
    head: &Head,
    config: &Config,
    memory: &Memory,
    entropy: u64,
    now: Instant,
) -> Result<Plan, LocalResponse> {
    let dialect = head.dialect;
    let Asked { scan, rule: rule_id } = Asked::read(body, head, config)?;
    let unknown = || model_not_found(&scan.model, None, dialect);
    let (route, rule) = config.route(rule_id).zip(config.rule(rule_id)).ok_or_else(unknown)?;
    let model = config.model_named(&scan.model, rule);
    let request = Request {
        operation: head.operation,
        scan: &scan,
        body,
        headers: &head.headers,
        tenant: head.caller.as_ref().map(Caller::tenant),
        witness: head.witness(),
        model: &model,
        entropy,
    };
    if !route::serves(rule, config, head.operation) {
        return Err(not_served(&scan, head));
    }
    let placed = request.place(rule, config, memory, now).and_then(Placed::into_chosen);
    let (Candidate { target, backend, served_model, pool, placement }, site) =
        placed.ok_or_else(|| no_backend(dialect))?;
    if Access::to(backend) == Access::KeyUnknown {
        return Err(key_unknown(dialect));
    }
    if config.limits_known(rule_id, target.backend) == LimitsKnown::NotAll {
        return Err(limits_unknown(dialect));
    }

    // The scanner's spans lie within the body it scanned, in order, so this does not fail; if it did, the body would be
    // at fault.
    let at_fault = |_| malformed(&ScanError::NotAnObject, dialect);
    let (mut rewrite, mutated) = Rewrite::of(target, body).map_err(at_fault)?;
    let own = scan.include_usage.clone();
    // Whatever is estimated and bounded is what the upstream is asked for.
    let scan = match &mutated {
        Some(body) => asked::read_again(body, head, scan)?,
        None => scan,
    };
    let (ask, visibility) = usage_event(head.operation, &scan, &own, &target.mutation.body);
    rewrite.add(scan.edits(&served_model.name, ask));
    let splice = rewrite.splice().map_err(at_fault)?;
    let key_id = head.caller.as_ref().map(Caller::key_id);
    let tenant = head.caller.as_ref().map(Caller::tenant);
    let input = estimate_input(&scan, head.operation);
    let experience = &memory.experience;
    let learned_as = Arc::clone(served_model.bounded());
    let with_tools = scan.runs_tools.then(|| experience.with_tools(&learned_as, key_id)).flatten();
    let estimate = if head.operation.uses_tokens() {
        input.estimate(&experience.of(&learned_as, tenant, key_id)).with_tools(with_tools, input.output_bound())
    } else {
        Estimate::default()
    };
    let context = Arc::new(CostContext {
        model: Arc::clone(&model.name),
        served_model: Arc::clone(&served_model.name),
        backend: backend.name.to_string().into(),
        route: Arc::clone(&route.id),
    });
    let subject = Subject {
        key_id,
        tenant,
        priority: match head.caller.as_ref().map(Caller::priority) {
            Some(KeyPriority::Low) => Priority::Low,
            Some(KeyPriority::Normal) | None => Priority::Normal,
        },
        context: &context,
        groups: ModelGroups { model: model.group.as_deref(), served: served_model.group.as_deref() },
        model_class: backend.model_class.as_deref().or(route.model_class.as_deref()),
        label: &|name| head.caller.as_ref()?.label(name),
        header: &|name| head.headers.bytes(name),
    };
    let tokens = head.operation.token_use();
    let limits = route.limits.iter().chain(&rule.limits).chain(&backend.limits);
    let limits = limits.filter(|limit| limit.quantity.is_used_by(tokens, &context));
    let served_at = ServedAt::new(&context.backend, &served_model.name);
    let taken = experience.bounds().by(served_at);
    let mut output = Output::new(scan.bounds.clone(), head.operation, &input);
    output.bounds.add_as(bounds::to_add(&scan.bounds, &served_model.name, backend, &target.mutation.body, &taken));
    output.is_thoughtful = output.bounds.has_thoughts() || bounds::reasons(&served_model.name);
    output.context = taken.context(now);
    output.most_taken = Output::most_taken(taken.most(now), output.context, &estimate);
    let reservation = output.held_for(ReserveRequest::new(limits, &subject, estimate));
    if scan.background && reservation.counts_tokens() {
        return Err(not_in_the_background(dialect));
    }
    let estimate = reservation.estimate;
    let unreported = Unreported::new(head.operation, &scan, &estimate);
    let prompt = prompt(&scan, &input).filter(|_| head.operation.uses_tokens() && !scan.runs_tools);
    Ok(Plan {
        rule: rule_id,
        model,
        served_model,
        backend: target.backend,
        pool,
        placement,
        site,
        mutation: Arc::clone(&target.mutation),
        rewrite,
        splice,
        visibility,
        unreported,
        estimate,
        context,
        reservation: (!reservation.holds.is_empty()).then(|| Arc::new(reservation)),
        output,
        served_at,
        tokens_per_seen: experience.tokens_per_seen(&learned_as, key_id),
        runs_tools: scan.runs_tools,
        prompt,
    })
}

fn estimate_input(scan: &RequestScan, operation: Operation) -> EstimateInput {
    if !operation.uses_tokens() {
        return EstimateInput { max_tokens: Some(0), ..EstimateInput::default() };
    }
    let count = |kind: SegmentKind| scan.segments.iter().filter(|segment| segment.kind == kind).count() as u64;
    // Of media it does not matter how long their data is. A schema is printed by some.
    let is_text = |segment: &&Segment| match segment.kind {
        SegmentKind::Media => false,
        SegmentKind::Schema => true,
        kind => kind.is_prompt(),
    };
    EstimateInput {
        prompt_bytes: scan.segments.iter().filter(is_text).map(|segment| segment.span.len() as u64).sum(),
        messages: count(SegmentKind::Role),
        media_tokens: count(SegmentKind::Media).saturating_mul(MEDIA_TOKENS),
        // An embedding has no output.
        max_tokens: if operation.generates() { scan.max_tokens } else { Some(0) },
        choices: scan.choices.saturating_mul(scan.prompts),
        form: if scan.stream { Form::Stream } else { Form::Whole },
    }
}

/// The prompt as something to learn from: of text alone. Token ids are longer than the text that they stand for.
fn prompt(scan: &RequestScan, input: &EstimateInput) -> Option<Prompt> {
    let is_text = |segment: &Segment| !matches!(segment.kind, SegmentKind::Media | SegmentKind::Tokens);
    let prompt = Prompt { bytes: input.prompt_bytes, messages: input.messages, tokens: 0 };
    scan.segments.iter().all(is_text).then_some(prompt)
}

/// A bound of so many tokens is taken by nearly every model's server: whole generations of models could answer no more. What a server
/// does not take is learned from its refusal.
const SURELY_TAKEN: u64 = 4_096;

/// So long an answer in one piece is let be without a bound of the client's, by a limit that is wide enough: longer than nearly all.
/// What is held for it is as much, and its request stays as it is.
const LONGEST_UNBOUNDED: u64 = 32_768;

/// One such answer gets no more than this part of a limit: others may ask at the same time.
const SHARE: u64 = 8;

/// The same where thoughts come before the answer: cut off amid them, it would be of no use to anybody.
const SHARE_OF_THOUGHTS: u64 = 2;

/// The fewest tokens of a choice that are worth an answer: a word or two, and the end. OpenAI's Responses API takes no lower bound.
const LEAST: u64 = 16;

/// How long the answer may be, and how it is kept to that.
#[derive(Debug)]
pub(super) struct Output {
    /// The most tokens that the client lets it have, all choices together.
    pub(super) bound: Option<u64>,
    pub(super) form: Form,
    choices: u64,
    /// The fields that bound it.
    bounds: OutputBounds,
    generates: bool,
    /// Whether a limit must not be overdrawn by it.
    is_capped: bool,
    /// Whether much of it may be thoughts that nobody reads.
    is_thoughtful: bool,
    /// The bound of each choice that the operator wants where the client sets none.
    default: Option<u64>,
    /// The model's context, as far as is known.
    context: Option<u64>,
    /// The highest bound of each choice that its server takes, as far as is known.
    most_taken: Option<u64>,
    /// The bound that its request got, where the client set none.
    pub(super) added: Option<Added>,
    /// What it was kept to, where that is less than the client's bound.
    lowered_to: Option<u64>,
}

/// A bound that a request did not come with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Added {
    pub(super) name: BoundName,
    pub(super) tokens: u64,
    /// The model's context, as far as was known when it was chosen.
    pub(super) context: Option<u64>,
}

impl Output {
    fn new(bounds: OutputBounds, operation: Operation, input: &EstimateInput) -> Self {
        let (form, bound, choices) = (input.form, input.output_bound(), input.choices.max(1));
        let generates = operation.generates();
        Self {
            bound,
            form,
            choices,
            bounds,
            generates,
            is_capped: false,
            is_thoughtful: false,
            default: None,
            context: None,
            most_taken: None,
            added: None,
            lowered_to: None,
        }
    }

    /// The highest bound that a server takes whose model answers no more than `most`, and has a `context` for that and the prompt.
    fn most_taken(most: Option<u64>, context: Option<u64>, estimate: &Estimate) -> Option<u64> {
        // A prompt is rarely as dense as it might be, and there has to be some room.
        let room = |context: u64| {
            let likely = context.saturating_sub(estimate.input) / 2;
            context.saturating_sub(estimate.input_at_most).max(likely).max(LEAST)
        };
        [most, context.map(room)].into_iter().flatten().min()
    }

    /// What is to be held for it where limits must not be overdrawn: enough for a bound that its server takes; and, in one piece without
    /// a bound of the client's, what the operator says, or as much as a wide limit has room for.
    fn held_for(&mut self, reservation: ReserveRequest) -> ReserveRequest {
        self.is_capped = self.generates && reservation.bounds_output();
        self.default = reservation.default_max_tokens();
        let held = reservation.estimate.output_at_most;
        match (self.form, self.bound) {
            _ if !self.is_capped => reservation,
            (Form::Stream, bound) => {
                let wanted = self.least().min(bound.unwrap_or(u64::MAX));
                if wanted > held { reservation.grown(wanted - held) } else { reservation }
            }
            (Form::Whole, None) => {
                let each = |tokens: u64| tokens.saturating_mul(self.choices);
                let share = reservation.widest_output() / if self.is_thoughtful { SHARE_OF_THOUGHTS } else { SHARE };
                let longest = each(LONGEST_UNBOUNDED);
                let wanted = match self.default.map(each) {
                    None if share >= longest => longest.max(held),
                    wanted => {
                        let wanted = wanted.unwrap_or_else(|| share.max(held));
                        wanted.min(self.most_taken.map_or(u64::MAX, each)).max(self.least())
                    }
                };
                reservation.with_output(wanted)
            }
            (Form::Whole, Some(_)) => reservation,
        }
    }

    /// How many tokens each choice is to be kept to in the request itself; `None` where it needs no bound, or another than the client's
    /// would do harm.
    fn kept_to(&self, reservation: &Reservation) -> Option<u64> {
        let held = reservation.request().estimate.output_at_most;
        let most = match self.form {
            _ if !self.is_capped || !self.bounds.is_bounding() => None,
            Form::Whole if self.bound.is_none() && self.default.is_none() => {
                Some(held).filter(|held| *held < LONGEST_UNBOUNDED.saturating_mul(self.choices))
            }
            Form::Whole => Some(held),
            Form::Stream => reservation.most_output(),
        };
        let each = (most? / self.choices).max(1);
        if self.bound.is_some() {
            return Some(each);
        }
        let wanted = self.default.map(|default| default.max(self.bounds.least()));
        // What is more than a model can answer is refused by its server, and nobody knows how much that is before the first time: a
        // stream can be ended without.
        let is_taken = self.form == Form::Whole || each <= SURELY_TAKEN.max(self.most_taken.unwrap_or(0));
        let each = each.min(wanted.unwrap_or(u64::MAX)).min(self.most_taken.unwrap_or(u64::MAX));
        (is_taken || wanted.is_some()).then_some(each)
    }

    /// How many tokens its server was asked to end it at, all choices together.
    pub(super) fn ended_by_server_at(&self) -> Option<u64> {
        self.lowered_to.or(self.bound)
    }

    /// The fewest tokens that are worth an answer, and with which its server takes what else the client says of it: less, and the request
    /// is refused.
    pub(super) fn least(&self) -> u64 {
        self.choices.saturating_mul(self.bounds.least().max(LEAST))
    }
}

/// Whether to ask for usage in a stream, and what then becomes of the event that brings it: it is for a client whose `own` body asks for
/// it. Where the operator removes `stream_options` they stay away: there are servers that refuse them.
fn usage_event(
    operation: Operation,
    scan: &RequestScan,
    own: &IncludeUsage,
    fields: &FieldEdits,
) -> (UsageEvent, UsageVisibility) {
    let streams = scan.stream && matches!(operation, Operation::ChatCompletions | Operation::Completions);
    if !streams {
        return (UsageEvent::Leave, UsageVisibility::Keep);
    }
    let ask = if fields.removes("stream_options") { UsageEvent::Leave } else { UsageEvent::Ask };
    let comes = ask == UsageEvent::Ask || scan.include_usage.is_requested();
    let visibility = if comes && !own.is_requested() { UsageVisibility::Remove } else { UsageVisibility::Keep };
    (ask, visibility)
}

pub(super) fn malformed(error: &ScanError, dialect: Dialect) -> LocalResponse {
    let kind = match error {
        ScanError::FormNotTaken => ErrorKind::UnsupportedMediaType,
        _ => ErrorKind::InvalidRequest,
    };
    let error = ApiError { param: error.param(), ..ApiError::new(kind, error.to_string()) };
    LocalResponse::error(&error, dialect, "invalid_request")
}

/// `similar` is the model that the caller may have meant.
pub(super) fn model_not_found(model: &str, similar: Option<&str>, dialect: Dialect) -> LocalResponse {
    let model = quoted(model);
    let way_out = match similar {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => "GET /v1/models lists those that do".to_owned(),
    };
    let message = format!("the model `{model}` does not exist here; {way_out}");
    LocalResponse::error(&ApiError::new(ErrorKind::ModelNotFound, message), dialect, "model_not_found")
}

/// There is the model, and not at this path: none of its upstreams has this API, or its routes do not name it.
pub(super) fn not_served(scan: &RequestScan, head: &Head) -> LocalResponse {
    let called = head.headers.get(":path").unwrap_or_default();
    let called = called.split_once('?').map_or(called, |(path, _)| path);
    let message = format!("the model `{}` is not served at {}", quoted(&scan.model), quoted(called));
    LocalResponse::error(&ApiError::new(ErrorKind::PathNotFound, message), head.dialect, "not_served")
}

pub(super) fn no_backend(dialect: Dialect) -> LocalResponse {
    let message = "no backend serves this endpoint at the moment; try again later";
    LocalResponse::error(&ApiError::new(ErrorKind::Unavailable, message), dialect, "no_backend")
}

/// The usage of an answer that is made in the background comes to light when somebody fetches it, if ever: a budget would be
/// charged for the word that it is queued.
fn not_in_the_background(dialect: Dialect) -> LocalResponse {
    let message = "`background` cannot be used here, as this model is under a limit on tokens and the answer's use would not be \
                   seen; send the request without it";
    let error = ApiError::new(ErrorKind::InvalidRequest, message).with_param("background");
    LocalResponse::error(&error, dialect, "invalid_request")
}

/// A limit that nobody can read must not be one that nobody has to keep to.
fn limits_unknown(dialect: Dialect) -> LocalResponse {
    misconfigured(dialect, "limits_unknown")
}

/// An upstream that is to get a key gets no request without it.
fn key_unknown(dialect: Dialect) -> LocalResponse {
    misconfigured(dialect, "key_unknown")
}

/// The operator has to mend something, and no caller need know what: the log said so when the configuration was read, and the
/// metrics have the reason.
fn misconfigured(dialect: Dialect, reason: &'static str) -> LocalResponse {
    let message = "this model cannot be served at the moment; try again later";
    LocalResponse::error(&ApiError::new(ErrorKind::Unavailable, message), dialect, reason)
}

/// A model name as an error may quote it: a client can send megabytes of it.
pub(super) fn quoted(model: &str) -> &str {
    const LONGEST_BYTES: usize = 256;
    model.get(..model.floor_char_boundary(LONGEST_BYTES)).unwrap_or(model)
}

/// Output tokens to charge where nobody says how many there were. Not 0: an upstream that reports nothing, or a client that
/// does not wait for its answer, would be a free ride.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unreported {
    /// Of an answer that is not a stream of events, whose tokens are not seen.
    pub(super) whole: u64,
    /// Of a request that was sent on and left before there was an answer. Of a stream nothing was delivered then.
    pub(super) abandoned: u64,
}

impl Unreported {
    fn new(operation: Operation, scan: &RequestScan, estimate: &Estimate) -> Self {
        // An embedding has no output.
        let whole = if operation.generates() { estimate.output } else { 0 };
        Self { whole, abandoned: if scan.stream { 0 } else { whole } }
    }
}

impl Plan {
    /// The reservation is granted, maybe for less than was planned: what is left of the answer is bounded by it. A stream is bounded
    /// by what the limits have left for it, and ends where less is held: its events say less exactly than its server how long it is.
    pub(super) fn reserved(&mut self, reservation: &Reservation) {
        let request = reservation.request();
        self.estimate = request.estimate;
        self.unreported.whole = self.unreported.whole.min(self.estimate.output);
        self.unreported.abandoned = self.unreported.abandoned.min(self.estimate.output);
        if let Some(each) = self.output.kept_to(reservation)
            // They lie in the body, and apart from the others.
            && let Ok(splice) = self.rewrite.with(self.output.bounds.lowered_to(each))
        {
            self.splice = splice;
            let all = each.saturating_mul(self.output.choices);
            let added =
                self.output.bounds.added().map(|name| Added { name, tokens: each, context: self.output.context });
            self.output.added = added.filter(|_| self.output.bound.is_none());
            self.output.lowered_to = Some(all).filter(|all| self.output.bound.is_none_or(|bound| bound > *all));
        }
        self.reservation = Some(Arc::clone(request));
    }

    /// Whether the key that the upstream gets is the operator's.
    pub(super) fn has_operators_key(&self, backend: &Backend) -> bool {
        let is_set = |name: &str| self.mutation.headers.to_set().any(|(other, _)| **other == *name);
        matches!(backend.credentials, Credentials::Known(_)) || attache_gate::CREDENTIAL_HEADERS.into_iter().any(is_set)
    }

    /// What a complete answer teaches that reports this usage.
    pub(super) fn lesson(&self, usage: &Usage, answer: &Answer) -> Lesson {
        let output = match self.output.lowered_to {
            // It would have gone on. How far, nobody knows; as it is, what is learned could only fall.
            Some(all) if usage.output >= all => usage.output.saturating_mul(2),
            _ => usage.output,
        };
        let output = (self.output.bound != Some(0)).then_some(output);
        if self.runs_tools {
            return Lesson { prompt: None, output: None, in_events: None, with_tools: Some(*usage) };
        }
        let prompt = self.prompt.map(|prompt| Prompt { tokens: usage.input, ..prompt });
        Lesson { prompt, output, in_events: answer.in_events(usage), with_tools: None }
    }

    /// The tokens of its prompt, where that was text alone.
    pub(super) fn text_tokens(&self, usage: &Usage) -> Option<u64> {
        self.prompt.map(|_| usage.input)
    }

    /// The changes to the request's headers.
    pub(super) fn mutations(&self, config: &Config, head: &Head) -> Option<Mutations> {
        let (route, backend) = (config.route(self.rule)?, config.backends.get(self.backend)?);
        let mut set = vec![(headers::MODEL, self.model.name.to_string()), (headers::ROUTE, route.id.to_string())];
        set.extend(self.accept_encoding(&head.headers).map(|codings| ("accept-encoding", codings)));
        let mut remove = vec![headers::DECISION, headers::FILTER_CONFIG];
        match backend.affinity.mode {
            PlacementMode::Endpoint => {
                set.push((headers::CLUSTER, backend.cluster.to_string()));
                let order: Vec<&str> = self.order(backend).map(|endpoint| &*endpoint.id).collect();
                if order.is_empty() {
                    // No name has been resolved yet: Envoy may know more.
                    remove.push(headers::DESTINATION_ENDPOINT);
                } else {
                    set.push((headers::DESTINATION_ENDPOINT, order.join(",")));
                }
            }
            PlacementMode::Cluster => {
                set.push((headers::CLUSTER, self.order(backend).next()?.cluster.to_string()));
                remove.push(headers::DESTINATION_ENDPOINT);
            }
        }
        match &head.caller {
            Some(caller) => {
                set.push((headers::KEY_ID, caller.key_id().to_owned()));
                set.push((headers::TENANT, caller.tenant().to_owned()));
                // The key was for us. An upstream that wants one gets its own.
                remove.extend(attache_gate::CREDENTIAL_HEADERS);
            }
            None => remove.extend([headers::KEY_ID, headers::TENANT]),
        }
        match &self.reservation {
            Some(reservation) => set.push((headers::RESERVATION, reservation.id.0.to_string())),
            None => remove.push(headers::RESERVATION),
        }
        match config.rule(self.rule)?.request_timeout {
            Some(timeout) => set.push((headers::UPSTREAM_TIMEOUT_MS, timeout.as_millis().to_string())),
            None => remove.push(headers::UPSTREAM_TIMEOUT_MS),
        }
        // It goes on decoded then.
        if !self.splice.is_empty() && head.headers.bytes("content-encoding").is_some() {
            remove.push("content-encoding");
        }
        // Without it the request ends in a 500: Envoy compares the two, in both profiles.
        if !self.splice.is_empty() && head.headers.get("content-length").is_some() {
            set.push(("content-length", self.splice.spliced_len().to_string()));
        }
        let mut mutations = Mutations { set, remove, routing: Routing::Again, ..Mutations::default() };
        upstream::address(&mut mutations, backend, &self.mutation, head, &config.settings.path_prefix);
        Some(mutations)
    }

    /// Which codings the answer may have. An answer that we cannot read is one that we cannot count, and one that may have to be
    /// changed is easiest changed as it is.
    fn accept_encoding(&self, headers: &Headers) -> Option<String> {
        let may_be_cut = self.output.form == Form::Stream
            && self.reservation.as_ref().is_some_and(|reservation| reservation.bounds_output());
        // What a server says against a bound of ours is to be read.
        let may_be_ours = self.output.added.is_some();
        if self.visibility == UsageVisibility::Remove || may_be_cut || may_be_ours {
            return Some("identity".to_owned());
        }
        headers.bytes("accept-encoding")?;
        let values = headers.iter().filter(|(name, _)| *name == "accept-encoding").map(|(_, value)| value);
        Some(encoding::acceptable(values))
    }

    /// Why the request went where it went, in one line: `docs/affinity.md` says what the parts are.
    pub(super) fn decision(&self, backend: &Backend) -> String {
        let order: Vec<&str> = self.order(backend).map(|endpoint| &*endpoint.id).collect();
        let Placement { reason, cost, predicted, pending_tokens, bytes_per_token, .. } = &self.placement;
        let tokens = |bytes: u64| (bytes as f64 / bytes_per_token).round();
        format!(
            "cluster={}; endpoints={}; site={}; prompt={}; available={}; predicted={}; pending={:.0}; cost={:.3}; reason={}",
            backend.cluster,
            order.join(","),
            self.site.as_str(),
            tokens(predicted.bytes),
            tokens(predicted.available),
            tokens(predicted.chosen),
            pending_tokens,
            cost,
            reason.as_str()
        )
    }

    /// The endpoints that the proxy may try, in order of preference. A cluster of one replica has no other.
    pub(super) fn order<'a>(&'a self, backend: &'a Backend) -> impl Iterator<Item = &'a Endpoint> {
        let most = match backend.affinity.mode {
            PlacementMode::Endpoint => usize::MAX,
            PlacementMode::Cluster => 1,
        };
        self.placement.order.iter().take(most).map(|endpoint| &**endpoint)
    }
}
