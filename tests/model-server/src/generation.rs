//! Generates the answers to a request's prompts, token by token, and writes them whole or as a stream's events.

use std::sync::Arc;

use async_stream::stream;
use futures_util::Stream;
use serde_json::Value;

use crate::{
    content::Words,
    engine::{Engine, Plan, Sequence},
    journal::Entry,
    openai::{Chunk, FinishReason, Reply, StreamUsage, Usage},
    prompt::Prompt,
    sse::Event,
};

/// A request that waits to be generated.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) engine: Arc<Engine>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) reply: Reply,
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) cache_salt: String,
    pub(crate) plan: Plan,
    pub(crate) finish_reason: FinishReason,
}

impl Generation {
    /// Generates all, then gives the answer's body.
    pub(crate) async fn whole(self) -> Value {
        let mut run = Run::start(&self).await;
        for _ in 0..self.plan.answer_tokens {
            run.step().await;
        }
        let usage = run.usage;
        let texts = run.finish();
        self.reply.whole(&texts, self.finish_reason, usage)
    }

    /// Gives each token as it is generated: as vLLM does, the prefill begins when the first event is asked for, with the headers already sent.
    pub(crate) fn events(self, reported: StreamUsage) -> impl Stream<Item = Event> + Send {
        stream! {
            let mut run = Run::start(&self).await;
            for index in 0..run.answers.len() {
                if let Some(chunk) = self.reply.opening_chunk(index) {
                    yield self.event(chunk, reported, run.usage);
                }
            }
            for _ in 0..self.plan.answer_tokens {
                for (index, token) in run.step().await.into_iter().enumerate() {
                    yield self.event(self.reply.token_chunk(index, &token), reported, run.usage);
                }
            }
            let usage = run.usage;
            for index in 0..run.finish().len() {
                yield self.event(self.reply.closing_chunk(index, self.finish_reason), reported, usage);
            }
            if reported != StreamUsage::Nowhere && let Some(chunk) = self.reply.usage_chunk(usage) {
                yield Event::Data(chunk);
            }
            yield Event::Done;
        }
    }

    fn event(&self, chunk: Chunk, reported: StreamUsage, usage: Usage) -> Event {
        Event::Data(match reported {
            StreamUsage::Nowhere => chunk.without_usage(),
            StreamUsage::LastChunk => chunk.with_null_usage(),
            StreamUsage::EveryChunk => self.reply.with_usage(chunk, usage),
        })
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
    text: String,
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
            run.answers.extend(choices.map(|choice| Answer { words: Words::new(prompt, choice), text: String::new() }));
        }
        run
    }

    /// Generates the next token of every answer.
    async fn step(&mut self) -> Vec<String> {
        for sequence in &mut self.sequences {
            sequence.next_token().await;
        }
        let tokens: Vec<String> = self.answers.iter_mut().filter_map(Answer::grow).collect();
        self.usage.completion_tokens += tokens.len() as u64;
        self.entry.generated(tokens.len() as u64);
        tokens
    }

    /// Leaves the engine and gives the answers' texts.
    fn finish(self) -> Vec<String> {
        let texts: Vec<String> = self.answers.into_iter().map(|answer| answer.text).collect();
        let choices = usize::try_from(self.plan.choices).unwrap_or(usize::MAX);
        for (sequence, texts) in self.sequences.into_iter().zip(texts.chunks(choices)) {
            sequence.finish(texts.iter().map(String::as_str));
        }
        texts
    }
}

impl Answer {
    fn grow(&mut self) -> Option<String> {
        let word = self.words.next()?;
        self.text.push_str(&word);
        Some(word)
    }
}
