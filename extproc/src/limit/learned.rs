//! What complete answers taught about the next ones: how dense a tenant's prompts to a model are, and how long a caller's answers.
//!
//! A tenant of which nothing is known starts from what is usual among the tenants of the model, a median: no tenant by itself can
//! move what is reserved for another. Only usage that an upstream reported of an answer that went through to its end is learned from. One lock over everything,
//! held for a few map operations. Memory is bounded by a number of entries; those that were not learned about for longest are
//! forgotten, and start anew.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use attache_proto::Usage;
use xxhash_rust::xxh3::Xxh3;

use super::events::{Events, InEvents};
use super::most::{MAX_TEMPLATE_TOKENS, Most};
use super::{BoundsTaken, Learned};

/// Pairs of a model and a key, some 3 MB, and as many of a model and a tenant, some 2 MB. What their events have is 1 MB.
const MAX_PAIRS: usize = 16 * 1024;

/// The same where servers run tools: some 1 MB.
const MAX_PAIRS_WITH_TOOLS: usize = 2 * 1024;

/// Models. Their names come from the configuration; this bounds what reloads may add to it.
const MAX_MODELS: usize = 1024;

/// Everything that was learned.
#[derive(Default)]
pub struct Experience {
    books: Mutex<Books>,
    bounds: BoundsTaken,
}

/// One complete answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lesson {
    /// Its prompt, where that was text alone.
    pub prompt: Option<Prompt>,
    /// Its output in tokens, all choices together, where it could have had any.
    pub output: Option<u64>,
    /// The tokens in its events, where it was a stream.
    pub in_events: Option<InEvents>,
    /// What it used, where its server may have run tools: such answers teach nothing of others.
    pub with_tools: Option<Usage>,
}

/// A prompt of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prompt {
    /// Its bytes, as [`EstimateInput::prompt_bytes`](super::EstimateInput) counts them.
    pub bytes: u64,
    /// Its messages.
    pub messages: u64,
    /// Its tokens, those that came from a cache included.
    pub tokens: u64,
}

impl Experience {
    /// What is known of a tenant's prompts to a model, and of the answers that the model gives to a key.
    pub fn of(&self, model: &str, tenant: Option<&str>, key_id: Option<&str>) -> Learned {
        let books = self.books();
        let learned = match books.prompts.get(pair(model, tenant)) {
            Some(prompts) => prompts.learned(),
            None => usual(&books.tenants, model),
        };
        let outputs = books.outputs.get(pair(model, key_id)).copied().unwrap_or_default();
        Learned { output_p90: outputs.p90, longest_output: outputs.longest(), ..learned }
    }

    /// Learns from an answer of `model` to a key of a tenant.
    pub fn learn(&self, model: &str, tenant: Option<&str>, key_id: Option<&str>, lesson: &Lesson) {
        let mut books = self.books();
        if let Some(prompt) = lesson.prompt.filter(Prompt::is_plausible) {
            let (books, pair) = (&mut *books, pair(model, tenant));
            let prompts = books.prompts.entry_or(pair, || Prompts::starting_from(&usual(&books.tenants, model)));
            prompts.learn(&prompt);
            let learned = prompts.learned();
            books.tenants.entry(name(&[model])).note(pair, learned);
        }
        if let Some(output) = lesson.output {
            books.outputs.entry(pair(model, key_id)).learn(output);
        }
        if let Some(usage) = lesson.with_tools {
            let with_tools = books.with_tools.entry(pair(model, key_id));
            with_tools.input.learn(usage.input);
            with_tools.output.learn(usage.output);
        }
        if let Some(in_events) = lesson.in_events.filter(InEvents::is_plausible) {
            books.events.entry(name(&[model])).learn(&in_events);
            books.events.entry(pair(model, key_id)).learn(&in_events);
        }
    }

