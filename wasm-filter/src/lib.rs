//! The gate as a proxy-wasm filter: glue, and nothing else. It reads the request's headers, asks [`attache_gate`], and
//! answers or lets pass. Of responses it reads one header, by which the sidecar says that a key has nothing left. It never
//! looks at bodies; that of a refused request it throws away, and answers at its end.
//!
//! It must not be able to panic, because a panic ends the whole Wasm VM of an Envoy worker. So it takes header values as
//! bytes (the SDK's `String` calls unwrap UTF-8; names are safe, as Envoy's codecs admit only RFC 9110 tokens), and it
//! refuses with a 503 where it has no usable configuration: the gate fails closed.

#![expect(missing_docs, reason = "`proxy_wasm::main!` makes `_initialize` public, and no comment can reach it there")]

use std::array;
use std::cell::RefCell;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use attache_gate::{
    BodyWait, Caller, ConfigError, Exhausted, ExhaustedKeys, Gate, GateConfig, LimitRefusal, Passed, Reason, Refusal,
    RequestHead, Verdict,
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
    counters: Option<Counters>,
    exhausted: RefCell<ExhaustedKeys>,
    started: Instant,
}

impl Filter {
    fn without_configuration() -> Self {
        Self { gate: None, counters: None, exhausted: RefCell::default(), started: Instant::now() }
    }

    fn configured(json: &[u8]) -> Self {
        let gate = GateConfig::from_json(json).and_then(Gate::new);
        let gate = gate.inspect_err(log_unusable).ok();
        Self { gate, counters: Some(Counters::define()), ..Self::without_configuration() }
    }

    fn refusal(&self, passed: &Passed) -> Option<LimitRefusal> {
        self.exhausted.try_borrow_mut().ok()?.refusal(passed, self.now())
    }

    fn learn(&self, caller: &Caller, exhausted: Exhausted) {
        if let Ok(mut keys) = self.exhausted.try_borrow_mut() {
            keys.learn(caller, exhausted, self.now());
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
        let answer = match gate.check(&head) {
            Verdict::Pass(passed) => match filter.refusal(&passed) {
                Some(refusal) => Answer::Exhausted(refusal),
                None => return self.pass(passed, &head),
            },
            Verdict::Refuse(refusal) => Answer::Gate(refusal),
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
            State::Open | State::Passed(_) => return Action::Continue,
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
            State::Open | State::Passed(_) => return Action::Continue,
            State::Refused(..) => self.answer_refused(),
            State::Answered => {}
        }
        Action::Pause
    }

    fn on_http_response_headers(&mut self, _count: usize, _end_of_stream: bool) -> Action {
        // Straight from the host: the trait's methods unwrap.
        let Ok(Some(value)) = hostcalls::get_map_value_bytes(MapType::HttpResponseHeaders, headers::EXHAUSTED) else {
            return Action::Continue;
        };
        let _ = hostcalls::remove_map_value(MapType::HttpResponseHeaders, headers::EXHAUSTED);
        if let (State::Passed(Some(caller)), Some(exhausted), true) =
            (&self.state, Exhausted::from_header(&value), is_refusal_of_the_sidecar())
        {
            self.filter.learn(caller, exhausted);
        }
        Action::Continue
    }
}

/// Whether the response is the sidecar's own answer: Envoy keeps its reason apart from the headers, where no model server
/// can write one.
fn is_refusal_of_the_sidecar() -> bool {
    let details = hostcalls::get_property(vec!["response", "code_details"]);
    details.is_ok_and(|details| details.is_some_and(|details| details == headers::LIMITED_DETAILS.as_bytes()))
}

impl Exchange {
    /// Lets the request go on with none of our headers but those that name its caller, which are information: the sidecar
    /// finds the caller out for itself.
    ///
    /// Envoy looks for the route anew after each header written, so what need not change is not touched.
    fn pass(&mut self, passed: Passed, head: &RequestHead<'_>) -> Action {
        let written = match &passed.caller {
            Some(caller) => [Some((headers::KEY_ID, caller.key_id())), Some((headers::TENANT, caller.tenant()))],
            None => [None, None],
        };
        let is_written = |name| written.iter().flatten().any(|(written, _)| *written == name);
        for name in head.owned_headers().filter(|name| !is_written(*name)) {
            self.set_http_request_header(name, None);
        }
        for (name, value) in written.into_iter().flatten() {
            self.set_http_request_header(name, Some(value));
        }
        self.state = State::Passed(passed.caller);
        self.count(|counters| counters.passed);
        Action::Continue
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
            refused: array::from_fn(|index| Reason::NAMES.get(index).and_then(|reason| refused(reason))),
            exhausted: refused("exhausted"),
            unconfigured: refused("unconfigured"),
        }
    }
}
