//! What `attache check` prints.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use miette::GraphicalReportHandler;

use super::{Diagnostic, Outcome, Severity, compile, load, model::Settings};

/// How diagnostics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// With the lines around and in colour, for people.
    Graphical,
    /// `file:line:column: error: message`, for editors and logs.
    Plain,
}

impl Style {
    /// The style that suits whoever reads this stream.
    pub fn for_stream(stream: &impl IsTerminal) -> Self {
        if stream.is_terminal() { Self::Graphical } else { Self::Plain }
    }
}

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to say: exit status 0.
    Sound,
    /// Warnings, no error: exit status 0.
    Doubtful,
    /// Errors: exit status 1.
    Faulty,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Sound | Verdict::Doubtful => Self::SUCCESS,
            Verdict::Faulty => Self::FAILURE,
        }
    }
}

/// Reads and compiles `paths`, writes every error and warning to `out`, then a line that sums them up.
///
/// # Errors
/// Those of `out`, and as [`io::ErrorKind::InvalidInput`] what is wrong with the `settings`.
pub fn check(paths: &[PathBuf], settings: Settings, style: Style, out: &mut impl Write) -> io::Result<Verdict> {
    let documents = load(paths).with_secrets_if_named(settings.secrets_dir.as_deref());
    let compiled = compile(documents, settings, 1, None);
    let Outcome { mut diagnostics, objects, .. } =
        compiled.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    if objects == 0 && !diagnostics.iter().any(Diagnostic::is_error) {
        // A pipeline that checks the wrong directory must not be green.
        let message = "nothing was checked: no object of a kind that is read here was found; name the files or directories that hold some";
        diagnostics.push(Diagnostic::general(Severity::Error, message.to_owned()));
    }
    write(&diagnostics, style, out)?;
    let errors = diagnostics.iter().filter(|diagnostic| diagnostic.is_error()).count();
    let warnings = diagnostics.len() - errors;
    let verdict = match (errors, warnings) {
        (0, 0) => Verdict::Sound,
        (0, _) => Verdict::Doubtful,
        _ => Verdict::Faulty,
    };
    let [objects, errors, warnings] = [(objects, "object"), (errors, "error"), (warnings, "warning")].map(counted);
    writeln!(out, "{objects}, {errors}, {warnings}")?;
    Ok(verdict)
}

fn counted((number, thing): (usize, &str)) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// Writes diagnostics, the first hundred in this style and the others without the lines around: to find those takes as long as
/// the file before them, and nobody mends more at once.
///
/// # Errors
/// Those of `out`.
pub fn write(diagnostics: &[Diagnostic], style: Style, out: &mut impl Write) -> io::Result<()> {
    const GRAPHICAL: usize = 100;
    let (first, others) = diagnostics.split_at(diagnostics.len().min(GRAPHICAL));
    first.iter().try_for_each(|diagnostic| write_one(diagnostic, style, out))?;
    others.iter().try_for_each(|diagnostic| write_one(diagnostic, Style::Plain, out))
}

fn write_one(diagnostic: &Diagnostic, style: Style, out: &mut impl Write) -> io::Result<()> {
    // Without its source, a graphical report would not say the file and the line either.
    if style == Style::Plain || !diagnostic.shows_its_line() {
        return writeln!(out, "{}", diagnostic.plain());
    }
    let mut report = String::new();
    GraphicalReportHandler::new().render_report(&mut report, diagnostic).map_err(io::Error::other)?;
    writeln!(out, "{report}")
}
