//! What the reader sees: headings, tables, verdicts. Colours and lines that overwrite themselves only on a terminal.

use std::{
    env,
    fmt::Debug,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Instant,
};

use crate::table::Table;

/// The width of rules and paragraphs: fits a terminal of 100 columns.
const WIDTH: usize = 98;

/// Standard output.
pub(crate) struct Screen {
    colours: Colours,
    begin: Instant,
    /// Whether the last line is one that the next takes the place of.
    in_progress: bool,
    /// The letter of the step that plays.
    step: char,
    met: usize,
    failures: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Colours {
    On,
    Off,
}

/// How a piece of text looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Style {
    #[default]
    Plain,
    Strong,
    Faint,
    Good,
    Bad,
    Accent,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Strong => "1",
            Self::Faint => "2",
            Self::Good => "32",
            Self::Bad => "1;31",
            Self::Accent => "36",
        }
    }
}

impl Screen {
    /// Standard output as it is.
    pub(crate) fn of_stdout() -> Self {
        // https://no-color.org
        let wanted = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colours = if io::stdout().is_terminal() && wanted { Colours::On } else { Colours::Off };
        Self { colours, begin: Instant::now(), in_progress: false, step: ' ', met: 0, failures: Vec::new() }
    }

    /// What this is.
    pub(crate) fn title(&mut self) {
        let name = self.paint(Style::Strong, "Attaché");
        self.line(&format!("\n{name} turns an Envoy into a gateway for LLM traffic."));
        self.line("A story in five steps on a real Envoy. All that is shown was measured just now.\n");
    }

    /// Names and what is there.
    pub(crate) fn map(&mut self, entries: &[(&str, String)]) {
        let width = entries.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
        for (name, text) in entries {
            let name = self.paint(Style::Faint, &format!("{name:width$}"));
            self.line(&format!("  {name}  {text}"));
        }
    }

    /// Begins a step.
    pub(crate) fn step(&mut self, letter: char, title: &str) {
        self.step = letter;
        let rule = "─".repeat(WIDTH.saturating_sub(title.chars().count() + 6));
        let (title, rule) = (self.paint(Style::Strong, title), self.paint(Style::Faint, &rule));
        let letter = self.paint(Style::Accent, &letter.to_string());
        self.line(&format!("\n{letter} ─ {title} {rule}"));
    }

    /// A paragraph in the margin.
    pub(crate) fn note(&mut self, text: &str) {
        for line in wrap(text, WIDTH - 2) {
            let line = self.paint(Style::Faint, &line);
            self.line(&format!("  {line}"));
        }
    }

    /// A table.
    pub(crate) fn table(&mut self, table: &Table) {
        let rendered = table.render(|style, text| self.paint(style, text));
        for line in rendered {
            self.line(&format!("  {line}"));
        }
    }

    /// What goes on at the moment. On a terminal the next output takes its place; elsewhere it is not shown.
    pub(crate) fn progress(&mut self, text: &str) {
        if io::stdout().is_terminal() {
            self.clear_progress();
            let shown = self.paint(Style::Faint, &format!("  … {text}"));
            write(&shown);
            self.in_progress = true;
        }
    }

    /// A verdict: whether `found` is what was expected. `promise` says what that shows.
    pub(crate) fn expect<T: Debug + PartialEq>(&mut self, promise: &str, found: T, expected: T) {
        let missing = (found != expected).then(|| format!("expected {expected:?}, found {found:?}"));
        self.verdict(promise, missing);
    }

    /// A verdict: nothing is missing, or this is.
    pub(crate) fn verdict(&mut self, promise: &str, missing: Option<String>) {
        match missing {
            None => {
                self.met += 1;
                let mark = self.paint(Style::Good, "✓");
                self.hanging(&mark, promise);
            }
            Some(missing) => {
                let mark = self.paint(Style::Bad, "✗");
                let text = format!("{}: {missing}", promise.trim_end_matches('.'));
                self.hanging(&mark, &text);
                self.failures.push(format!("{}: {text}", self.step));
            }
        }
    }

    /// The end of the story: the exit status.
    pub(crate) fn conclude(&mut self) -> ExitCode {
        let seconds = self.begin.elapsed().as_secs_f64();
        let all = self.met + self.failures.len();
        if self.failures.is_empty() {
            let mark = self.paint(Style::Good, "✓");
            self.line(&format!("\n{mark} All {all} expectations were met, in {seconds:.0} s."));
            return ExitCode::SUCCESS;
        }
        let mark = self.paint(Style::Bad, "✗");
        self.line(&format!("\n{mark} {} of {all} expectations were not met:", self.failures.len()));
        for failure in std::mem::take(&mut self.failures) {
            self.line(&format!("  {failure}"));
        }
        ExitCode::FAILURE
    }

    /// A line of output.
    pub(crate) fn line(&mut self, text: &str) {
        self.clear_progress();
        write(&format!("{text}\n"));
    }

    /// Text in a style.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        match (self.colours, style) {
            (Colours::Off, _) | (_, Style::Plain) => text.to_owned(),
            (Colours::On, style) => format!("\x1b[{}m{text}\x1b[0m", style.code()),
        }
    }

    fn hanging(&mut self, mark: &str, text: &str) {
        for (index, line) in wrap(text, WIDTH - 4).into_iter().enumerate() {
            let lead = if index == 0 { mark } else { " " };
            self.line(&format!("  {lead} {line}"));
        }
    }

    /// Takes away what [`Screen::progress`] says.
    pub(crate) fn clear_progress(&mut self) {
        if std::mem::take(&mut self.in_progress) {
            write("\r\x1b[2K");
        }
    }
}

/// A reader who has gone away is no reason to end.
fn write(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut().filter(|line| line.chars().count() + word.chars().count() < width) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}
