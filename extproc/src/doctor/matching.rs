//! The header matchers of a route, as a real Envoy 1.40 was measured to apply them: which of them a request without the header
//! passes, and which values they take.

use regex::RegexBuilder;
use serde_json::Value;

use super::json::Json;

/// One matcher.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeaderMatch<'a>(pub(super) &'a Value);

/// What it asks of a header's value.
enum Form<'a> {
    /// That there is one, or none.
    Present(bool),
    Exact(&'a str),
    Prefix(&'a str),
    Suffix(&'a str),
    Contains(&'a str),
    /// The whole of it (RE2).
    Regex(&'a str),
    /// A range, or what a later Envoy knows.
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
        matches!(self.form(), Form::Present(wanted) if wanted == self.is_inverted())
    }

    /// Whether a header of this value may pass; true as well where that cannot be told.
    pub(super) fn takes(self, value: &str) -> bool {
        let is_match = match self.form() {
            Form::Present(wanted) => Some(wanted),
            Form::Exact(text) => Some(self.folded(value) == self.folded(text)),
            Form::Prefix(text) => Some(self.folded(value).starts_with(&self.folded(text))),
            Form::Suffix(text) => Some(self.folded(value).ends_with(&self.folded(text))),
            Form::Contains(text) => Some(self.folded(value).contains(&self.folded(text))),
            Form::Regex(pattern) => matches_whole(pattern, value),
            Form::Other => None,
        };
        is_match.is_none_or(|is_match| is_match != self.is_inverted())
    }

    /// The beginning that every value it takes has; empty where there is none.
    pub(super) fn beginning(self) -> &'a str {
        match self.form() {
            Form::Exact(text) | Form::Prefix(text) if !self.is_inverted() => text,
            _ => "",
        }
    }

    fn is_inverted(self) -> bool {
        self.0.is_true("invert_match")
    }

    fn folded(self, text: &str) -> String {
        if self.0.is_true("string_match.ignore_case") { text.to_ascii_lowercase() } else { text.to_owned() }
    }

    fn form(self) -> Form<'a> {
        let text = |name: &str| {
            let forms = [format!("string_match.{name}"), format!("{name}_match")];
            forms.iter().map(|form| self.0.text(form)).find(|text| !text.is_empty())
        };
        let of_value = text("exact")
            .map(Form::Exact)
            .or_else(|| text("prefix").map(Form::Prefix))
            .or_else(|| text("suffix").map(Form::Suffix))
            .or_else(|| text("contains").map(Form::Contains));
        if let Some(form) = of_value {
            return form;
        }
        let patterns = ["string_match.safe_regex.regex", "safe_regex_match.regex"];
        if let Some(pattern) = patterns.iter().map(|path| self.0.text(path)).find(|pattern| !pattern.is_empty()) {
            return Form::Regex(pattern);
        }
        if self.0.field("string_match").is_object() || self.0.field("range_match").is_object() {
            return Form::Other;
        }
        // A matcher that says nothing else asks for the header.
        Form::Present(self.0.field("present_match").as_bool() != Some(false))
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
