//! Faults on request: what a real upstream does wrong sooner or later, made to happen now.
//!
//! A [`Fault`] is parsed from a list of effects, `name` or `name=value`, separated by commas; an effect that is not named does not happen. It
//! reaches an exchange by the header `x-sim-fault`, or by [`ArmedFault`], which holds one for the exchanges to come. The header wins, and leaves
//! the armed fault as it is.

use std::{
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use crate::{
    coding::Coding,
    framing::{Beginning, Framing, Gap, Interlude, Layout, LineEnd},
};

/// What goes wrong with one exchange. The default is nothing.
///
/// | effect | what happens |
/// |---|---|
/// | `hang=MS` | nothing is answered for so long; then all goes on as it would have |
/// | `status=CODE` | an error of this status in OpenAI's form |
/// | `retry-after=SECONDS` | with `status`: the header of that name |
/// | `reset` | the TCP connection is reset before the response headers |
/// | `reset-after=K` | the TCP connection is reset after K events of a stream, or half-way through a JSON answer |
/// | `truncate=K` | the body ends in good order in the middle of the event after K events, or half-way through a JSON answer |
/// | `slow=MS` | so long a pause before every event of a stream |
/// | `no-done` | a stream without `[DONE]` |
/// | `endless=MS` | behind its last event a stream stays open, with a comment each MS |
/// | `error-after=K` | after K events a stream says an error, in the form of its path, and ends |
/// | `no-usage` | an answer without `usage`, a stream without the chunk that carries it |
/// | `null-usage` | `"usage":null` where the figures would be |
/// | `negative-usage` | all figures are negative |
/// | `huge-usage` | all figures are 2^64 - 1 |
/// | `usage-twice` | the event with the usage, or the answer's member `usage`, comes twice, first with three times the figures |
/// | `big=BYTES` | the JSON answer, or the first event that is no bare usage, grows by a field of so many bytes |
/// | `long-length=BYTES` | `content-length` of a whole answer claims so many bytes more than come; then the connection closes |
/// | `short-length=BYTES` | it claims so many fewer; the answer is cut off there |
/// | `gzip` | `content-encoding: gzip`, though nobody asked for it |
/// | `garbage` | before the second event, bytes that are no UTF-8 and an event that is no JSON |
/// | `split=BYTES` | events are written in pieces of so many bytes |
/// | `no-space` | `data:` without a space behind it |
/// | `crlf`, `cr`, `mixed` | lines end in CR LF, in CR, in each of the three in turn |
/// | `bom` | the stream begins with a byte order mark |
/// | `comments` | a comment before every event |
/// | `multi-line` | an event's JSON is spread over several `data:` lines |
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// How long nothing is answered.
    pub hang: Duration,
    /// The error that takes the answer's place.
    pub refusal: Option<Refusal>,
    /// Where the answer breaks off.
    pub break_off: Option<BreakOff>,
    /// The pause before every event of a stream.
    pub slow: Duration,
    /// Whether a stream says `[DONE]`.
    pub done: DoneMark,
    /// What becomes of the usage figures.
    pub usage: UsageReport,
    /// After how many events a stream ends in an error.
    pub error_after: Option<u64>,
    /// The pause between the comments of a stream that stays open.
    pub endless: Option<Duration>,
    /// By how much `content-length` is wrong.
    pub length: LengthClaim,
    /// The size of the field that makes an answer big, in bytes.
    pub padding_bytes: usize,
    /// The answer's content coding.
    pub coding: Coding,
    /// How events are written.
    pub framing: Framing,
}

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status, 400 to 599.
    pub status: u16,
    /// The value of `retry-after`, in seconds.
    pub retry_after: Option<u64>,
}

/// Where and how an answer breaks off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakOff {
    /// The connection is reset before the response headers.
    ResetBeforeHeaders,
    /// The connection is reset after so many events.
    ResetAfter(u64),
    /// The body ends within the event after so many events.
    TruncateAfter(u64),
}

/// Whether a stream says `[DONE]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DoneMark {
    /// It does.
    #[default]
    Send,
    /// It just ends.
    Omit,
}

