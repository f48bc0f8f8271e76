//! What model servers take of a bound that we add to requests: by which names they know it, and how high it may be.
//!
//! Learned from their answers, by backend and the model's name there, as one server may have models that differ. What is remembered is
//! bounded. Nothing of it lets an answer be longer: where all names of a bound were refused, one that was taken before is tried anew.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use attache_proto::objection::Objection;
use attache_proto::request::BoundName;

use super::learned::{Recent, name};

/// Models of backends: clients may make up names where a route takes any.
const MAX_MODELS: usize = 4 * 1024;

/// For so long a figure is believed. A server may be started anew with another.
const FIGURE_HOLDS: Duration = Duration::from_secs(3_600);

/// So often in a row a name is refused that was taken before, until that is believed.
const DOUBTS: u8 = 2;

/// Everything that was learned.
pub struct BoundsTaken(Mutex<Recent<Taken>>);

/// A model of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedAt(u128);

impl ServedAt {
    /// By the names of the backend and of the model there.
    pub fn new(backend: &str, model: &str) -> Self {
        Self(name(&[backend, model]))
    }
}

/// What one model's server takes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    names: [Name; 4],
    most: Option<(u64, Instant)>,
    context: Option<(u64, Instant)>,
}

/// One name of a bound.
#[derive(Debug, Clone, Copy, Default)]
struct Name {
    was_taken: bool,
    /// How often it was refused since.
    refused: u8,
}

impl Name {
    fn is_refused(self) -> bool {
        self.refused >= if self.was_taken { DOUBTS } else { 1 }
    }
}

impl Taken {
    /// Which of these names to add, the first one that was not refused; `None` where all of them were, always.
    pub fn choose(&self, names: &[BoundName]) -> Option<BoundName> {
        let fitting = names.iter().find(|name| !self.of(**name).is_refused());
        fitting.or_else(|| names.iter().find(|name| self.of(**name).was_taken)).copied()
    }

    /// Whether an answer came to a request that had it.
    pub fn was_taken(&self, name: BoundName) -> bool {
        self.of(name).was_taken && self.of(name).refused == 0
    }

    /// The most tokens that the model answers, as far as is known.
    pub fn most(&self, now: Instant) -> Option<u64> {
        figure(self.most, now)
    }

    /// The tokens of the model's context, as far as is known.
    pub fn context(&self, now: Instant) -> Option<u64> {
        figure(self.context, now)
    }

    fn of(&self, name: BoundName) -> Name {
        self.names.get(name as usize).copied().unwrap_or_default()
    }
}

fn figure(figure: Option<(u64, Instant)>, now: Instant) -> Option<u64> {
    let (figure, since) = figure?;
    (now.saturating_duration_since(since) < FIGURE_HOLDS).then_some(figure)
}

impl Default for BoundsTaken {
    fn default() -> Self {
        Self(Mutex::new(Recent::with_room_for(MAX_MODELS)))
    }
}

impl BoundsTaken {
    /// What is known of a model's server.
    pub fn by(&self, server: ServedAt) -> Taken {
        self.models().get(server.0).copied().unwrap_or_default()
    }

    /// A request that had the field was answered.
    pub fn taken(&self, server: ServedAt, name: BoundName) {
        if self.by(server).was_taken(name) {
            return;
        }
        if let Some(known) = self.models().entry(server.0).names.get_mut(name as usize) {
            *known = Name { was_taken: true, refused: 0 };
        }
    }

    /// A request that had the field was refused for it.
    pub fn refused(&self, server: ServedAt, name: BoundName, objection: Objection, now: Instant) {
        let mut models = self.models();
        let known = models.entry(server.0);
        match objection {
            Objection::Name => {
                if let Some(known) = known.names.get_mut(name as usize) {
                    known.refused = known.refused.saturating_add(1);
                }
            }
            Objection::MoreThanAnswers(most) => known.most = Some((most, now)),
            Objection::MoreThanContext(context) => known.context = Some((context, now)),
        }
    }

    fn models(&self) -> MutexGuard<'_, Recent<Taken>> {
        // Nothing in here panics half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: [BoundName; 2] = [BoundName::MaxTokens, BoundName::MaxCompletionTokens];

    #[test]
    fn the_other_name_is_taken_where_the_first_was_refused_and_of_that_model_alone() {
        let (bounds, now) = (BoundsTaken::default(), Instant::now());
        let server = ServedAt::new("ns/openai", "o9");
        assert_eq!(bounds.by(server).choose(&CHAT), Some(BoundName::MaxTokens));
        bounds.refused(server, BoundName::MaxTokens, Objection::Name, now);
        assert_eq!(bounds.by(server).choose(&CHAT), Some(BoundName::MaxCompletionTokens));
        for other in [ServedAt::new("ns/openai", "o8"), ServedAt::new("ns/openaio", "9")] {
            assert_eq!(bounds.by(other).choose(&CHAT), Some(BoundName::MaxTokens));
        }
        assert_eq!(bounds.by(server).choose(&CHAT[..1]), None, "nothing that it takes");
        bounds.refused(server, BoundName::MaxCompletionTokens, Objection::Name, now);
        assert_eq!(bounds.by(server).choose(&CHAT), None);
    }

    #[test]
    fn a_name_that_was_taken_before_is_given_up_after_two_refusals_and_is_what_is_left_if_all_are_refused() {
        let (bounds, now) = (BoundsTaken::default(), Instant::now());
        let server = ServedAt::new("b", "m");
        bounds.taken(server, BoundName::MaxTokens);
        for _ in 0..3 {
            bounds.refused(server, BoundName::MaxTokens, Objection::Name, now);
            assert_eq!(bounds.by(server).choose(&CHAT), Some(BoundName::MaxTokens));
            bounds.taken(server, BoundName::MaxTokens);
        }
        bounds.refused(server, BoundName::MaxTokens, Objection::Name, now);
        bounds.refused(server, BoundName::MaxTokens, Objection::Name, now);
        assert_eq!(bounds.by(server).choose(&CHAT), Some(BoundName::MaxCompletionTokens));
        bounds.refused(server, BoundName::MaxCompletionTokens, Objection::Name, now);
        assert_eq!(bounds.by(server).choose(&CHAT), Some(BoundName::MaxTokens));
    }

    #[test]
    fn figures_are_believed_for_an_hour() {
        let (bounds, now) = (BoundsTaken::default(), Instant::now());
        let server = ServedAt::new("b", "m");
        bounds.refused(server, BoundName::MaxTokens, Objection::MoreThanAnswers(2_048), now);
        bounds.refused(server, BoundName::MaxTokens, Objection::MoreThanContext(8_192), now);
        let known = bounds.by(server);
        assert_eq!((known.most(now), known.context(now)), (Some(2_048), Some(8_192)));
        assert_eq!(known.choose(&CHAT), Some(BoundName::MaxTokens), "the name is none the worse for it");
        let later = now + FIGURE_HOLDS;
        assert_eq!((known.most(later), known.context(later)), (None, None));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (bounds, now) = (BoundsTaken::default(), Instant::now());
        for model in 0..3 * MAX_MODELS {
            let server = ServedAt::new("b", &model.to_string());
            bounds.refused(server, BoundName::MaxTokens, Objection::Name, now);
        }
        assert!(bounds.models().len() <= MAX_MODELS);
    }
}
