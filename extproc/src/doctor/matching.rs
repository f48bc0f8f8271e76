//! The header matchers of a route, as a real Envoy 1.40 was measured to apply them: which of them a request without the header
//! passes, and which values they take.

use regex::RegexBuilder;
use serde_json::Value;

use super::json::Json;

/// One matcher.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeaderMatch<'a>(pub(super) &'a Value);

/// What is asked of a text.
enum Form<'a> {
    Exact(&'a str),
    Prefix(&'a str),
    Suffix(&'a str),
    Contains(&'a str),
    /// The whole of it (RE2).
    Regex(&'a str),
    /// What a later Envoy knows.
    Other,
}

impl<'a> HeaderMatch<'a> {
    pub(super) fn name(self) -> &'a str {
        self.0.text("name")
    }

    /// Whether a request without the header may pass. Turned round or not, what asks for a value does not match where there is
    /// none, unless the missing header counts as empty.
    pub(super) fn takes_absence(self) -> bool {
        if self.0.is_true("treat_missing_header_as_empty") {
            return self.takes("");
        }
        self.of_value().is_none() && self.wants_presence() == self.is_inverted()
    }

    /// Whether a header of this value may pass; true as well where that cannot be told.
    pub(super) fn takes(self, value: &str) -> bool {
        let ignores_case = self.0.is_true("string_match.ignore_case");
        let is_match =
            self.of_value().map_or_else(|| Some(self.wants_presence()), |form| form.takes(value, ignores_case));
        is_match.is_none_or(|is_match| is_match != self.is_inverted())
    }

    /// The beginning that every value it takes has; empty where there is none.
    pub(super) fn beginning(self) -> &'a str {
        match self.of_value() {
            Some(Form::Exact(text) | Form::Prefix(text)) if !self.is_inverted() => text,
            _ => "",
        }
    }

    fn is_inverted(self) -> bool {
        self.0.is_true("invert_match")
    }

    /// Of a matcher that asks for no value. One that says nothing asks for the header.
    fn wants_presence(self) -> bool {
        self.0.field("present_match").as_bool() != Some(false)
    }

    /// What it asks of the value, if anything.
    fn of_value(self) -> Option<Form<'a>> {
        let current = self.0.field("string_match");
        if current.is_object() {
            return Some(Form::read(|name| current.text(name)).unwrap_or(Form::Other));
        }
        // As it was written before Envoy 1.20, and is still read.
        let former = Form::read(|name| match name.split_once('.') {
            Some((form, member)) => self.0.text(&format!("{form}_match.{member}")),
            None => self.0.text(&format!("{name}_match")),
        });
        former.or_else(|| self.0.field("range_match").is_object().then_some(Form::Other))
    }
}

/// Whether a `StringMatcher` takes this text for certain.
pub(super) fn string_takes(matcher: &Value, text: &str) -> bool {
    let form = Form::read(|name| matcher.text(name));
    form.and_then(|form| form.takes(text, matcher.is_true("ignore_case"))) == Some(true)
}

impl<'a> Form<'a> {
    /// By the texts that stand under these names, which are empty where there is none.
    fn read(text: impl Fn(&str) -> &'a str) -> Option<Self> {
        let given = |name: &str| Some(text(name)).filter(|text| !text.is_empty());
        let found = given("exact").map(Self::Exact).or_else(|| given("prefix").map(Self::Prefix));
        let found = found.or_else(|| given("suffix").map(Self::Suffix));
        let found = found.or_else(|| given("contains").map(Self::Contains));
        found.or_else(|| given("safe_regex.regex").map(Self::Regex))
    }

    /// `None` where that cannot be told.
    fn takes(&self, value: &str, ignores_case: bool) -> Option<bool> {
        let folded = |text: &str| if ignores_case { text.to_ascii_lowercase() } else { text.to_owned() };
        let value_folded = folded(value);
        match self {
            Self::Exact(text) => Some(value_folded == folded(text)),
            Self::Prefix(text) => Some(value_folded.starts_with(&folded(text))),
            Self::Suffix(text) => Some(value_folded.ends_with(&folded(text))),
            Self::Contains(text) => Some(value_folded.contains(&folded(text))),
            Self::Regex(pattern) => matches_whole(pattern, value),
            Self::Other => None,
        }
    }
}

/// `None` for a pattern that is none here, or is too large.
fn matches_whole(pattern: &str, value: &str) -> Option<bool> {
    const MOST_BYTES: usize = 1 << 20;
    let regex = RegexBuilder::new(&format!("^(?:{pattern})$")).size_limit(MOST_BYTES).build().ok()?;
    Some(regex.is_match(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_form_takes_what_envoy_was_measured_to_take() {
        // Of no header, of `a` and of `c`.
        let measured = [
            (json!({}), [false, true, true]),
            (json!({"present_match": true}), [false, true, true]),
            (json!({"present_match": false}), [true, false, false]),
            (json!({"present_match": true, "invert_match": true}), [true, false, false]),
            (json!({"present_match": false, "invert_match": true}), [false, true, true]),
            (json!({"invert_match": true}), [true, false, false]),
            (json!({"present_match": true, "treat_missing_header_as_empty": true}), [true, true, true]),
            (json!({"string_match": {"exact": "a"}}), [false, true, false]),
            (json!({"exact_match": "a"}), [false, true, false]),
            (json!({"string_match": {"exact": "a"}, "invert_match": true}), [false, false, true]),
            (json!({"string_match": {"exact": "a"}, "treat_missing_header_as_empty": true}), [false, true, false]),
            (
                json!({"string_match": {"exact": "a"}, "invert_match": true, "treat_missing_header_as_empty": true}),
                [true, false, true],
            ),
            (json!({"string_match": {"safe_regex": {"regex": "a|b"}}}), [false, true, false]),
            (
                json!({"string_match": {"safe_regex": {"regex": ".*"}}, "treat_missing_header_as_empty": true}),
                [true, true, true],
            ),
            (json!({"string_match": {"suffix": "A", "ignore_case": true}}), [false, true, false]),
            (json!({"string_match": {"contains": "c"}}), [false, false, true]),
            (json!({"prefix_match": "c"}), [false, false, true]),
        ];
        for (matcher, expected) in measured {
            let one = HeaderMatch(&matcher);
            assert_eq!([one.takes_absence(), one.takes("a"), one.takes("c")], expected, "{matcher}");
        }
    }

    #[test]
    fn what_cannot_be_told_passes() {
        for matcher in [
            json!({"range_match": {"end": "5"}}),
            json!({"string_match": {"safe_regex": {"regex": "(a"}}, "invert_match": true}),
            json!({"string_match": {"custom": {"name": "x"}}}),
        ] {
            let one = HeaderMatch(&matcher);
            assert_eq!((one.takes_absence(), one.takes("a")), (false, true), "{matcher}");
        }
    }
}