/// What becomes of the usage figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageReport {
    /// They are reported.
    #[default]
    Report,
    /// They are left out.
    Omit,
    /// They are `null`.
    Nullify,
    /// They are negative.
    Negate,
    /// They are as large as 64 bits allow.
    Inflate,
    /// They come twice, first wrong.
    Repeat,
}

/// What `content-length` says of a whole answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LengthClaim {
    /// What is true.
    #[default]
    True,
    /// So many bytes more.
    Over(usize),
    /// So many bytes fewer.
    Under(usize),
}

/// A fault's text that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// There is no effect of this name.
    #[error("no fault has the effect `{0}`; see the table of the model server's `--help`")]
    UnknownEffect(String),
    /// The effect's value is missing, is not wanted or is out of its range.
    #[error("the effect `{effect}` cannot have the value `{value}`; it wants {wanted}")]
    WrongValue {
        /// The effect.
        effect: String,
        /// Its value; empty if it has none.
        value: String,
        /// What it wants.
        wanted: &'static str,
    },
    /// `retry-after` without an error to put it on.
    #[error("`retry-after` needs `status` beside it")]
    RetryAfterWithoutStatus,
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let mut fault = Self::default();
        let mut status = None;
        let mut retry_after = None;
        for effect in text.split(',').map(str::trim).filter(|effect| !effect.is_empty()) {
            let effect = Effect::parse(effect);
            match effect.name {
                "hang" => fault.hang = Duration::from_millis(effect.number()?),
                "status" => status = Some(effect.status()?),
                "retry-after" => retry_after = Some(effect.number()?),
                "reset" => fault.break_off = Some(effect.bare(BreakOff::ResetBeforeHeaders)?),
                "reset-after" => fault.break_off = Some(BreakOff::ResetAfter(effect.number()?)),
                "truncate" => fault.break_off = Some(BreakOff::TruncateAfter(effect.number()?)),
                "slow" => fault.slow = Duration::from_millis(effect.number()?),
                "no-done" => fault.done = effect.bare(DoneMark::Omit)?,
                "no-usage" => fault.usage = effect.bare(UsageReport::Omit)?,
                "null-usage" => fault.usage = effect.bare(UsageReport::Nullify)?,
                "negative-usage" => fault.usage = effect.bare(UsageReport::Negate)?,
                "huge-usage" => fault.usage = effect.bare(UsageReport::Inflate)?,
                "usage-twice" => fault.usage = effect.bare(UsageReport::Repeat)?,
                "error-after" => fault.error_after = Some(effect.number()?),
                "endless" => fault.endless = Some(Duration::from_millis(effect.number()?)),
                "long-length" => fault.length = LengthClaim::Over(effect.number()?),
                "short-length" => fault.length = LengthClaim::Under(effect.number()?),
                "big" => fault.padding_bytes = effect.number()?,
                "gzip" => fault.coding = effect.bare(Coding::Gzip)?,
                "garbage" => fault.framing.interlude = effect.bare(Interlude::Garbage)?,
                "comments" => fault.framing.interlude = effect.bare(Interlude::Comments)?,
                "split" => fault.framing.piece_bytes = Some(effect.number()?),
                "no-space" => fault.framing.gap = effect.bare(Gap::Nothing)?,
                "crlf" => fault.framing.line_end = effect.bare(LineEnd::CrLf)?,
                "cr" => fault.framing.line_end = effect.bare(LineEnd::Cr)?,
                "mixed" => fault.framing.line_end = effect.bare(LineEnd::Mixed)?,
                "bom" => fault.framing.beginning = effect.bare(Beginning::ByteOrderMark)?,
                "multi-line" => fault.framing.layout = effect.bare(Layout::ManyLines)?,
                unknown => return Err(FaultError::UnknownEffect(unknown.to_owned())),
            }
        }
        fault.refusal = match (status, retry_after) {
            (Some(status), retry_after) => Some(Refusal { status, retry_after }),
            (None, Some(_)) => return Err(FaultError::RetryAfterWithoutStatus),
            (None, None) => None,
        };
        Ok(fault)
    }
}

