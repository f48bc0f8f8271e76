//! The values that fields have: text, numbers, durations, times, names, references, choices.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use super::diagnostic::Location;
use super::fields::{Fields, FromNode, Log, closest, describe, quote};
use super::model::ObjectName;
use super::node::{Node, Value};

/// Text, but not so long that it would not fit a header or a message.
pub(super) fn text_of_at_most(node: &Node, log: &mut Log, max_bytes: usize) -> Option<Arc<str>> {
    let text = Arc::<str>::from_node(node, log)?;
    if text.len() <= max_bytes {
        return Some(text);
    }
    log.fail(node, format!("it has {} bytes", text.len()), format!("write at most {max_bytes}"))
}

/// A text of at most this many bytes that can stand in a header as it is.
pub(super) fn header_value(node: &Node, log: &mut Log, max_bytes: usize) -> Option<Arc<str>> {
    let text = text_of_at_most(node, log, max_bytes)?;
    if text.trim() == &*text && !text.chars().any(char::is_control) {
        return Some(text);
    }
    log.fail(node, "it has control characters, or a space at its ends", "write it on one line, like `acme`")
}

/// A path in the place of `/v1`: written with a slash before and after it or without, kept with one before it, and empty for
/// the root.
pub(super) fn path_prefix(node: &Node, log: &mut Log) -> Option<Arc<str>> {
    const MAX_BYTES: usize = 1024;
    let text = text_of_at_most(node, log, MAX_BYTES)?;
    let path = text.trim_matches('/');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    let is_segment = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(is_plain);
    match path {
        "" => Some(Arc::from("")),
        path if path.split('/').all(is_segment) => Some(Arc::from(format!("/{path}"))),
        _ => log.fail(
            node,
            format!("{} is no path", quote(&text)),
            "write letters, digits or -._~ between slashes, such as `/v1beta/openai`",
        ),
    }
}

/// The name of a label as Kubernetes takes it: `tier` or `example.com/tier`.
pub(super) fn is_label_name(name: &str) -> bool {
    let (prefix, name) = name.rsplit_once('/').map_or((None, name), |(prefix, name)| (Some(prefix), name));
    let bytes = name.as_bytes();
    prefix.is_none_or(is_dns_name)
        && bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// A value and where it stands, for what is checked against other objects later.
#[derive(Debug, Clone)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) location: Location,
}

impl<T: FromNode> FromNode for Located<T> {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        Some(Self { value: T::from_node(node, log)?, location: log.location(node) })
    }
}

/// All of the items are read, so that all that are wrong are reported.
impl<T: FromNode> FromNode for Vec<T> {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let Value::Sequence(items) = &node.value else {
            return log.fail(
                node,
                format!("expected a list, found {}", describe(node)),
                "write it as `[...]` or as `- ` lines",
            );
        };
        let read: Vec<_> = items.iter().map(|item| T::from_node(item, log)).collect();
        read.into_iter().collect()
    }
}

/// Text, never empty.
impl FromNode for Arc<str> {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        match &node.value {
            Value::Quoted(text) | Value::Plain(text) if text.is_empty() => {
                log.fail(node, "must not be empty", "write a text, or leave the field out")
            }
            Value::Quoted(text) => Some(Arc::clone(text)),
            Value::Plain(text) if is_text(text) => Some(Arc::clone(text)),
            _ => {
                let help =
                    node.text().map_or("write one text here".to_owned(), |text| format!("write \"{text}\" in quotes"));
                log.fail(node, format!("expected text, found {}", describe(node)), help)
            }
        }
    }
}

impl FromNode for bool {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        match &node.value {
            Value::Plain(text) if &**text == "true" => Some(true),
            Value::Plain(text) if &**text == "false" => Some(false),
            _ => log.fail(
                node,
                format!("expected `true` or `false`, found {}", describe(node)),
                "write one of them, without quotes",
            ),
        }
    }
}

impl FromNode for u32 {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        number(node, log, 0, Self::MAX)
    }
}

