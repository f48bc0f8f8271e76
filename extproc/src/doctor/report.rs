//! An examination as text for terminals. Names come from a dump that anybody may have written: what a terminal would obey
//! rather than show is replaced.

use std::fmt::Write as _;

use super::finding::{Finding, Severity, counted};
use super::{Attachment, Basis, Examination};

/// Draws it: where the sidecar is attached, then the findings, the worst first, then the sum.
pub fn draw(examination: &Examination) -> String {
    let mut drawn = String::new();
    let Examination { proxy, envoy, attachments, findings, basis } = examination;
    let name = [proxy.as_str(), envoy.as_str()].into_iter().filter(|part| !part.is_empty());
    let _ = writeln!(drawn, "Envoy {}", name.collect::<Vec<_>>().join(", version "));
    for attachment in attachments {
        draw_attachment(attachment, &mut drawn);
    }
    let mut rest: Vec<&Finding> = findings.iter().collect();
    while let Some(first) = rest.first().copied() {
        // What is mended in one go is told in one.
        let (alike, others) = rest.iter().partition(|one| (one.severity, one.fix) == (first.severity, first.fix));
        draw_findings(alike, first, &mut drawn);
        rest = others;
    }
    let count = |severity, name| {
        let count = findings.iter().filter(|finding| finding.severity == severity).count();
        counted(count as u64, name)
    };
    let sum = [(Severity::Error, "error"), (Severity::Warning, "warning"), (Severity::Note, "note")];
    let sum = sum.map(|(severity, name)| count(severity, name)).join(", ");
    let _ = writeln!(drawn, "\n{}: {sum}", verdict(examination));
    // Of one that does not answer there is a finding.
    if *basis == Basis::Counters && !attachments.is_empty() && !has(findings, "sidecar-silent") {
        let _ = writeln!(drawn, "Whether the sidecar is there now, it says itself: --sidecar-admin HOST:PORT");
    }
    drawn.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

fn draw_attachment(attachment: &Attachment, drawn: &mut String) {
    let _ = writeln!(drawn, "\nthe sidecar's filter at {}", one_line(&attachment.place));
    for (name, value) in attachment.rows() {
        let _ = writeln!(drawn, "  {name:<16} {}", one_line(&value));
    }
}

fn verdict(examination: &Examination) -> String {
    let has = |id: &str| has(&examination.findings, id);
    let verdict = match examination.attachments.is_empty() {
        true => "not attached",
        false if has("sidecar-silent") => "configured, and the sidecar does not answer",
        false if has("sidecar-unreachable") || has("sidecar-never-answered") => "configured, and not attached",
        false if has("sidecar-not-connected") => "configured, and not connected",
        false if has("no-traffic") => "attached by its configuration; no request has been counted yet",
        false => match examination.basis {
            Basis::Configuration => "attached by its configuration",
            Basis::Counters => "attached, by what Envoy has seen so far",
            Basis::Sidecar => "attached",
        },
    };
    if has("incomplete") { format!("{verdict}, as far as could be read") } else { verdict.to_owned() }
}

fn has(findings: &[Finding], id: &str) -> bool {
    findings.iter().any(|finding| finding.id == id)
}

fn draw_findings(alike: Vec<&Finding>, first: &Finding, drawn: &mut String) {
    drawn.push('\n');
    for finding in alike {
        draw_finding(finding, drawn);
    }
    let _ = writeln!(drawn, "  Envoy:         {}", first.fix.envoy);
    let _ = writeln!(drawn, "  Envoy Gateway: {}", first.fix.envoy_gateway);
}

fn draw_finding(finding: &Finding, drawn: &mut String) {
    /// Where a thing is wrong at a thousand routes, a few are enough to find it.
    const MAX_PLACES: usize = 3;
    let Finding { id, severity, what, places, .. } = finding;
    let severity = match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let _ = writeln!(drawn, "{severity} {id}: {}", one_line(what));
    for place in places.iter().take(MAX_PLACES) {
        let _ = writeln!(drawn, "  at {}", one_line(place));
    }
    if places.len() > MAX_PLACES {
        let _ = writeln!(drawn, "  and {} more", places.len() - MAX_PLACES);
    }
}

/// A name with a line break in it must not look like a line of ours, nor one of a megabyte fill the screen.
fn one_line(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    text.chars().take(MAX_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
