//! A Prometheus page, read into numbers.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// All samples of a page, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<Sample>);

/// One line of the page.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The name, with its suffix (`_total`, `_sum`, `_count`, `_bucket`).
    pub name: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

impl Metrics {
    /// Reads a page in Prometheus' or OpenMetrics' text format.
    ///
    /// # Errors
    /// With the line that is neither a sample nor a comment.
    pub fn parse(page: &str) -> Result<Self> {
        let lines = page.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines
            .map(|line| sample(line).ok_or_else(|| Error::unexpected("this is no line of a metrics page", line)))
            .collect::<Result<_>>()
            .map(Self)
    }

    /// The sum of all samples that have this name and at least these labels; 0 if there are none, as a counter that was
    /// never counted is not on the page.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.samples(name).filter(|sample| sample.has(labels)).map(|sample| sample.value).sum()
    }

    /// The samples of this name.
    pub fn samples(&self, name: &str) -> impl Iterator<Item = &Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }
}

impl Sample {
    fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(*name).is_some_and(|label| label == value))
    }
}

/// `name{label="value",...} 1.5`, or without labels; what follows the value (a time, an exemplar) is left out.
fn sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The labels, and what follows the closing brace.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next()? {
                (end, '"') => break end,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    escaped => value.push(escaped),
                },
                (_, plain) => value.push(plain),
            }
        };
        labels.insert(name.to_owned(), value);
        rest = quoted.get(end + 1..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP a_requests Requests.\n# TYPE a_requests counter
a_requests_total{route=\"x\",outcome=\"served\"} 2
a_requests_total{route=\"y\",outcome=\"served\"} 3 1700000000.0
a_requests_total{route=\"say \\\"}\\\" \\\\ \\n\",outcome=\"\"} 1 # {id=\"1\"} 1
a_held_sum 0.25
# EOF
";

    #[test]
    fn samples_are_summed_by_name_and_labels() {
        let metrics = Metrics::parse(PAGE).unwrap();
        assert_eq!(metrics.sum("a_requests_total", &[]), 6.0);
        assert_eq!(metrics.sum("a_requests_total", &[("outcome", "served")]), 5.0);
        assert_eq!(metrics.sum("a_requests_total", &[("outcome", "served"), ("route", "y")]), 3.0);
        assert_eq!(metrics.sum("a_held_sum", &[]), 0.25);
        assert_eq!(metrics.sum("a_requests", &[]), 0.0);
    }

    #[test]
    fn escaped_labels_are_read() {
        let metrics = Metrics::parse(PAGE).unwrap();
        assert_eq!(metrics.sum("a_requests_total", &[("route", "say \"}\" \\ \n")]), 1.0);
    }

    #[test]
    fn what_is_no_sample_is_an_error_that_shows_it() {
        for line in ["a", "a{b=\"c\" 1", "a{b=\"c\"} x", "<html>"] {
            let error = Metrics::parse(line).unwrap_err().to_string();
            assert!(error.contains(line), "{error}");
        }
    }
}
