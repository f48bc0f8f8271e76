//! Numbers and booleans as the laxest servers read them: pydantic without its strict mode (vLLM, SGLang), which takes whole
//! floats and texts for counts, and ones and words for booleans.
//!
//! What no two servers read alike (`50.5`, which nlohmann's JSON truncates and others refuse) is nothing here: such a request is refused.

use std::borrow::Cow;

use crate::json::{JsonError, Scanner, ValueKind};

/// A count, and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// `null`, or a negative number: no bound for those who take one.
    None,
    /// A number that all servers read.
    Plain(u64),
    /// A number that some servers read, and others leave for their default.
    Lax(u64),
}

impl Count {
    /// The number, if there is one.
    pub(crate) fn number(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Plain(number) | Self::Lax(number) => Some(number),
        }
    }

    /// Reads the value that comes next; the inner `None` is one that is no count.
    pub(super) fn scan(scanner: &mut Scanner<'_>) -> Result<Option<Self>, JsonError> {
        Ok(match Value::scan(scanner)? {
            Value::Null => Some(Self::None),
            Value::Boolean(value) => Some(Self::Lax(u64::from(value))),
            Value::Number(text) => Self::of_number(text),
            Value::Text(text) => Self::of_text(&text),
            Value::Other => None,
        })
    }

    fn of_number(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        if digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(Self::of_digits(digits, digits.len() < text.len(), Self::Plain));
        }
        let value: f64 = text.parse().ok()?;
        match value {
            value if value < 0.0 => Some(Self::None),
            // Saturates.
            value if value.fract() == 0.0 || value.is_infinite() => Some(Self::Lax(value as u64)),
            _ => None,
        }
    }

    /// Pydantic's `clean_int_str`: white space around, a sign, zeros before, underscores between digits and zeros as decimals are
    /// allowed.
    pub(crate) fn of_text(text: &str) -> Option<Self> {
        let text = text.trim();
        let (number, is_negative) = match text.strip_prefix('-') {
            Some(number) => (number, true),
            None => (text.strip_prefix('+').unwrap_or(text), false),
        };
        let (digits, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let is_whole = !decimals.is_empty() && decimals.bytes().all(|byte| byte == b'0');
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
            && digits.starts_with(|first: char| first.is_ascii_digit())
            && !digits.ends_with('_');
        (is_whole && is_number).then(|| Self::of_digits(&digits.replace('_', ""), is_negative, Self::Lax))
    }

    fn of_digits(digits: &str, is_negative: bool, written: fn(u64) -> Self) -> Self {
        // The digits are digits: what does not parse is too large.
        match digits.parse().unwrap_or(u64::MAX) {
            1.. if is_negative => Self::None,
            number => written(number),
        }
    }
}

/// A boolean, and how it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Switch {
    /// `null`.
    None,
    /// `true` or `false`.
    Plain(bool),
    /// A number or a word that some servers read so.
    Lax(bool),
}

impl Switch {
    /// Whether it is on, as far as anybody reads it.
    pub(crate) fn is_on(self) -> bool {
        matches!(self, Self::Plain(true) | Self::Lax(true))
    }

    /// Reads the value that comes next; the inner `None` is one that is no boolean.
    pub(super) fn scan(scanner: &mut Scanner<'_>) -> Result<Option<Self>, JsonError> {
        Ok(match Value::scan(scanner)? {
            Value::Null => Some(Self::None),
            Value::Boolean(value) => Some(Self::Plain(value)),
            Value::Number(text) => match text.parse::<f64>() {
                Ok(0.0) => Some(Self::Lax(false)),
                Ok(1.0) => Some(Self::Lax(true)),
                _ => None,
            },
            Value::Text(text) => Self::of_word(text.as_bytes()),
            Value::Other => None,
        })
    }

    /// The words that pydantic knows, in any case.
    pub(crate) fn of_word(word: &[u8]) -> Option<Self> {
        let is_one_of = |words: [&str; 6]| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
        if is_one_of(["true", "1", "t", "yes", "y", "on"]) {
            return Some(Self::Lax(true));
        }
        is_one_of(["false", "0", "f", "no", "n", "off"]).then_some(Self::Lax(false))
    }
}