    /// What answers to a key use for which the model's server may run tools: input and output that nine of ten do not exceed, or none
    /// of the few that there were; `None` before the first.
    pub fn with_tools(&self, model: &str, key_id: Option<&str>) -> Option<(u64, u64)> {
        let books = self.books();
        let WithTools { input, output } = books.with_tools.get(pair(model, key_id))?;
        Some((input.usual()?, output.usual()?))
    }

    /// Tokens of output for each that is seen in the events of a model's streams: more than one where events have several. Those
    /// of a key count by themselves as soon as there are some.
    pub fn tokens_per_seen(&self, model: &str, key_id: Option<&str>) -> f64 {
        let books = self.books();
        let known = |name: u128| books.events.get(name).copied().unwrap_or_default();
        known(pair(model, key_id)).tokens_per_seen(known(name(&[model])).tokens_per_seen(1.0))
    }

    /// What servers take of a bound of their answers.
    pub fn bounds(&self) -> &BoundsTaken {
        &self.bounds
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Nothing in here panics half-way through a change; if it did, an estimate would be off.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Experience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Experience").finish_non_exhaustive()
    }
}

struct Books {
    /// By model and tenant.
    prompts: Recent<Prompts>,
    /// By model.
    tenants: Recent<Tenants>,
    /// By model and key.
    outputs: Recent<Outputs>,
    /// By model, and by model and key.
    events: Recent<Events>,
    /// By model and key.
    with_tools: Recent<WithTools>,
}

impl Default for Books {
    fn default() -> Self {
        Self {
            prompts: Recent::with_room_for(MAX_PAIRS),
            tenants: Recent::with_room_for(MAX_MODELS),
            outputs: Recent::with_room_for(MAX_PAIRS),
            events: Recent::with_room_for(MAX_PAIRS),
            with_tools: Recent::with_room_for(MAX_PAIRS_WITH_TOOLS),
        }
    }
}

/// What is to be expected of a model's prompts by a tenant that has sent none yet.
fn usual(tenants: &Recent<Tenants>, model: &str) -> Learned {
    tenants.get(name(&[model])).map(Tenants::usual).unwrap_or_default()
}

impl Prompt {
    /// Whether a tokenizer may have done this: a token of text has no more than 16 bytes on average and no less than half of
    /// one, and no template adds more than some thousand tokens.
    pub(super) fn is_plausible(&self) -> bool {
        let most = self.bytes.saturating_mul(2).saturating_add(MAX_TEMPLATE_TOKENS as u64);
        self.bytes > 0 && self.tokens > 0 && self.tokens >= self.bytes / 16 && self.tokens <= most
    }
}

/// A moving average is by so much of the last sample: it follows a change of traffic within some hundred answers.
const AVERAGE: f64 = 1.0 / 32.0;
/// Tokens of a message that are not in its bytes. In ChatML: `<|im_start|>`, a line feed, `<|im_end|>`, a line feed, and one
/// for its role, of which the bytes may be counted as less.
pub(super) const MESSAGE_TOKENS: u64 = 5;

/// What is known of a tenant's prompts to a model.
#[derive(Debug, Clone, Copy)]
struct Prompts {
    /// Moving averages. It is their ratio that is wanted: the average of ratios would be that of the shortest prompts, which
    /// are mostly template.
    bytes: f64,
    tokens: f64,
    most: Most,
}

impl Prompts {
    /// As if one prompt of a thousand tokens had been seen that is like the others.
    fn starting_from(usual: &Learned) -> Self {
        let bytes = 1024.0 * usual.bytes_per_token;
        Self { bytes, tokens: 1024.0, most: Most::expecting(usual) }
    }

    fn learn(&mut self, prompt: &Prompt) {
        self.bytes += AVERAGE * (prompt.bytes as f64 - self.bytes);
        self.tokens += AVERAGE * (prompt.tokens as f64 - self.tokens);
        self.most.learn(prompt);
    }

