//! An examination as text for terminals. Names come from a dump that anybody may have written: what a terminal would obey
//! rather than show is replaced.

use std::fmt::Write as _;

use super::finding::{Finding, Severity};
use super::{Attachment, Examination};

/// Draws it: where the sidecar is attached, then the findings, the worst first, then the sum.
pub fn draw(examination: &Examination) -> String {
    let mut drawn = String::new();
    let Examination { proxy, envoy, attachments, findings } = examination;
    let name = [proxy.as_str(), envoy.as_str()].into_iter().filter(|part| !part.is_empty());
    let _ = writeln!(drawn, "Envoy {}", name.collect::<Vec<_>>().join(", version "));
    for attachment in attachments {
        draw_attachment(attachment, &mut drawn);
    }
    for finding in findings {
        draw_finding(finding, &mut drawn);
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let _ = writeln!(
        drawn,
        "\n{}: {} errors, {} warnings, {} notes",
        if attachments.is_empty() { "not attached" } else { "attached" },
        count(Severity::Error),
        count(Severity::Warning),
        count(Severity::Note),
    );
    drawn.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

fn draw_attachment(attachment: &Attachment, drawn: &mut String) {
    let _ = writeln!(drawn, "\nattached to {}", one_line(&attachment.place));
    for (name, value) in attachment.rows() {
        let _ = writeln!(drawn, "  {name:<16} {}", one_line(&value));
    }
}

fn draw_finding(finding: &Finding, drawn: &mut String) {
    /// Where a thing is wrong at a thousand routes, a few are enough to find it.
    const MAX_PLACES: usize = 3;
    let Finding { id, severity, what, places, fix } = finding;
    let severity = match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let _ = writeln!(drawn, "\n{severity} {id}: {}", one_line(what));
    for place in places.iter().take(MAX_PLACES) {
        let _ = writeln!(drawn, "  at {}", one_line(place));
    }
    if places.len() > MAX_PLACES {
        let _ = writeln!(drawn, "  and {} more", places.len() - MAX_PLACES);
    }
    let _ = writeln!(drawn, "  Envoy:         {}", fix.envoy);
    let _ = writeln!(drawn, "  Envoy Gateway: {}", fix.envoy_gateway);
}

/// A name with a line break in it must not look like a line of ours, nor one of a megabyte fill the screen.
fn one_line(text: &str) -> String {
    const MAX_CHARS: usize = 400;
    text.chars().take(MAX_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
