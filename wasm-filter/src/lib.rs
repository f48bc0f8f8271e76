//! The gate as a proxy-wasm filter: glue, and nothing else. It reads the request's headers, asks [`attache_gate`], and
//! answers or lets pass. Of responses it reads two headers, by which the sidecar says that a key has nothing left, or why it
//! refused what was left to it. It never looks at bodies; that of a refused request it throws away, and answers at its end.
//!
//! It must not be able to panic, because a panic ends the whole Wasm VM of an Envoy worker. So it takes header values as
//! bytes (the SDK's `String` calls unwrap UTF-8; names are safe, as Envoy's codecs admit only RFC 9110 tokens), and it
//! refuses with a 503 where it has no usable configuration: the gate fails closed.

#![expect(missing_docs, reason = "`proxy_wasm::main!` makes `_initialize` public, and no comment can reach it there")]

use std::array;
use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use attache_gate::{
    BodyWait, Caller, ConfigDigest, ConfigError, Doubt, Exhausted, ExhaustedKeys, FirstLook, Gate, GateConfig, Learned,
    LearnedVerdicts, LimitRefusal, Passed, Reason, Refusal, RequestHead,
};
use attache_proto::{ApiError, Dialect, ErrorKind, headers};
use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, BufferType, Bytes, ContextType, LogLevel, MapType, MetricType};

proxy_wasm::main! {{
    // Besides the level, this sets the hook that logs a panic's message: without it Envoy says only "unreachable".
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(Plugin { filter: Rc::new(Filter::without_configuration()) }));
}}

/// One plugin configuration in one VM.
struct Plugin {
    filter: Rc<Filter>,
}

impl Context for Plugin {}

