//! In which time a limit counts: a length, how it moves, and the calendar of a place.

use std::time::Duration;

use jiff::tz::TimeZone;

use crate::config::fields::{Fields, FromNode, Log, closest, describe, quote};
use crate::config::node::Node;
use crate::config::value::{Located, one_of, parse_duration};
use crate::limit::{Calendar, Period, Window};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);
/// A leap year: longer budgets are contracts, not windows.
const MAX: Duration = Duration::from_secs(366 * 24 * 3_600);
/// The longest that slides: what it counts of the time before is a guess that gets worse with the length.
const MAX_SLIDING: Duration = HOUR;

/// Reads `window`, which must be there, `windowType` and `timeZone`.
pub(in crate::config) fn read_window(fields: &mut Fields<'_>) -> Option<Window> {
    let length: Option<Length> = fields.require("window");
    let kind: Option<Located<Kind>> = fields.take("windowType");
    let zone: Option<Zone> = fields.take("timeZone");
    let length = length?;
    if fields.has("timeZone") && length.period().is_none() {
        let message = "only an hour, a day, a week or a month begins at a time of its place";
        fields.reject("timeZone", message, "write `window: day` or another of these, or leave `timeZone` out");
        return None;
    }
    match (kind.map_or_else(|| length.default_kind(zone.is_some()), |kind| kind.value), length) {
        (Kind::Sliding, _) if fields.has("timeZone") => {
            let help = "write `windowType: fixed`, or leave `timeZone` out";
            fields.reject("timeZone", "a window that slides begins at no time of a day", help);
            None
        }
        (Kind::Sliding, Length::Exactly(length)) if length <= MAX_SLIDING => Some(Window::Sliding(length)),
        (Kind::Sliding, _) => {
            let help = "write `windowType: fixed`, or a window of at most `1h`";
            fields.reject("windowType", "a window longer than 1 h does not slide", help);
            None
        }
        // By UTC, an hour needs no calendar.
        (Kind::Fixed, Length::Exactly(length)) if zone.is_none() && length <= HOUR => Some(Window::Fixed(length)),
        (Kind::Fixed, _) => match (length.period(), length) {
            (Some(period), _) => {
                let zone = zone.map_or(TimeZone::UTC, |zone| zone.0);
                Some(Window::Calendar(Calendar { period, zone }))
            }
            (None, Length::Exactly(length)) => Some(Window::Fixed(length)),
            (None, Length::Month) => None,
        },
    }
}

/// How a window moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sliding,
    Fixed,
}

impl FromNode for Kind {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        one_of(node, log, &[("sliding", Self::Sliding), ("fixed", Self::Fixed)])
    }
}

/// How long a window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Exactly(Duration),
    Month,
}

impl Length {
    /// The calendar's period of that length.
    fn period(self) -> Option<Period> {
        match self {
            Self::Month => Some(Period::Month),
            Self::Exactly(HOUR) => Some(Period::Hour),
            Self::Exactly(DAY) => Some(Period::Day),
            Self::Exactly(WEEK) => Some(Period::Week),
            Self::Exactly(_) => None,
        }
    }

    fn default_kind(self, has_zone: bool) -> Kind {
        match self {
            Self::Exactly(length) if length <= MAX_SLIDING && !(has_zone && self.period().is_some()) => Kind::Sliding,
            Self::Exactly(_) | Self::Month => Kind::Fixed,
        }
    }
}

impl FromNode for Length {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        const WORDS: [(&str, Length); 5] = [
            ("minute", Length::Exactly(Duration::from_secs(60))),
            ("hour", Length::Exactly(HOUR)),
            ("day", Length::Exactly(DAY)),
            ("week", Length::Exactly(WEEK)),
            ("month", Length::Month),
        ];
        let text = node.text().map_or("", |text| &**text);
        if let Some((_, length)) = WORDS.into_iter().find(|(word, _)| *word == text) {
            return Some(length);
        }
        let Some(length) = parse_duration(text) else {
            let help = match closest(text, WORDS.into_iter().map(|(word, _)| word)) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => "write a number and a unit (`90s`, `1m`, `1h`, `1d`, `1w`), or `minute`, `hour`, `day`, `week`, `month`"
                    .to_owned(),
            };
            return log.fail(node, format!("expected a length of time, found {}", describe(node)), help);
        };
        // Counters are kept for whole seconds at least.
        if length < Duration::from_secs(1) || length > MAX {
            return log.fail(node, "a window has from 1 second to 366 days", "write one like `1m`, `1h` or `1d`");
        }
        Some(Self::Exactly(length))
    }
}

/// A place's time, by its IANA name.
#[derive(Debug, Clone)]
struct Zone(TimeZone);

impl FromNode for Zone {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let name = std::sync::Arc::<str>::from_node(node, log)?;
        if let Ok(zone) = TimeZone::get(&name) {
            return Some(Self(zone));
        }
        let known: Vec<String> = jiff::tz::db().available().map(|name| name.as_str().to_owned()).collect();
        let help = match closest(&name, known.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "write a name of the IANA database, like `Europe/Berlin`, `America/New_York` or `UTC`".to_owned(),
        };
        log.fail(node, format!("there is no time zone {}", quote(&name)), help)
    }
}
