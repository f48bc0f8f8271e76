//! What the events of a stream add up to.

use super::found::Found;
use super::members::Form;
use super::stream::Read;
use super::{Counted, Gap};
use crate::usage::{Account, Told};

/// What was counted of a stream so far.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    form: Option<Form>,
    account: Option<Account>,
    content_events: u64,
    output_tokens: u64,
    /// Whether content came after the last usage.
    is_behind: bool,
    events: u64,
    is_done: bool,
    is_malformed: bool,
}

impl Tally {
    pub(super) fn new(form: Option<Form>) -> Self {
        Self {
            form,
            account: None,
            content_events: 0,
            output_tokens: 0,
            is_behind: false,
            events: 0,
            is_done: false,
            is_malformed: false,
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

    pub(super) fn output_tokens(&self) -> u64 {
        self.output_tokens
    }

    /// How many tokens of output there will be with an event that says this.
    pub(super) fn output_after(&self, found: &Found) -> u64 {
        let told = found.account.map_or(0, |account| account.whole().output);
        if told > 0 {
            return told.max(self.content_events_after(found));
        }
        // Some servers report zeros until the end.
        self.output_tokens.saturating_add(found.tokens())
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
            output_tokens: self.output_tokens,
            events: self.events,
            done: self.is_done,
            model: model.map(str::to_owned),
            malformed: self.is_malformed,
        }
    }

    fn add(&mut self, found: &Found) {
        self.output_tokens = self.output_after(found);
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
