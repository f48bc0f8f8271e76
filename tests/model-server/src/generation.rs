//! Generates the answers to a request's prompts, token by token, and has them written whole or as a stream's events.

use std::sync::Arc;

use async_stream::stream;
use futures_util::Stream;
use serde_json::Value;

use crate::{
    content::Words,
    engine::{Engine, Plan, Sequence},
    journal::Entry,
    prompt::Prompt,
    script::{Kind, Part, Script},
    sse::Event,
    usage::Usage,
};

/// A request that waits to be generated.
pub(crate) struct Generation {
    pub(crate) engine: Arc<Engine>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) writer: Box<dyn Writer>,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) cache_salt: String,
    pub(crate) plan: Plan,
    pub(crate) script: Script,
    /// How many tokens an event of a stream has.
    pub(crate) event_tokens: u64,
}

/// Writes what is generated in the form of one dialect.
pub(crate) trait Writer: Send + Sync {
    /// An answer in one piece.
    fn whole(&self, outcome: &Outcome) -> Value;

    /// The events before the first token of so many choices.
    fn opening(&mut self, choices: usize, usage: Usage) -> Vec<Event>;

    /// The events that open a part.
    fn begin(&mut self, place: Place, part: &Part, usage: Usage) -> Vec<Event>;

    /// The events with a piece of a part: a token, or what stands around the tokens.
    fn piece(&mut self, place: Place, part: &Part, text: &str, usage: Usage) -> Vec<Event>;

    /// The events that close a part of this text.
    fn end(&mut self, place: Place, part: &Part, text: &str) -> Vec<Event>;

    /// The events behind the last part.
    fn closing(&mut self, outcome: &Outcome) -> Vec<Event>;
}

/// A part of a choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) choice: usize,
    pub(crate) part: usize,
}

/// What was generated.
#[derive(Debug)]
pub(crate) struct Outcome<'a> {
    pub(crate) script: &'a Script,
    /// Each choice's texts, one a part of the script.
    pub(crate) choices: Vec<Vec<String>>,
    pub(crate) usage: Usage,
}

impl Generation {
    /// Generates all, then gives the answer's body.
    pub(crate) async fn whole(self) -> Value {
        let mut run = Run::start(&self).await;
        for part in self.script.parts() {
            run.begin(part);
            for _ in 0..part.tokens {
                run.step(part).await;
            }
            run.end(part);
        }
        let usage = run.usage;
        self.writer.whole(&Outcome { script: &self.script, choices: run.finish(), usage })
    }

    /// Gives each token as it is generated: as vLLM does, the prefill begins when the first event is asked for, with the headers already sent.
    pub(crate) fn events(mut self) -> impl Stream<Item = Event> + Send {
        stream! {
            let mut run = Run::start(&self).await;
            let choices = run.answers.len();
            for event in self.writer.opening(choices, run.usage) {
                yield event;
            }
            for (index, part) in self.script.parts().iter().enumerate() {
                let place = |choice| Place { choice, part: index };
                run.begin(part);
                for choice in 0..choices {
                    for event in self.writer.begin(place(choice), part, run.usage) {
                        yield event;
                    }
                    if !part.opening().is_empty() {
                        for event in self.writer.piece(place(choice), part, part.opening(), run.usage) {
                            yield event;
                        }
                    }
                }
                let mut pieces = vec![String::new(); choices];
                for number in 1..=part.tokens {
                    for (piece, token) in pieces.iter_mut().zip(run.step(part).await) {
                        piece.push_str(&token);
                    }
                    if number % self.event_tokens > 0 && number < part.tokens {
                        continue;
                    }
                    for (choice, piece) in pieces.iter_mut().enumerate() {
                        for event in self.writer.piece(place(choice), part, &std::mem::take(piece), run.usage) {
                            yield event;
                        }
                    }
                }
                run.end(part);
                for choice in 0..choices {
                    if !part.closing().is_empty() {
                        for event in self.writer.piece(place(choice), part, part.closing(), run.usage) {
                            yield event;
                        }
                    }
                    for event in self.writer.end(place(choice), part, run.text(place(choice))) {
                        yield event;
                    }
                }
            }
            let usage = run.usage;
            let outcome = Outcome { script: &self.script, choices: run.finish(), usage };
            for event in self.writer.closing(&outcome) {
                yield event;
            }
        }
    }
}

/// A generation on the engine.
struct Run {
    entry: Arc<Entry>,
    plan: Plan,
    /// One a prompt.
    sequences: Vec<Sequence>,
    /// As many a prompt as there are choices.
    answers: Vec<Answer>,
    usage: Usage,
}

struct Answer {
    words: Words,
    /// One a part.
    texts: Vec<String>,
}

impl Run {
    /// Computes the prompts, one after another.
    async fn start(generation: &Generation) -> Self {
        let mut run = Self {
            entry: Arc::clone(&generation.entry),
            plan: generation.plan,
            sequences: Vec::new(),
            answers: Vec::new(),
            usage: Usage::default(),
        };
        for prompt in &generation.prompts {
            let sequence = generation.engine.prefill(prompt, &generation.cache_salt, generation.plan).await;
            run.entry.prefilled(sequence.prompt_tokens, sequence.cached_tokens);
            run.usage.prompt_tokens += sequence.prompt_tokens;
            run.usage.cached_tokens += sequence.cached_tokens;
            run.sequences.push(sequence);
            let choices = 0..generation.plan.choices;
            run.answers.extend(choices.map(|choice| Answer { words: Words::new(prompt, choice), texts: Vec::new() }));
        }
        run
    }

    fn begin(&mut self, part: &Part) {
        self.answers.iter_mut().for_each(|answer| answer.texts.push(part.opening().to_owned()));
    }

    /// Generates the next token of every answer.
    async fn step(&mut self, part: &Part) -> Vec<String> {
        for sequence in &mut self.sequences {
            sequence.next_token().await;
        }
        let tokens: Vec<String> = self.answers.iter_mut().filter_map(|answer| answer.grow(part)).collect();
        self.usage.completion_tokens += tokens.len() as u64;
        if part.kind == Kind::Reasoning {
            self.usage.reasoning_tokens += tokens.len() as u64;
        }
        self.entry.generated(tokens.len() as u64);
        tokens
    }

    fn end(&mut self, part: &Part) {
        let texts = self.answers.iter_mut().filter_map(|answer| answer.texts.last_mut());
        texts.for_each(|text| text.push_str(part.closing()));
    }

    fn text(&self, place: Place) -> &str {
        self.answers.get(place.choice).and_then(|answer| answer.texts.get(place.part)).map_or("", String::as_str)
    }

    /// Leaves the engine and gives the answers' texts.
    fn finish(self) -> Vec<Vec<String>> {
        let texts: Vec<Vec<String>> = self.answers.into_iter().map(|answer| answer.texts).collect();
        let choices = usize::try_from(self.plan.choices).unwrap_or(usize::MAX);
        for (sequence, texts) in self.sequences.into_iter().zip(texts.chunks(choices)) {
            let texts: Vec<String> = texts.iter().map(|parts| parts.concat()).collect();
            sequence.finish(texts.iter().map(String::as_str));
        }
        texts
    }
}

impl Answer {
    /// A part's first word has no space before it.
    fn grow(&mut self, part: &Part) -> Option<String> {
        let text = self.texts.last_mut()?;
        let mut word = self.words.next()?;
        if text == part.opening() {
            word = word.trim_start().to_owned();
        }
        text.push_str(&word);
        Some(word)
    }
}
