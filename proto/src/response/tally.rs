//! What the events of a stream add up to.

use super::found::{Found, Presence};
use super::members::Form;
use super::stream::Read;
use super::{Counted, Fault, FaultPlace, Gap};
use crate::usage::{Account, Told};

/// What was counted of a stream so far.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    form: Option<Form>,
    account: Option<Account>,
    content_events: u64,
    /// Tokens of output, in parts of [`Weight`].
    output: u64,
    weight: Weight,
    uncorrected_tokens: u64,
    /// The fewest tokens that all events may have had.
    fewest_tokens: u64,
    has_reasoning: bool,
    /// Whether content came after the last usage.
    is_behind: bool,
    events: u64,
    is_done: bool,
    is_malformed: bool,
    /// The status that the first error stands for, and where it came.
    fault: Option<Fault>,
}

impl Tally {
    pub(super) fn new(form: Option<Form>) -> Self {
        Self {
            form,
            account: None,
            content_events: 0,
            output: 0,
            weight: Weight::ONE,
            uncorrected_tokens: 0,
            fewest_tokens: 0,
            has_reasoning: false,
            is_behind: false,
            events: 0,
            is_done: false,
            is_malformed: false,
            fault: None,
        }
    }

    /// An event is complete.
    pub(super) fn count(&mut self, read: &Read) {
        self.events += 1;
        if read.is_done {
            self.is_done = true;
            return;
        }
        self.is_malformed |= !read.is_complete && !read.is_blank;
        self.add(&read.found);
    }

    /// The stream has ended within an event. The standard drops it, but its tokens were spent, and not every client does.
    pub(super) fn count_broken_off(&mut self, read: &Read) {
        if read.is_complete || read.is_done {
            return self.count(read);
        }
        self.is_malformed = true;
        self.add(&read.found);
    }

    /// Has what is seen of an event's tokens count so much.
    pub(super) fn weigh(&mut self, tokens: f64) {
        self.weight = Weight::of(tokens);
    }

    pub(super) fn output_tokens(&self) -> u64 {
        self.output.div_ceil(Weight::PARTS)
    }

    /// How many tokens of output there will be with an event that says this.
    pub(super) fn output_after(&self, found: &Found) -> u64 {
        self.output_parts_after(found).div_ceil(Weight::PARTS)
    }

    /// The fewest tokens of output that there will be for certain with an event that says this, but for what its server tells.
    pub(super) fn fewest_after(&self, found: &Found) -> u64 {
        self.fewest_tokens.saturating_add(found.fewest_tokens())
    }

    /// What of so many tokens as far as can be told there are without doubt: half where nothing is known of the events of such
    /// streams, as text may have fewer tokens than its length says.
    pub(super) fn undoubted(&self, likely: u64) -> u64 {
        if self.weight == Weight::ONE {
            likely.saturating_sub(256) / 2
        } else {
            (likely - likely / 8).saturating_sub(32)
        }
    }

    fn output_parts_after(&self, found: &Found) -> u64 {
        let told = found.account.map_or(0, |account| account.whole().output);
        if told > 0 {
            return told.max(self.content_events_after(found)).saturating_mul(Weight::PARTS);
        }
        // Some servers report zeros until the end.
        let weighed =
            found.tokens().saturating_mul(self.weight.0).max(found.fewest_tokens().saturating_mul(Weight::PARTS));
        self.output.saturating_add(weighed)
    }

    pub(super) fn counted(&self, model: Option<&str>) -> Counted {
        let has_output = self.form.is_some_and(Form::has_output);
        let gap = self.account.map_or_else(Gap::default, |account| Gap {
            input: account.told == Told::Output,
            output: has_output
                && (account.told == Told::Input
                    || self.is_behind
                    || (account.whole().output == 0 && self.content_events > 0)),
        });
        Counted {
            usage: self.account.map(|account| account.whole()),
            gap,
            content_events: self.content_events,
            output_tokens: self.output_tokens(),
            uncorrected_tokens: self.uncorrected_tokens,
            has_reasoning: self.has_reasoning,
            events: self.events,
            done: self.is_done,
            model: model.map(str::to_owned),
            malformed: self.is_malformed,
            fault: self.fault,
        }
    }

    fn add(&mut self, found: &Found) {
        if let (Some(status), None) = (found.failure.to_status(), self.fault) {
            let place = if self.content_events == 0 { FaultPlace::First } else { FaultPlace::Later };
            self.fault = Some(Fault { status, place });
        }
        self.output = self.output_parts_after(found);
        self.uncorrected_tokens = self.uncorrected_tokens.saturating_add(found.tokens());
        self.fewest_tokens = self.fewest_after(found);
        self.has_reasoning |= found.reasoning == Presence::Present;
        self.content_events = self.content_events_after(found);
        match found.account {
            Some(account) => {
                let is_cumulative = self.form.is_some_and(Form::is_cumulative);
                let before = self.account.filter(|_| is_cumulative);
                self.account = Some(before.map_or(account, |before| before.updated(account)));
                self.is_behind = false;
            }
            None => self.is_behind |= found.tokens() > 0,
        }
    }

    fn content_events_after(&self, found: &Found) -> u64 {
        self.content_events + u64::from(found.tokens() > 0)
    }
}

/// How many tokens there are for one that is seen in an event, in parts of 1,024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Weight(u64);

impl Weight {
    const PARTS: u64 = 1024;
    const ONE: Self = Self(Self::PARTS);
    /// Servers that guess several tokens ahead send no more in one event.
    const MOST: u64 = 64 * Self::PARTS;

    fn of(tokens: f64) -> Self {
        // A figure that is none becomes 0, and counts as little as may be.
        Self(((tokens * Self::PARTS as f64).round() as u64).clamp(1, Self::MOST))
    }
}
