//! Which stretch of time a limit counts in: equal lengths from the epoch, a counter that slides, or the calendar of a place.
//!
//! Pure: the time comes in, the bucket goes out. Redis has a clock of its own; it is sent the buckets around the sidecar's time
//! ([`Calendar::around`]) where it cannot compute them itself.

use std::fmt;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// The time in which a limit is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Window {
    /// Equal lengths from the epoch on. What was used in the last one counts with the share of it that lies within one length
    /// from now: no jump where one ends, and no burst of twice the limit around it.
    Sliding(Duration),
    /// Equal lengths from the epoch on, each counted for itself.
    Fixed(Duration),
    /// Periods of a calendar, each counted for itself.
    Calendar(Calendar),
}

impl Window {
    /// The bucket that holds `now_ms`, in milliseconds since the epoch.
    pub fn bucket(&self, now_ms: u64) -> Bucket {
        match self {
            Self::Sliding(length) | Self::Fixed(length) => {
                let length = clamped_ms(*length);
                let index = now_ms / length;
                Bucket { index, start_ms: index * length, end_ms: (index + 1).saturating_mul(length) }
            }
            Self::Calendar(calendar) => calendar.bucket(now_ms),
        }
    }

    /// The length of its longest bucket.
    pub fn longest(&self) -> Duration {
        match self {
            Self::Sliding(length) | Self::Fixed(length) => Duration::from_millis(clamped_ms(*length)),
            Self::Calendar(calendar) => calendar.period.longest(),
        }
    }

    /// Whether the bucket before the current one counts.
    pub fn slides(&self) -> bool {
        matches!(self, Self::Sliding(_))
    }
}

/// Names the window within a counter's name: a limit whose window is changed starts anew.
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sliding(length) => write!(f, "s{}", clamped_ms(*length)),
            Self::Fixed(length) => write!(f, "f{}", clamped_ms(*length)),
            Self::Calendar(Calendar { period, zone }) => {
                write!(f, "{}@{}", period.name(), zone.iana_name().unwrap_or("UTC"))
            }
        }
    }
}

/// At least a second and at most about 35 years: a bucket's index fits 32 bits and its end a double.
fn clamped_ms(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX).clamp(1_000, 1 << 40)
}

/// Periods as people in one place count them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Calendar {
    /// Which.
    pub period: Period,
    /// Where.
    pub zone: TimeZone,
}

/// A calendar's period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Period {
    /// From one full hour to the next.
    Hour,
    /// From midnight to midnight: 23 or 25 hours where the clock is turned.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

impl Period {
    /// What it is called in a sentence and in a counter's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// A clock that is turned adds an hour, in one place of the world half an hour.
    fn longest(self) -> Duration {
        const HOUR: u64 = 3_600;
        Duration::from_secs(match self {
            Self::Hour => HOUR,
            Self::Day => 25 * HOUR,
            Self::Week => (7 * 24 + 1) * HOUR,
            Self::Month => (31 * 24 + 1) * HOUR,
        })
    }
}

impl Calendar {
    /// The period that holds `now_ms`.
    pub fn bucket(&self, now_ms: u64) -> Bucket {
        const HOUR_MS: u64 = 3_600_000;
        let now = i64::try_from(now_ms).ok().and_then(|now| Timestamp::from_millisecond(now).ok());
        let zoned = now.unwrap_or(Timestamp::MAX).to_zoned_datetime(self.zone.clone());
        if self.period == Period::Hour {
            // Not by the civil hour: where the clock is turned back, one of them comes twice.
            let offset_ms = i64::from(zoned.offset().seconds()) * 1_000;
            let into = u64::try_from((zoned.timestamp().as_millisecond() + offset_ms).rem_euclid(HOUR_MS as i64));
            let start_ms = now_ms.saturating_sub(into.unwrap_or_default());
            return Bucket { index: start_ms / HOUR_MS, start_ms, end_ms: start_ms + HOUR_MS };
        }
        let (first, next) = self.period.around(zoned.date());
        Bucket { index: self.period.index(first), start_ms: self.midnight_ms(first), end_ms: self.midnight_ms(next) }
    }

    /// The period before the one that holds `now_ms`, that one, and the next.
    pub fn around(&self, now_ms: u64) -> [Bucket; 3] {
        let current = self.bucket(now_ms);
        [self.bucket(current.start_ms.saturating_sub(1)), current, self.bucket(current.end_ms)]
    }

    fn midnight_ms(&self, date: Date) -> u64 {
        let start = date.to_zoned_datetime(self.zone.clone()).map(|midnight| midnight.timestamp().as_millisecond());
        start.ok().and_then(|ms| u64::try_from(ms).ok()).unwrap_or_default()
    }
}

impl Period {
    /// The first days of the period that `date` lies in, and of the one after it.
    fn around(self, date: Date) -> (Date, Date) {
        match self {
            Self::Hour | Self::Day => (date, date.saturating_add(1.day())),
            Self::Week => {
                let monday = date.saturating_sub(i64::from(date.weekday().to_monday_zero_offset()).days());
                (monday, monday.saturating_add(7.days()))
            }
            Self::Month => (date.first_of_month(), date.last_of_month().saturating_add(1.day())),
        }
    }

