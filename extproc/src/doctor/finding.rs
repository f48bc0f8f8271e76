//! What is found, and how findings are gathered: the same thing at a thousand routes is one finding with a thousand places.

use std::collections::HashMap;

use serde::Serialize;

/// How bad a [`Finding`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Traffic passes by, fails, or is served without what was promised.
    Error,
    /// It works until something happens: a large body, a long answer, a crash, a crowd.
    Warning,
    /// Good to know; often as it should be.
    Note,
}

/// One thing to know of: what it is called, how bad it is and what to do about it.
#[derive(Debug)]
pub struct Rule {
    /// The name by which documentation and scripts know it.
    pub id: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What to change in Envoy's own configuration.
    pub envoy: &'static str,
    /// What to change in the objects of Envoy Gateway.
    pub envoy_gateway: &'static str,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// [`Rule::id`].
    pub id: &'static str,
    /// [`Rule::severity`].
    pub severity: Severity,
    /// What it is, and what comes of it.
    pub what: String,
    /// Where: listeners, routes, clusters. Empty where it is about all of it.
    pub places: Vec<String>,
    /// The way out.
    pub fix: Fix,
}

/// The way out of a finding, in the words of whoever configures Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Fix {
    /// In Envoy's own configuration.
    pub envoy: &'static str,
    /// In the objects of Envoy Gateway.
    pub envoy_gateway: &'static str,
}

/// `1 stream`, `2 streams`.
pub(super) fn counted(count: impl Into<u64>, one: &str) -> String {
    match count.into() {
        1 => format!("1 {one}"),
        count => format!("{count} {one}s"),
    }
}

/// Findings as they are gathered.
#[derive(Debug, Default)]
pub(super) struct Findings {
    list: Vec<Finding>,
    by_content: HashMap<(&'static str, String), usize>,
}

impl Findings {
    /// Takes one. What is found with the same words elsewhere becomes another place of it.
    pub(super) fn add(&mut self, rule: &'static Rule, place: &str, what: impl Into<String>) {
        let what = what.into();
        let known = self.by_content.get(&(rule.id, what.clone())).copied();
        let index = known.unwrap_or(self.list.len());
        if known.is_none() {
            self.by_content.insert((rule.id, what.clone()), index);
            let fix = Fix { envoy: rule.envoy, envoy_gateway: rule.envoy_gateway };
            self.list.push(Finding { id: rule.id, severity: rule.severity, what, places: Vec::new(), fix });
        }
        if let Some(finding) = self.list.get_mut(index)
            && !place.is_empty()
            && finding.places.last().is_none_or(|last| last != place)
        {
            finding.places.push(place.to_owned());
        }
    }

    /// The worst first, else as they were found.
    pub(super) fn into_list(mut self) -> Vec<Finding> {
        self.list.sort_by_key(|finding| finding.severity);
        self.list
    }
}
