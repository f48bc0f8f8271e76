//! The clock: events in the order of their time, and what each does.

use std::{cmp::Ordering, collections::BinaryHeap, mem, time::Duration};

use super::{
    baseline::Baseline,
    figures::{Outcome, Run},
    ours::Ours,
    replica::{DECODE, Replica, Scrape},
    routing::Routing,
    setup::{Incident, Policy, Setup, Sharing},
};
use crate::traces::{Request, Trace, random::mix};

const SCRAPE_EVERY: Duration = Duration::from_secs(1);
const NEWS_EVERY: Duration = Duration::from_millis(250);
const LOADS_EVERY: Duration = Duration::from_millis(200);
/// A client whose answer broke off asks again after this.
const ASKS_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// One run.
pub(super) struct Engine<'a> {
    requests: &'a [Request],
    setup: &'a Setup,
    /// When the incident is.
    half_time: Duration,
    routing: Box<dyn Routing + 'a>,
    replicas: Vec<Replica>,
    flights: Vec<Flight>,
    unfinished: usize,
    events: BinaryHeap<Scheduled>,
    sequence: u64,
    now: Duration,
}

/// Where a request is.
#[derive(Debug, Clone, Copy, Default)]
struct Flight {
    sidecar: usize,
    replica: usize,
    /// Counts what was begun and lost: what a former attempt scheduled happens no more.
    attempt: u32,
    cached_tokens: u64,
    first_byte: Option<Duration>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Ahead,
    AtReplica,
    Finished,
    Failed,
}

#[derive(Debug)]
enum Event {
    Arrive(usize),
    PrefillEnds { request: usize, attempt: u32 },
    AnswerEnds { request: usize, attempt: u32 },
    Scrape { sidecar: usize },
    Scraped { sidecar: usize, pages: Vec<Option<Scrape>> },
    ShareNews,
    ShareLoads,
    Incident,
    ReplicaReturns,
}

/// Events of the same time happen in the order in which they were scheduled.
#[derive(Debug)]
struct Scheduled {
    at: Duration,
    sequence: u64,
    event: Event,
}

impl<'a> Engine<'a> {
    pub(super) fn new(trace: &'a Trace, setup: &'a Setup) -> Self {
        let replica = || Replica::new(setup.cache_tokens, setup.prefill_rate);
        let mut engine = Self {
            requests: &trace.requests,
            setup,
            half_time: trace.duration() / 2,
            routing: match setup.policy {
                Policy::Ours => Box::new(Ours::new(trace, setup)),
                _ => Box::new(Baseline::new(setup)),
            },
            replicas: (0..setup.replicas).map(|_| replica()).collect(),
            flights: vec![Flight::default(); trace.requests.len()],
            unfinished: trace.requests.len(),
            events: BinaryHeap::new(),
            sequence: 0,
            now: Duration::ZERO,
        };
        for (number, request) in trace.requests.iter().enumerate() {
            engine.schedule(request.arrival, Event::Arrive(number));
        }
        for sidecar in 0..setup.sidecars {
            // Sidecars did not start at the same moment.
            let phase = SCRAPE_EVERY.mul_f64((mix(setup.seed ^ sidecar as u64) >> 40) as f64 / (1_u64 << 24) as f64);
            engine.schedule(phase, Event::Scrape { sidecar });
        }
        if setup.sharing == Sharing::Shared {
            engine.schedule(NEWS_EVERY, Event::ShareNews);
            engine.schedule(LOADS_EVERY, Event::ShareLoads);
        }
        if setup.incident != Incident::None {
            engine.schedule(engine.half_time, Event::Incident);
        }
        engine
    }