/// How long an armed fault lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultSpan {
    /// For the next so many exchanges.
    Exchanges(u64),
    /// Until it is cleared or another takes its place.
    UntilCleared,
}

/// The fault that waits for the exchanges to come.
#[derive(Debug, Default)]
pub(crate) struct ArmedFault(Mutex<Option<(Fault, FaultSpan)>>);

impl ArmedFault {
    pub(crate) fn arm(&self, fault: Fault, span: FaultSpan) {
        *self.lock() = Some((fault, span));
    }

    pub(crate) fn clear(&self) {
        *self.lock() = None;
    }

    /// The fault of the exchange that asks, counted off.
    pub(crate) fn take(&self) -> Fault {
        let mut armed = self.lock();
        match armed.as_mut() {
            Some((fault, FaultSpan::UntilCleared)) => fault.clone(),
            Some((fault, FaultSpan::Exchanges(left))) if *left > 0 => {
                *left -= 1;
                fault.clone()
            }
            Some(_) | None => Fault::default(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<(Fault, FaultSpan)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One effect as written.
struct Effect<'a> {
    name: &'a str,
    value: Option<&'a str>,
}

impl<'a> Effect<'a> {
    fn parse(text: &'a str) -> Self {
        match text.split_once('=') {
            Some((name, value)) => Self { name: name.trim(), value: Some(value.trim()) },
            None => Self { name: text, value: None },
        }
    }

    fn number<N: FromStr>(&self) -> Result<N, FaultError> {
        self.value.and_then(|value| value.parse().ok()).ok_or_else(|| self.wants("a number"))
    }

    fn status(&self) -> Result<u16, FaultError> {
        let status = self.number()?;
        if !(400..600).contains(&status) {
            return Err(self.wants("an error status, 400 to 599"));
        }
        Ok(status)
    }

    /// `outcome`, if the effect has no value.
    fn bare<T>(&self, outcome: T) -> Result<T, FaultError> {
        match self.value {
            None => Ok(outcome),
            Some(_) => Err(self.wants("none")),
        }
    }

    fn wants(&self, wanted: &'static str) -> FaultError {
        FaultError::WrongValue {
            effect: self.name.to_owned(),
            value: self.value.unwrap_or_default().to_owned(),
            wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_combined_with_commas() {
        let fault: Fault = "status=503, retry-after=2,hang=50, crlf".parse().unwrap();
        assert_eq!(fault.refusal, Some(Refusal { status: 503, retry_after: Some(2) }));
        assert_eq!(fault.hang, Duration::from_millis(50));
        assert_eq!(fault.framing.line_end, LineEnd::CrLf);
        assert_eq!(fault.break_off, None);
    }

    #[test]
    fn an_empty_text_is_no_fault() {
        assert_eq!("".parse(), Ok(Fault::default()));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = |text: &str| text.parse::<Fault>().unwrap_err();
        assert_eq!(error("gzip,explode"), FaultError::UnknownEffect("explode".to_owned()));
        assert_eq!(error("retry-after=1"), FaultError::RetryAfterWithoutStatus);
        for text in ["status=200", "status=teapot", "reset-after", "reset=1", "split=0", "hang=-1"] {
            let effect = text.split('=').next().unwrap();
            assert!(matches!(error(text), FaultError::WrongValue { effect: named, .. } if named == effect), "{text}");
        }
    }

    #[test]
    fn an_armed_fault_lasts_for_its_exchanges_and_no_longer() {
        let gzip: Fault = "gzip".parse().unwrap();
        let armed = ArmedFault::default();
        armed.arm(gzip.clone(), FaultSpan::Exchanges(2));
        assert_eq!([armed.take(), armed.take(), armed.take()], [gzip.clone(), gzip, Fault::default()]);
    }

    #[test]
    fn a_fault_armed_until_cleared_ends_when_cleared() {
        let gzip: Fault = "gzip".parse().unwrap();
        let armed = ArmedFault::default();
        armed.arm(gzip.clone(), FaultSpan::UntilCleared);
        assert_eq!([armed.take(), armed.take()], [gzip.clone(), gzip]);
        armed.clear();
        assert_eq!(armed.take(), Fault::default());
    }
}
