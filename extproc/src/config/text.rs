//! The text of one file, under the path it was read from, and where its lines begin: a file with thousands of objects may give
//! thousands of findings, and each says its line.

use std::sync::OnceLock;

use miette::NamedSource;

/// One file.
#[derive(Debug)]
pub(super) struct Source {
    named: NamedSource<String>,
    /// Offsets in bytes, in order; found when somebody asks.
    line_starts: OnceLock<Vec<usize>>,
}

impl Source {
    pub(super) fn new(name: &str, text: String) -> Self {
        Self { named: NamedSource::new(name, text), line_starts: OnceLock::new() }
    }

    /// The path, as it was given or found.
    pub(super) fn name(&self) -> &str {
        self.named.name()
    }

    /// The whole text.
    pub(super) fn inner(&self) -> &str {
        self.named.inner()
    }

    /// The same, for reports that show lines.
    pub(super) fn named(&self) -> &NamedSource<String> {
        &self.named
    }

    /// The line of a byte, from 1, and where it begins.
    pub(super) fn line_of(&self, offset: usize) -> (usize, usize) {
        let starts = self.line_starts.get_or_init(|| {
            let ends = self.inner().match_indices('\n').map(|(newline, _)| newline + 1);
            std::iter::once(0).chain(ends).collect()
        });
        // The first line begins at 0, so there is always one before.
        let line = starts.partition_point(|start| *start <= offset);
        (line, line.checked_sub(1).and_then(|index| starts.get(index)).copied().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_begins_after_a_newline_and_ends_with_it() {
        let source = Source::new("a.yaml", "ab\n\ncd".to_owned());
        let lines: Vec<_> = (0..7).map(|offset| source.line_of(offset)).collect();
        assert_eq!(lines, [(1, 0), (1, 0), (1, 0), (2, 3), (3, 4), (3, 4), (3, 4)]);
        assert_eq!(Source::new("", String::new()).line_of(0), (1, 0));
    }
}