/// A value, as far as it can be a number or a boolean.
enum Value<'a> {
    Null,
    Boolean(bool),
    Number(&'a str),
    Text(Cow<'a, str>),
    Other,
}

impl<'a> Value<'a> {
    fn scan(scanner: &mut Scanner<'a>) -> Result<Self, JsonError> {
        let bytes = scanner.bytes();
        let kind = scanner.peek()?;
        if kind == ValueKind::String {
            let text = scanner.string()?;
            // No number and no word is as long as that.
            const LONGEST_BYTES: usize = 4096;
            if text.span.len() > LONGEST_BYTES {
                return Ok(Self::Other);
            }
            return Ok(match text.text(bytes) {
                Cow::Borrowed(text) => str::from_utf8(text).map_or(Self::Other, |text| Self::Text(text.into())),
                Cow::Owned(text) => String::from_utf8(text).map_or(Self::Other, |text| Self::Text(text.into())),
            });
        }
        let text = str::from_utf8(bytes.get(scanner.skip()?).unwrap_or_default()).unwrap_or_default();
        Ok(match kind {
            ValueKind::Null => Self::Null,
            ValueKind::Boolean => Self::Boolean(text == "true"),
            ValueKind::Number => Self::Number(text),
            ValueKind::String | ValueKind::Object | ValueKind::Array => Self::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(value: &str) -> Option<Count> {
        Count::scan(&mut Scanner::new(value.as_bytes())).unwrap()
    }

    fn switch(value: &str) -> Option<Switch> {
        Switch::scan(&mut Scanner::new(value.as_bytes())).unwrap()
    }

    #[test]
    fn a_count_is_what_the_laxest_server_reads() {
        for (value, number) in [("0", 0), ("64", 64), ("-0", 0), ("18446744073709551615", u64::MAX)] {
            assert_eq!(count(value), Some(Count::Plain(number)), "{value}");
        }
        assert_eq!(count("18446744073709551616"), Some(Count::Plain(u64::MAX)));
        for (value, number) in [
            ("64.0", 64),
            ("6.4e1", 64),
            ("1E+3", 1000),
            ("-0.0", 0),
            ("1e400", u64::MAX),
            ("true", 1),
            ("false", 0),
            (r#""64""#, 64),
            (r#"" +64\n""#, 64),
            (r#""\u0036\u0034""#, 64),
            ("\"\u{2003}64\u{a0}\"", 64),
            (r#""0064""#, 64),
            (r#""64.00""#, 64),
            (r#""1_000""#, 1000),
            (r#""-0""#, 0),
            (r#""99999999999999999999""#, u64::MAX),
        ] {
            assert_eq!(count(value), Some(Count::Lax(number)), "{value}");
        }
        for value in ["null", "-1", "-1.5", "-1e400", r#""-1""#, r#"" -1_0.0 ""#] {
            assert_eq!(count(value), Some(Count::None), "{value}");
        }
        for value in [
            "50.5",
            "1e-1",
            "{}",
            "[64]",
            r#""""#,
            r#"" ""#,
            r#""64.""#,
            r#"".0""#,
            r#""6.4e1""#,
            r#""_64""#,
            r#""64_""#,
            r#""+-64""#,
            r#""0x40""#,
            r#""64 tokens""#,
            r#""NaN""#,
            "\"\u{ff16}\u{ff14}\"",
        ] {
            assert_eq!(count(value), None, "{value}");
        }
        assert_eq!(count(&format!("\"{}\"", "0".repeat(5000))), None);
    }

    #[test]
    fn a_switch_is_what_the_laxest_server_reads() {
        assert_eq!((switch("true"), switch("false")), (Some(Switch::Plain(true)), Some(Switch::Plain(false))));
        assert_eq!(switch("null"), Some(Switch::None));
        for word in ["1", "1.0", "10e-1", r#""true""#, r#""TRUE""#, r#""1""#, r#""On""#, r#""yes""#, r#""t""#, r#""Y""#]
        {
            assert_eq!(switch(word), Some(Switch::Lax(true)), "{word}");
        }
        for word in ["0", "-0", "0.0", r#""false""#, r#""0""#, r#""oFF""#, r#""no""#, r#""f""#, r#""N""#, r#""\u0030""#]
        {
            assert_eq!(switch(word), Some(Switch::Lax(false)), "{word}");
        }
        for word in ["2", "-1", "0.5", "{}", "[]", r#""""#, r#"" true ""#, r#""maybe""#, r#""1.0""#] {
            assert_eq!(switch(word), None, "{word}");
        }
    }
}