    pub(super) fn run(mut self) -> Run {
        while self.unfinished > 0 {
            let Some(scheduled) = self.events.pop() else { break };
            self.now = scheduled.at;
            self.happen(scheduled.event);
        }
        let outcomes = self.requests.iter().zip(&self.flights).map(|(request, flight)| Outcome {
            arrival: request.arrival,
            sidecar: flight.sidecar,
            replica: flight.replica,
            input_tokens: request.input_tokens,
            cached_tokens: flight.cached_tokens,
            time_to_first_token: match flight.stage {
                Stage::Finished => flight.first_byte.map(|at| at.saturating_sub(request.arrival)),
                _ => None,
            },
        });
        Run { outcomes: outcomes.collect(), replicas: self.setup.replicas, half_time: self.half_time }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive(number) => self.arrive(number),
            Event::PrefillEnds { request, attempt } => self.prefill_ends(request, attempt),
            Event::AnswerEnds { request, attempt } => self.answer_ends(request, attempt),
            Event::Scrape { sidecar } => {
                let pages = self.replicas.iter().map(Replica::scrape).collect();
                self.schedule(self.now + self.setup.scrape_delay, Event::Scraped { sidecar, pages });
                self.schedule(self.now + SCRAPE_EVERY, Event::Scrape { sidecar });
            }
            Event::Scraped { sidecar, pages } => {
                for (replica, page) in pages.into_iter().enumerate() {
                    self.routing.scraped(sidecar, replica, page, self.now);
                }
            }
            Event::ShareNews => {
                self.routing.share_news(self.now);
                self.schedule(self.now + NEWS_EVERY, Event::ShareNews);
            }
            Event::ShareLoads => {
                self.routing.share_loads(self.now);
                self.schedule(self.now + LOADS_EVERY, Event::ShareLoads);
            }
            Event::Incident => self.incident(),
            Event::ReplicaReturns => self.replicas.iter_mut().for_each(Replica::come_up),
        }
    }

    fn arrive(&mut self, number: usize) {
        let requests = self.requests;
        let Some(request) = requests.get(number) else { return };
        let sidecar = (mix(self.setup.seed ^ mix(number as u64)) % self.setup.sidecars.max(1) as u64) as usize;
        let order = self.routing.place(sidecar, number, request, self.now);
        let up = |replica: &usize| self.replicas.get(*replica).is_some_and(Replica::is_up);
        let served = order.iter().position(up);
        let refused = order.get(..served.unwrap_or(order.len())).unwrap_or_default();
        let served = served.and_then(|at| order.get(at).copied());
        self.routing.answered(sidecar, number, request, served, refused, self.now);

        let Some(flight) = self.flights.get_mut(number) else { return };
        flight.sidecar = sidecar;
        match served {
            Some(replica) => {
                (flight.replica, flight.stage) = (replica, Stage::AtReplica);
                if let Some(replica) = self.replicas.get_mut(replica) {
                    replica.enqueue(number);
                }
                self.start_prefill(replica);
            }
            None => {
                flight.stage = Stage::Failed;
                self.unfinished -= 1;
            }
        }
    }

    fn start_prefill(&mut self, index: usize) {
        let Some(replica) = self.replicas.get_mut(index) else { return };
        let Some(prefill) = replica.next_prefill(self.requests) else { return };
        let Some(flight) = self.flights.get_mut(prefill.request) else { return };
        flight.cached_tokens = prefill.cached_tokens;
        let event = Event::PrefillEnds { request: prefill.request, attempt: flight.attempt };
        self.schedule(self.now + prefill.takes, event);
    }

    fn prefill_ends(&mut self, number: usize, attempt: u32) {
        let (requests, now) = (self.requests, self.now);
        let Some((request, flight)) = requests.get(number).zip(self.flights.get_mut(number)) else { return };
        if flight.attempt != attempt {
            return;
        }
        let Some(replica) = self.replicas.get_mut(flight.replica) else { return };
        replica.prefilled(request);
        flight.first_byte = Some(now);
        let (sidecar, index) = (flight.sidecar, flight.replica);
        self.routing.first_byte(sidecar, number, now);
        let further = u32::try_from(request.output_tokens.saturating_sub(1)).unwrap_or(u32::MAX);
        self.schedule(now + DECODE * further, Event::AnswerEnds { request: number, attempt });
        self.start_prefill(index);
    }

    fn answer_ends(&mut self, number: usize, attempt: u32) {
        let requests = self.requests;
        let Some((request, flight)) = requests.get(number).zip(self.flights.get_mut(number)) else { return };
        if flight.attempt != attempt {
            return;
        }
        let Some(replica) = self.replicas.get_mut(flight.replica) else { return };
        replica.answered(request);
        flight.stage = Stage::Finished;
        let (sidecar, cached_tokens) = (flight.sidecar, flight.cached_tokens);
        self.unfinished -= 1;
        self.routing.finished(sidecar, number, request, cached_tokens, self.now);
    }

    fn incident(&mut self) {
        match self.setup.incident {
            Incident::None => {}
            Incident::SidecarRestart => self.routing.restarted(0, self.now),
            Incident::AllSidecarsRestart => {
                (0..self.setup.sidecars).for_each(|sidecar| self.routing.restarted(sidecar, self.now));
            }
            Incident::ReplicaLoss => self.lose_replica(0),
            Incident::ScaleUp => {
                self.replicas.push(Replica::new(self.setup.cache_tokens, self.setup.prefill_rate));
                self.routing.members(self.replicas.len(), self.now);
            }
        }
    }

    /// What had no first token is asked again by its client; an answer that breaks off in the middle has failed.
    fn lose_replica(&mut self, lost: usize) {
        let Some(replica) = self.replicas.get_mut(lost) else { return };
        replica.go_down();
        self.schedule(self.now + Incident::OUTAGE, Event::ReplicaReturns);
        let mut flights = mem::take(&mut self.flights);
        for (number, flight) in flights.iter_mut().enumerate() {
            if flight.stage != Stage::AtReplica || flight.replica != lost {
                continue;
            }
            flight.attempt += 1;
            self.routing.reset(flight.sidecar, number, self.now);
            if flight.first_byte.is_none() {
                flight.stage = Stage::Ahead;
                self.schedule(self.now + ASKS_AGAIN_AFTER, Event::Arrive(number));
            } else {
                flight.stage = Stage::Failed;
                self.unfinished -= 1;
            }
        }
        self.flights = flights;
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        self.sequence += 1;
        self.events.push(Scheduled { at, sequence: self.sequence, event });
    }
}

/// The heap gives the greatest first, which shall be the soonest.
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}