    /// How many of them lie between 1970 and the one that begins with `first`.
    fn index(self, first: Date) -> u64 {
        let days = || first.since(Date::constant(1970, 1, 1)).map_or(0, |span| i64::from(span.get_days()));
        let index = match self {
            Self::Hour | Self::Day => days(),
            // 1970 began on a Thursday.
            Self::Week => (days() + 3) / 7,
            Self::Month => (i64::from(first.year()) - 1970) * 12 + i64::from(first.month()) - 1,
        };
        u64::try_from(index).unwrap_or_default()
    }
}

/// One stretch of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// Counts up from each to the next: by one, but for hours where a clock is turned by half of one.
    pub index: u64,
    /// Its first millisecond since the epoch.
    pub start_ms: u64,
    /// The first millisecond after it.
    pub end_ms: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> u64 {
        text.parse::<Timestamp>().unwrap().as_millisecond().try_into().unwrap()
    }

    fn calendar(period: Period, zone: &str) -> Calendar {
        Calendar { period, zone: TimeZone::get(zone).unwrap() }
    }

    fn bounds(period: Period, zone: &str, now: &str) -> (String, String) {
        let Bucket { start_ms, end_ms, .. } = calendar(period, zone).bucket(at(now));
        let text = |ms: u64| Timestamp::from_millisecond(ms as i64).unwrap().to_string();
        (text(start_ms), text(end_ms))
    }

    #[test]
    fn a_day_begins_at_midnight_of_its_place_and_has_25_hours_where_the_clock_is_turned_back() {
        let bounds = |now| bounds(Period::Day, "Europe/Berlin", now);
        assert_eq!(bounds("2026-10-24T22:00:00Z"), ("2026-10-24T22:00:00Z".into(), "2026-10-25T23:00:00Z".into()));
        assert_eq!(bounds("2026-03-29T10:00:00Z"), ("2026-03-28T23:00:00Z".into(), "2026-03-29T22:00:00Z".into()));
    }

    #[test]
    fn a_week_begins_on_monday_and_a_month_on_its_first() {
        let week = bounds(Period::Week, "UTC", "2026-11-29T23:59:59Z");
        assert_eq!(week, ("2026-11-23T00:00:00Z".into(), "2026-11-30T00:00:00Z".into()));
        let month = bounds(Period::Month, "Asia/Kolkata", "2028-02-29T18:29:59Z");
        assert_eq!(month, ("2028-01-31T18:30:00Z".into(), "2028-02-29T18:30:00Z".into()));
    }

    #[test]
    fn an_hour_begins_where_its_places_clock_says() {
        let hour = bounds(Period::Hour, "Asia/Kolkata", "2026-11-30T10:10:00Z");
        assert_eq!(hour, ("2026-11-30T09:30:00Z".into(), "2026-11-30T10:30:00Z".into()));
    }

    #[test]
    fn windows_of_another_kind_length_or_place_have_other_names() {
        let zone = |zone| Window::Calendar(calendar(Period::Day, zone));
        let minute = Duration::from_secs(60);
        let names = [Window::Sliding(minute), Window::Fixed(minute), zone("Europe/Berlin"), zone("UTC")];
        assert_eq!(names.map(|window| window.to_string()), ["s60000", "f60000", "day@Europe/Berlin", "day@UTC"]);
    }

    #[test]
    fn no_place_has_a_name_that_could_end_a_part_of_a_counters_key() {
        let safe = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_+-".contains(&byte));
        let names: Vec<_> = jiff::tz::db().available().map(|name| name.to_string()).collect();
        assert!(names.len() > 100 && names.iter().all(|name| safe(name)), "{names:?}");
    }

    #[test]
    fn lengths_are_kept_to_what_a_bucket_can_count() {
        let longest = |length| Window::Fixed(length).longest();
        assert_eq!(longest(Duration::ZERO), Duration::from_secs(1));
        assert_eq!(longest(Duration::MAX), Duration::from_millis(1 << 40));
    }

    proptest! {
        #[test]
        fn buckets_follow_each_other_without_a_gap(
            now_ms in 0..at("2090-01-01T00:00:00Z"),
            period in prop::sample::select(vec![Period::Hour, Period::Day, Period::Week, Period::Month]),
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "Asia/Kolkata", "America/Sao_Paulo", "Pacific/Apia"]),
        ) {
            let calendar = calendar(period, zone);
            let [before, current, after] = calendar.around(now_ms);
            prop_assert!(current.start_ms <= now_ms && now_ms < current.end_ms);
            prop_assert_eq!(current.end_ms, after.start_ms);
            prop_assert!(before.start_ms == 0 || before.end_ms == current.start_ms);
            prop_assert!(before.index <= current.index && current.index < after.index);
            let length = Duration::from_millis(current.end_ms - current.start_ms);
            prop_assert!(length <= Window::Calendar(calendar).longest());
        }
    }
}
