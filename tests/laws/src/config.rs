//! The reader of what operators write.

use attache::config::model::Settings;
use attache::config::report::{self, Style};
use attache::config::{Documents, compile};

/// What a report may have beside what a text of its own length has: an alias may stand for a thousand findings in an object.
const REPORT_BYTES: usize = 4 << 20;

/// How often a report may say what the text says.
const LINES: usize = 1_000;

/// Any text compiles, beside the last state as well, and whatever is said of it can be shown.
pub fn config(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let first = compile(Documents::from_text("first.yaml", &text), Settings::default(), 1, None);
    assert!(first.is_ok(), "the settings are sound");
    let Ok(first) = first else { return };
    for style in [Style::Graphical, Style::Plain] {
        let mut report = Vec::new();
        let shown = report::write(&first.diagnostics, style, &mut report);
        assert!(shown.is_ok(), "cannot show what is wrong");
        assert!(report.len() <= REPORT_BYTES + LINES * input.len(), "a report of {} bytes", report.len());
    }
    let again = compile(Documents::from_text("first.yaml", &text), Settings::default(), 2, Some(&first.resources));
    assert!(again.is_ok_and(|again| again.objects == first.objects), "the same text holds the same objects");
}