/// A TCP port that something can listen on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port(pub(super) u16);

impl FromNode for Port {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        number(node, log, 1, u16::MAX).map(Self)
    }
}

/// A whole number between two bounds.
pub(super) fn number<T: FromStr + PartialOrd + Display>(node: &Node, log: &mut Log, min: T, max: T) -> Option<T> {
    let found = match &node.value {
        Value::Plain(text) => text.parse().ok().filter(|number| (&min..=&max).contains(&number)),
        _ => None,
    };
    found.or_else(|| {
        let help = match &node.value {
            Value::Quoted(text) if text.parse::<T>().is_ok() => "write it without quotes",
            _ => "write a number in that range, in digits only",
        };
        log.fail(node, format!("expected a whole number from {min} to {max}, found {}", describe(node)), help)
    })
}

/// A number with a fraction, between two bounds.
pub(super) fn decimal(node: &Node, log: &mut Log, min: f64, max: f64) -> Option<f64> {
    // Not what Rust takes besides: `inf`, `NaN`, `1e3`.
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let parse = |text: &str| text.parse::<f64>().ok().filter(|_| is_plain(text));
    let found = match &node.value {
        Value::Plain(text) => parse(text).filter(|number| (min..=max).contains(number)),
        _ => None,
    };
    found.or_else(|| {
        let help = match &node.value {
            Value::Quoted(text) if parse(text).is_some() => "write it without quotes",
            _ => "write a number in that range, like `3` or `0.5`",
        };
        log.fail(node, format!("expected a number from {min} to {max}, found {}", describe(node)), help)
    })
}

/// A number of bytes as a Kubernetes quantity: `64Mi`, `1Gi`, `500M`, `67108864`.
pub(super) fn byte_quantity(node: &Node, log: &mut Log, bounds: RangeInclusive<u64>) -> Option<u64> {
    let found = node.text().and_then(|text| parse_bytes(text));
    found.filter(|bytes| bounds.contains(bytes)).or_else(|| {
        let (min, max) = (shown_bytes(*bounds.start()), shown_bytes(*bounds.end()));
        // `MB` and `MiB` are what people write elsewhere.
        let unit =
            node.text().and_then(|text| text.strip_suffix(['B', 'b']).filter(|text| parse_bytes(text).is_some()));
        let help = match unit {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "write a number and a unit: `512Ki`, `64Mi`, `1Gi`".to_owned(),
        };
        log.fail(node, format!("expected a quantity of bytes from {min} to {max}, found {}", describe(node)), help)
    })
}

pub(super) fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor: u64 = match unit {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn shown_bytes(bytes: u64) -> String {
    match bytes {
        bytes if bytes > 0 && bytes % (1 << 30) == 0 => format!("{}Gi", bytes >> 30),
        bytes if bytes > 0 && bytes % (1 << 20) == 0 => format!("{}Mi", bytes >> 20),
        bytes => bytes.to_string(),
    }
}

/// One of several words.
pub(super) fn one_of<T: Clone>(node: &Node, log: &mut Log, choices: &[(&str, T)]) -> Option<T> {
    let text = node.text().map_or("", |text| &**text);
    choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| choice.clone()).or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let expected = match words.split_last() {
            Some((last, others)) if !others.is_empty() => format!("`{}` or `{last}`", others.join("`, `")),
            _ => format!("`{}`", words.concat()),
        };
        let help = match closest(text, words.iter().copied()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("write {expected}"),
        };
        log.fail(node, format!("expected {expected}, found {}", describe(node)), help)
    })
}

/// A Gateway API duration (GEP-2257: `1h30m`, `500ms`), and days and weeks.
impl FromNode for Duration {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let help = "write a number and a unit: `500ms`, `30s`, `1m`, `1h30m`, `7d`";
        node.text()
            .and_then(|text| parse_duration(text))
            .or_else(|| log.fail(node, format!("expected a duration, found {}", describe(node)), help))
    }
}

pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let (digits, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        let milliseconds: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            _ => return None,
        };
        let part = digits.parse::<u64>().ok()?.checked_mul(milliseconds)?;
        total = total.checked_add(Duration::from_millis(part))?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

/// A moment in RFC 3339, in seconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timestamp(pub(super) u64);

impl FromNode for Timestamp {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        node.text().and_then(|text| parse_timestamp(text)).map(Self).or_else(|| {
            let message = format!("expected a time after 1970 in RFC 3339, found {}", describe(node));
            log.fail(node, message, "write it like `2024-05-21T10:00:00Z`")
        })
    }
}

fn parse_timestamp(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let [year, month, day] = digits(date, '-', [4, 2, 2])?;
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone_at);
    let clock = match clock.split_once('.') {
        Some((clock, fraction)) if !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit()) => clock,
        Some(_) => return None,
        None => clock,
    };
    let [hour, minute, second] = digits(clock, ':', [2, 2, 2])?;
    let offset = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign, zone) => {
            let [hours, minutes] = digits(zone, ':', [2, 2])?;
            let seconds = (hours * 60 + minutes) * 60;
            if hours > 23 || minutes > 59 {
                return None;
            }
            if sign == "-" { -seconds } else { seconds }
        }
    };
    // 60 is a leap second.
    if !(1..=days_in_month(year, month)?).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second - offset;
    u64::try_from(seconds).ok()
}

/// Exactly `N` numbers of these many digits each.
fn digits<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts.next().filter(|part| part.len() == width && part.bytes().all(|b| b.is_ascii_digit()))?;
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

fn days_in_month(year: i64, month: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => Some(31),
        4 | 6 | 9 | 11 => Some(30),
        2 => Some(if leap { 29 } else { 28 }),
        _ => None,
    }
}

/// Howard Hinnant's `days_from_civil` for years from 0 on: years begin in March, so that the leap day ends one.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// The name of an object or a namespace. Ours stand in headers and in `namespace/name` pairs, so what is not a DNS subdomain
/// (RFC 1123), which Kubernetes would refuse too, is refused here.
#[derive(Debug, Clone)]
pub(super) struct DnsName(pub(super) Arc<str>);

impl FromNode for DnsName {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let name = Arc::<str>::from_node(node, log)?;
        if is_dns_name(&name) {
            return Some(Self(name));
        }
        let help = "use lower-case letters, digits, `-` and `.`, at most 253 of them, a letter or digit first and last";
        log.fail(node, format!("{} is not a name that Kubernetes takes", quote(&name)), help)
    }
}

/// The name of a namespace: a label (RFC 1123), so without dots and shorter than other names.
#[derive(Debug, Clone)]
pub(super) struct Namespace(pub(super) Arc<str>);

impl FromNode for Namespace {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        const MAX_BYTES: usize = 63;
        let DnsName(name) = DnsName::from_node(node, log)?;
        if name.len() <= MAX_BYTES && !name.contains('.') {
            return Some(Self(name));
        }
        let help = format!("use at most {MAX_BYTES} lower-case letters, digits and `-`");
        log.fail(node, format!("{} is not a namespace that Kubernetes takes", quote(&name)), help)
    }
}

pub(super) fn is_dns_name(name: &str) -> bool {
    let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    bytes.len() <= 253
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|b| alphanumeric(b) || matches!(b, b'-' | b'.'))
}

/// The name of a header, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeaderName(pub(super) Arc<str>);

impl HeaderName {
    pub(super) fn parse(text: &str) -> Option<Self> {
        http::HeaderName::from_bytes(text.as_bytes()).ok().map(|name| Self(Arc::from(name.as_str())))
    }
}

impl FromNode for HeaderName {
    fn from_node(node: &Node, log: &mut Log) -> Option<Self> {
        let name = Arc::<str>::from_node(node, log)?;
        Self::parse(&name)
            .or_else(|| log.fail(node, format!("{} is not a header name", quote(&name)), "write one like `x-team`"))
    }
}

