//! The reader of what operators write.

use attache::config::model::Settings;
use attache::config::{Documents, compile};
use miette::GraphicalReportHandler;

/// Any text compiles, beside the last state as well, and whatever is said of it can be shown.
pub fn config(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let first = compile(Documents::from_text("first.yaml", &text), Settings::default(), 1, None);
    assert!(first.is_ok(), "the settings are sound");
    let Ok(first) = first else { return };
    for diagnostic in &first.diagnostics {
        let _ = diagnostic.plain().to_string();
        let shown = GraphicalReportHandler::new().render_report(&mut String::new(), diagnostic);
        assert!(shown.is_ok(), "cannot show {diagnostic}");
    }
    let again = compile(Documents::from_text("first.yaml", &text), Settings::default(), 2, Some(&first.resources));
    assert!(again.is_ok_and(|again| again.objects == first.objects), "the same text holds the same objects");
}