impl RootContext for Plugin {
    fn on_configure(&mut self, _size: usize) -> bool {
        let json = self.get_plugin_configuration().unwrap_or_default();
        self.filter = Rc::new(Filter::configured(&json));
        // True even where the configuration is unusable: a false would leave the answer to Envoy's failure policy, which
        // may be to let everything pass, and is no JSON in any case.
        true
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Exchange { filter: Rc::clone(&self.filter), state: State::Open }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// What all requests share.
struct Filter {
    gate: Option<Gate>,
    /// What the sidecar is told of the configuration.
    digest: String,
    counters: Option<Counters>,
    exhausted: RefCell<ExhaustedKeys>,
    verdicts: RefCell<LearnedVerdicts>,
    started: Instant,
}

impl Filter {
    fn without_configuration() -> Self {
        Self {
            gate: None,
            digest: String::new(),
            counters: None,
            exhausted: RefCell::default(),
            verdicts: RefCell::default(),
            started: Instant::now(),
        }
    }

    fn configured(json: &[u8]) -> Self {
        let config = GateConfig::from_json(json);
        let digest = config.as_ref().map(|config| ConfigDigest::of(config).to_string()).unwrap_or_default();
        let gate = config.and_then(Gate::new).inspect_err(log_unusable).ok();
        Self { gate, digest, counters: Some(Counters::define()), ..Self::without_configuration() }
    }

    fn refusal(&self, passed: &Passed) -> Option<LimitRefusal> {
        self.exhausted.try_borrow_mut().ok()?.refusal(passed, self.now())
    }

    fn learn(&self, caller: &Caller, exhausted: Exhausted) {
        if let Ok(mut keys) = self.exhausted.try_borrow_mut() {
            keys.learn(caller, exhausted, self.now());
        }
    }

    /// What the sidecar has lately said of a request like it.
    fn repeated(&self, gate: &Gate, doubt: &Doubt, head: &RequestHead<'_>) -> Option<Refusal> {
        self.verdicts.try_borrow_mut().ok()?.refusal(gate, doubt, head, self.now())
    }

    fn learn_verdict(&self, doubt: &Doubt, learned: Learned) {
        if let Ok(mut verdicts) = self.verdicts.try_borrow_mut() {
            verdicts.learn(doubt, learned, self.now());
        }
    }

    /// Since the filter began, by Envoy's monotonic clock: nobody sets it, so no key is refused for longer than it was said.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

fn log_unusable(error: &ConfigError) {
    let _ = hostcalls::log(LogLevel::Error, &format!("attache: every request is refused with 503: {error}"));
}

/// One request.
struct Exchange {
    filter: Rc<Filter>,
    state: State,
}

/// What is decided of a request.
enum State {
    /// Nothing yet.
    Open,
    /// It goes on; whose it is, where keys are demanded.
    Passed(Option<Caller>),
    /// It goes on, for the sidecar to decide.
    Asked(Doubt),
    /// It is refused, and told so when its body has come in.
    Refused(Answer, BodyWait),
    /// It is refused, and was told so.
    Answered,
}

/// An answer in the upstream's place.
enum Answer {
    Gate(Refusal),
    Exhausted(LimitRefusal),
}

impl Context for Exchange {}

impl HttpContext for Exchange {
    fn on_http_request_headers(&mut self, _count: usize, end_of_stream: bool) -> Action {
        let filter = Rc::clone(&self.filter);
        let headers = self.get_http_request_headers_bytes();
        let head = RequestHead::read(headers.iter().map(|(name, value)| (name.as_str(), value.as_slice())));
        let Some(gate) = &filter.gate else { return self.refuse_unconfigured(&headers) };
        let answer = match gate.first_look(&head, since_1970()) {
            FirstLook::Pass(passed) => match filter.refusal(&passed) {
                Some(refusal) => Answer::Exhausted(refusal),
                None => return self.pass(passed, &head),
            },
            FirstLook::Ask(doubt) => match filter.repeated(gate, &doubt, &head) {
                Some(refusal) => Answer::Gate(refusal),
                None => return self.ask(doubt, &head),
            },
            FirstLook::Refuse(refusal) => Answer::Gate(refusal),
        };
        self.count(|counters| answer.counter(counters));
        match gate.body_wait(&head, filter.now()) {
            Some(wait) if !end_of_stream => {
                self.state = State::Refused(answer, wait);
                Action::Pause
            }
            _ => self.answer(&answer),
        }
    }

    fn on_http_request_body(&mut self, size: usize, end_of_stream: bool) -> Action {
        match &self.state {
            State::Open | State::Passed(_) | State::Asked(_) => return Action::Continue,
            State::Refused(_, wait) if !end_of_stream && !wait.is_over(self.filter.now()) => {
                // A pause has Envoy keep what there is of the body, so none of it may be left.
                if size > 0 {
                    let _ = hostcalls::set_buffer(BufferType::HttpRequestBody, 0, size, &[]);
                }
            }
            State::Refused(..) => self.answer_refused(),
            State::Answered => {}
        }
        Action::Pause
    }

    fn on_http_request_trailers(&mut self, _count: usize) -> Action {
        match &self.state {
            State::Open | State::Passed(_) | State::Asked(_) => return Action::Continue,
            State::Refused(..) => self.answer_refused(),
            State::Answered => {}
        }
        Action::Pause
    }

    fn on_http_response_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        let exhausted = taken_out(headers::EXHAUSTED).and_then(|value| Exhausted::from_header(&value));
        let verdict = taken_out(headers::VERDICT);
        match (&self.state, exhausted, verdict) {
            (State::Passed(Some(caller)), Some(exhausted), _) if details() == headers::LIMITED_DETAILS.as_bytes() => {
                self.filter.learn(caller, exhausted);
            }
            (State::Asked(doubt), _, Some(verdict)) => {
                if let Some(learned) = Learned::from_header(&verdict, &details()) {
                    self.filter.learn_verdict(doubt, learned);
                }
            }
            _ => {}
        }
        Action::Continue
    }
}

/// A header of the response, which nobody sees any more.
fn taken_out(name: &str) -> Option<Bytes> {
    // Straight from the host: the trait's methods unwrap.
    let value = hostcalls::get_map_value_bytes(MapType::HttpResponseHeaders, name).ok()??;
    let _ = hostcalls::remove_map_value(MapType::HttpResponseHeaders, name);
    Some(value)
}

/// By whose doing the response is what it is: Envoy keeps that apart from the headers, where no model server can write it.
fn details() -> Bytes {
    hostcalls::get_property(vec!["response", "code_details"]).ok().flatten().unwrap_or_default()
}

/// By Envoy's wall clock: keys end by it. A clock that cannot be read ends them all.
fn since_1970() -> Duration {
    let now = hostcalls::get_current_time().ok();
    now.and_then(|now| now.duration_since(UNIX_EPOCH).ok()).unwrap_or(Duration::MAX)
}

impl Exchange {
    /// Lets the request go on with none of our headers but those that name its caller, which are information: the sidecar
    /// finds the caller out for itself.
    fn pass(&mut self, passed: Passed, head: &RequestHead<'_>) -> Action {
        let filter = Rc::clone(&self.filter);
        let caller = passed.caller.as_ref();
        self.write(
            head,
            &[
                (headers::FILTER_CONFIG, Some(&filter.digest)),
                (headers::KEY_ID, caller.map(Caller::key_id)),
                (headers::TENANT, caller.map(Caller::tenant)),
                (headers::MODEL, None),
            ],
        );
        self.state = State::Passed(passed.caller);
        self.count(|counters| counters.passed);
        Action::Continue
    }

    /// Leaves the request to the sidecar, with the hint: what that says is what it would say without a filter.
    fn ask(&mut self, doubt: Doubt, head: &RequestHead<'_>) -> Action {
        let filter = Rc::clone(&self.filter);
        self.write(
            head,
            &[(headers::FILTER_CONFIG, Some(&filter.digest)), (headers::KEY_ID, None), (headers::TENANT, None)],
        );
        self.state = State::Asked(doubt);
        self.count(|counters| counters.asked);
        Action::Continue
    }

    /// Sets or removes headers of ours, and removes those that are not named and that no client may send.
    ///
    /// Envoy looks for the route anew after each header written, so what need not change is not touched.
    fn write(&mut self, head: &RequestHead<'_>, ours: &[(&str, Option<&str>)]) {
        for name in head.owned_headers() {
            let named = ours.iter().find(|(written, _)| *written == name);
            if named.map_or(name != headers::MODEL, |(_, value)| value.is_none()) {
                self.set_http_request_header(name, None);
            }
        }
        for (name, value) in ours {
            if let Some(value) = value {
                self.set_http_request_header(name, Some(value));
            }
        }
    }

    fn refuse_unconfigured(&mut self, headers: &[(String, Bytes)]) -> Action {
        self.count(|counters| counters.unconfigured);
        let path = headers.iter().find(|(name, _)| name == ":path");
        let path = path.and_then(|(_, path)| str::from_utf8(path).ok()).unwrap_or_default();
        let error = ApiError::new(
            ErrorKind::Unavailable,
            "the gateway's filter has no usable configuration; its operator finds the reason in Envoy's log",
        );
        self.send(
            error.status(),
            vec![("content-type", "application/json"), ("retry-after", RETRY_AFTER_SECONDS)],
            &error.body(Dialect::of_path(path, "")),
        )
    }

    fn answer_refused(&mut self) {
        if let State::Refused(answer, _) = mem::replace(&mut self.state, State::Answered) {
            self.answer(&answer);
        }
    }

    fn answer(&mut self, answer: &Answer) -> Action {
        match answer {
            Answer::Gate(refusal) => self.send(refusal.status(), refusal.headers().collect(), &refusal.body()),
            Answer::Exhausted(refusal) => self.send(refusal.status(), refusal.headers().collect(), &refusal.body()),
        }
    }

    /// Answers in the upstream's place.
    fn send(&mut self, status: u16, headers: Vec<(&str, &str)>, body: &str) -> Action {
        self.state = State::Answered;
        self.send_http_response(u32::from(status), headers, Some(body.as_bytes()));
        Action::Pause
    }

    fn count(&self, counter: impl FnOnce(&Counters) -> Option<u32>) {
        if let Some(id) = self.filter.counters.as_ref().and_then(counter) {
            // A count that is lost is no reason to lose the request.
            let _ = hostcalls::increment_metric(id, 1);
        }
    }
}

impl Answer {
    fn counter(&self, counters: &Counters) -> Option<u32> {
        match self {
            Self::Gate(refusal) => counters.refused.get(refusal.reason.index()).copied().flatten(),
            Self::Exhausted(_) => counters.exhausted,
        }
    }
}

/// When to try again where the configuration is unusable: about as long as an operator's correction takes to arrive.
const RETRY_AFTER_SECONDS: &str = "5";

/// Ids of Envoy's counters; `None` where Envoy would not define one.
struct Counters {
    passed: Option<u32>,
    asked: Option<u32>,
    refused: [Option<u32>; Reason::COUNT],
    exhausted: Option<u32>,
    unconfigured: Option<u32>,
}

impl Counters {
    fn define() -> Self {
        let counter = |name: &str| hostcalls::define_metric(MetricType::Counter, name).ok();
        let refused = |reason: &str| counter(&format!("attache_filter_refused_{reason}"));
        Self {
            passed: counter("attache_filter_passed"),
            asked: counter("attache_filter_asked"),
            refused: array::from_fn(|index| Reason::NAMES.get(index).and_then(|reason| refused(reason))),
            exhausted: refused("exhausted"),
            unconfigured: refused("unconfigured"),
        }
    }
}