    fn learned(&self) -> Learned {
        Learned {
            bytes_per_token: (self.bytes / self.tokens).clamp(0.5, 16.0),
            fewest_bytes_per_token: self.most.bytes_per_token(),
            template_tokens: self.most.template_tokens(),
            output_p90: None,
            longest_output: None,
        }
    }
}

/// Tenants of a model that are asked what is usual.
const ASKED: usize = 14;
/// As many tenants as count that have shown nothing but the default: one tenant is no majority of three.
const UNSEEN: usize = 2;

/// The last tenants that were learned about, and what is known of each.
#[derive(Debug, Clone, Default)]
struct Tenants(VecDeque<(u128, Learned)>);

impl Tenants {
    fn note(&mut self, tenant: u128, learned: Learned) {
        if let Some((_, known)) = self.0.iter_mut().find(|(other, _)| *other == tenant) {
            *known = learned;
            return;
        }
        if self.0.len() >= ASKED {
            self.0.pop_front();
        }
        self.0.push_back((tenant, learned));
    }

    /// The median of each figure.
    fn usual(&self) -> Learned {
        let default = Learned::default();
        let unseen = std::iter::repeat_n(&default, UNSEEN);
        let known = || unseen.clone().chain(self.0.iter().map(|(_, learned)| learned));
        let median = |figure: fn(&Learned) -> f64| {
            let mut figures: Vec<f64> = known().map(figure).collect();
            figures.sort_unstable_by(f64::total_cmp);
            // The lower one of two: what is reserved is rather too much.
            figures.get((figures.len() - 1) / 2).copied()
        };
        Learned {
            bytes_per_token: median(|it| it.bytes_per_token).unwrap_or(default.bytes_per_token),
            fewest_bytes_per_token: median(|it| it.fewest_bytes_per_token).unwrap_or(default.fewest_bytes_per_token),
            template_tokens: median(|it| it.template_tokens as f64).map_or(default.template_tokens, |it| it as u64),
            output_p90: None,
            longest_output: None,
        }
    }
}

/// Answers that are remembered of a pair.
const REMEMBERED: usize = 32;
/// Before this many, they say too little of the next one.
const ENOUGH: usize = 8;

/// The last answers to one key.
#[derive(Debug, Clone, Copy, Default)]
struct Outputs {
    tokens: [u32; REMEMBERED],
    /// How many there were, of which the last ones are remembered.
    count: usize,
    p90: Option<u64>,
}

impl Outputs {
    fn learn(&mut self, output: u64) {
        if let Some(oldest) = self.tokens.get_mut(self.count % REMEMBERED) {
            *oldest = u32::try_from(output).unwrap_or(u32::MAX);
        }
        self.count = self.count.wrapping_add(1).max(1);
        let known = self.count.min(REMEMBERED);
        if known < ENOUGH {
            return;
        }
        let mut tokens = self.tokens;
        let Some(tokens) = tokens.get_mut(..known) else { return };
        tokens.sort_unstable();
        // The smallest that nine of ten do not exceed.
        self.p90 = tokens.get((known * 9).div_ceil(10) - 1).map(|tokens| u64::from(*tokens).max(1));
    }
}

/// The last answers to one key for which the server may have run tools.
#[derive(Debug, Clone, Copy, Default)]
struct WithTools {
    input: Outputs,
    output: Outputs,
}

impl Outputs {
    /// What nine of ten do not exceed, or none of the few that there were.
    fn usual(&self) -> Option<u64> {
        self.p90.or_else(|| self.longest())
    }

    /// What none that is remembered exceeds.
    fn longest(&self) -> Option<u64> {
        let known = self.tokens.get(..self.count.min(REMEMBERED)).unwrap_or_default();
        known.iter().max().map(|tokens| u64::from(*tokens))
    }
}

/// A map that forgets what was not written for longest, half of it at a time.
pub(super) struct Recent<V> {
    young: HashMap<u128, V>,
    old: HashMap<u128, V>,
    half: usize,
}