/// Another object, of a kind that the place of the reference says.
#[derive(Debug, Clone)]
pub(super) struct Reference {
    pub(super) namespace: Option<Arc<str>>,
    pub(super) name: Arc<str>,
    pub(super) location: Location,
}

impl Reference {
    /// Reads `name` and `namespace` of a mapping that may have more to it.
    pub(super) fn from_fields(fields: &mut Fields<'_>) -> Option<Self> {
        let name: Option<DnsName> = fields.require("name");
        let namespace: Option<Namespace> = fields.take("namespace");
        let location = fields.location("name");
        Some(Self { name: name?.0, namespace: namespace.map(|namespace| namespace.0), location })
    }

    /// Reads the `name` of an object in the referrer's own namespace.
    pub(super) fn local_from_fields(fields: &mut Fields<'_>) -> Option<Self> {
        let name: Located<DnsName> = fields.require("name")?;
        Some(Self { namespace: None, name: name.value.0, location: name.location })
    }

    /// What an object of this name refers to.
    pub(super) fn seen_from(&self, referrer: &ObjectName) -> ObjectName {
        let namespace = self.namespace.as_ref().unwrap_or(&referrer.namespace);
        ObjectName { namespace: Arc::clone(namespace), name: Arc::clone(&self.name) }
    }
}

/// What a plain scalar is by the YAML 1.2 core schema: text, or else a number, a boolean or null.
fn is_text(text: &str) -> bool {
    let keyword = ["true", "True", "TRUE", "false", "False", "FALSE", "null", "Null", "NULL", "~"].contains(&text);
    // Rust's float grammar is the core schema's but for the words, which start with no digit or sign here.
    let numeric =
        text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.')) && text.parse::<f64>().is_ok();
    !keyword && !numeric
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_sums_of_numbers_with_units() {
        assert_eq!(parse_duration("1h30m"), Some(Duration::from_secs(5_400)));
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("7d"), Some(Duration::from_secs(604_800)));
        assert_eq!(parse_duration("1w1d"), Some(Duration::from_secs(691_200)));
        assert_eq!(parse_duration("0s"), Some(Duration::ZERO));
        for wrong in ["", "60", "s", "1.5s", "-1s", "1 s", "1y", "99999999999999999999s", "213503982334602d"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn bytes_are_a_number_with_a_unit_as_kubernetes_writes_them() {
        for (text, bytes) in [("64Mi", 64 << 20), ("1Gi", 1 << 30), ("512Ki", 512 << 10), ("2M", 2_000_000), ("7", 7)] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for wrong in ["", "Mi", "1.5Gi", "-1", "1 Mi", "64MiB", "1mi", "99999999999Gi", "1e6"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
        assert_eq!(
            (shown_bytes(1 << 20), shown_bytes(4 << 30), shown_bytes(5)),
            ("1Mi".into(), "4Gi".into(), "5".into())
        );
    }

    #[test]
    fn times_count_seconds_since_1970_in_utc() {
        assert_eq!(parse_timestamp("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_timestamp("2024-05-21T10:00:00Z"), Some(1_716_285_600));
        assert_eq!(parse_timestamp("2024-02-29T23:59:59.999+01:00"), Some(1_709_247_599));
        assert_eq!(parse_timestamp("2000-03-01T00:00:00-00:30"), Some(951_870_600));
        for wrong in [
            "2024-05-21",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "2024-05-21T10:00:00",
        ] {
            assert_eq!(parse_timestamp(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn text_that_yaml_reads_as_something_else_is_not_text() {
        for text in ["gpt-4", "4o", "1.2.3", "e5", "yes", "infinity", "0x"] {
            assert!(is_text(text), "{text}");
        }
        for other in ["true", "null", "~", "4", "-1", "4.5", "1e3", ".5", "-.5"] {
            assert!(!is_text(other), "{other}");
        }
    }
}