impl<V> Recent<V> {
    pub(super) fn with_room_for(entries: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half: entries / 2 }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    pub(super) fn get(&self, key: u128) -> Option<&V> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    pub(super) fn entry(&mut self, key: u128) -> &mut V
    where
        V: Default,
    {
        self.entry_or(key, V::default)
    }

    fn entry_or(&mut self, key: u128, new: impl FnOnce() -> V) -> &mut V {
        if !self.young.contains_key(&key) && self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        let old = &mut self.old;
        self.young.entry(key).or_insert_with(|| old.remove(&key).unwrap_or_else(new))
    }
}

fn pair(model: &str, caller: Option<&str>) -> u128 {
    name(&[model, caller.unwrap_or_default()])
}

/// 128 bits that no two lists of texts share: each is preceded by its length.
pub(super) fn name(texts: &[&str]) -> u128 {
    let mut hash = Xxh3::new();
    for text in texts {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    }
    hash.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(bytes: u64, tokens: u64) -> Lesson {
        Lesson { prompt: Some(Prompt { bytes, messages: 1, tokens }), ..output_lesson(None) }
    }

    fn output(tokens: u64) -> Lesson {
        output_lesson(Some(tokens))
    }

    fn output_lesson(output: Option<u64>) -> Lesson {
        Lesson { prompt: None, output, in_events: None, with_tools: None }
    }

    #[test]
    fn nothing_is_known_of_a_model_before_its_first_answer() {
        assert_eq!(Experience::default().of("m", None, Some("k")), Learned::default());
    }

    #[test]
    fn the_bytes_of_a_token_are_learned_by_model_and_short_prompts_hardly_count() {
        let experience = Experience::default();
        for _ in 0..300 {
            experience.learn("dense", None, None, &prompt(6_000, 3_000));
            experience.learn("mixed", None, None, &prompt(6_000, 1_500));
            experience.learn("mixed", None, None, &prompt(6, 9));
        }
        let learned = |model: &str| experience.of(model, None, None).bytes_per_token;
        assert!((learned("dense") - 2.0).abs() < 0.01, "{}", learned("dense"));
        assert!((learned("mixed") - 4.0).abs() < 0.1, "{}", learned("mixed"));
        assert_eq!(learned("other"), 4.0);
    }

    #[test]
    fn one_tenant_moves_what_is_expected_of_its_own_prompts_and_of_nobody_elses() {
        let experience = Experience::default();
        let of = |tenant| experience.of("m", Some(tenant), None);
        let teach = |tenant: &str, bytes, tokens| {
            (0..100).for_each(|_| experience.learn("m", Some(tenant), None, &prompt(bytes, tokens)));
        };
        teach("dense", 8_000, 10_000);
        teach("neighbour", 8_000, 2_000);
        let neighbour = of("neighbour");
        assert_eq!(of("stranger"), Learned::default());
        assert!(of("dense").bytes_per_token < 1.0 && of("dense").fewest_bytes_per_token < 1.0);
        for sizes in [(8_000, 10_000), (8_000, 520)] {
            teach("dense", sizes.0, sizes.1);
            assert_eq!((of("neighbour"), of("stranger")), (neighbour, Learned::default()));
        }
    }

    #[test]
    fn a_stranger_is_expected_to_be_like_most_tenants_of_the_model() {
        let experience = Experience::default();
        let teach = |tenant: &str, bytes, tokens| {
            (0..300).for_each(|_| experience.learn("m", Some(tenant), None, &prompt(bytes, tokens)));
        };
        for tenant in ["a", "b", "c"] {
            teach(tenant, 6_000, 6_000);
        }
        // Of two that counted as unseen and three that agree, the three are the majority; one that lies is not.
        teach("liar", 8_000, 520);
        let stranger = experience.of("m", Some("stranger"), None);
        assert!((stranger.bytes_per_token - 1.0).abs() < 0.1, "{stranger:?}");
        assert!(stranger.fewest_bytes_per_token <= 1.0, "{stranger:?}");
        // And it goes on from there.
        experience.learn("m", Some("stranger"), None, &prompt(6_000, 6_000));
        let known = experience.of("m", Some("stranger"), None);
        assert!((known.bytes_per_token - 1.0).abs() < 0.1 && known.fewest_bytes_per_token <= 1.0, "{known:?}");
        assert_eq!(experience.of("other", Some("stranger"), None), Learned::default());
    }

    #[test]
    fn few_tenants_of_a_model_are_asked_however_many_there_are() {
        let experience = Experience::default();
        for tenant in 0..1_000 {
            experience.learn("m", Some(&tenant.to_string()), None, &prompt(4_000, 1_000));
        }
        assert_eq!(experience.books().tenants.get(name(&["m"])).map(|tenants| tenants.0.len()), Some(ASKED));
    }

    #[test]
    fn what_no_tokenizer_does_is_ignored() {
        let experience = Experience::default();
        for (bytes, tokens) in
            [(0, 7), (7, 0), (1_000, 1 << 53), (1 << 40, 1), (1_000, 7_000), (u64::MAX, u64::MAX / 17)]
        {
            experience.learn("m", None, None, &prompt(bytes, tokens));
        }
        assert_eq!(experience.of("m", None, None), Learned::default());
    }

    #[test]
    fn nine_of_ten_answers_to_a_caller_stay_below_its_p90_once_there_were_enough() {
        let experience = Experience::default();
        for tokens in 1..=7 {
            experience.learn("m", None, Some("k"), &output(tokens));
            assert_eq!(experience.of("m", None, Some("k")).output_p90, None);
        }
        for tokens in 8..=30 {
            experience.learn("m", None, Some("k"), &output(tokens));
        }
        let p90 = |model: &str, key| experience.of(model, None, key).output_p90;
        assert_eq!(p90("m", Some("k")), Some(27));
        // The oldest give way.
        for tokens in 31..=64 {
            experience.learn("m", None, Some("k"), &output(tokens));
        }
        assert_eq!(p90("m", Some("k")), Some(61));
        assert_eq!((p90("m", None), p90("m", Some("other")), p90("mk", Some(""))), (None, None, None));
        for _ in 0..40 {
            experience.learn("m", None, Some("k"), &output(0));
        }
        assert_eq!(p90("m", Some("k")), Some(1), "an answer has at least a token");
    }

    #[test]
    fn what_servers_with_tools_of_their_own_use_is_learned_apart_and_from_the_first_answer_on() {
        let experience = Experience::default();
        let learn = |input: u64, output: u64| {
            let usage = Usage { input, output, total: input + output, ..Usage::default() };
            let lesson = Lesson { with_tools: Some(usage), ..output_lesson(None) };
            experience.learn("m", Some("t"), Some("k"), &lesson);
        };
        let known = |key: &str| experience.with_tools("m", Some(key));
        assert_eq!(known("k"), None);
        learn(400_000, 1_468);
        assert_eq!((known("k"), known("other")), (Some((400_000, 1_468)), None));
        (0..40).for_each(|_| learn(90_000, 500));
        assert_eq!(known("k"), Some((90_000, 500)));
        assert_eq!(experience.of("m", Some("t"), Some("k")), Learned::default());
    }

    #[test]
    fn those_that_were_not_learned_about_for_longest_are_forgotten() {
        let experience = Experience::default();
        let learn = |key: &str| (0..8).for_each(|_| experience.learn("m", None, Some(key), &output(50)));
        learn("regular");
        for key in 0..3 * MAX_PAIRS {
            learn(&key.to_string());
            if key % 1_000 == 0 {
                learn("regular");
            }
        }
        let books = experience.books();
        assert!(books.outputs.len() <= MAX_PAIRS);
        drop(books);
        let is_known = |key: &str| experience.of("m", None, Some(key)).output_p90.is_some();
        assert!(is_known("regular") && is_known(&(3 * MAX_PAIRS - 1).to_string()) && !is_known("0"));
    }
}
