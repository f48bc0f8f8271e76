//! Tables in box-drawing characters.

use crate::screen::Style;

/// A table: a head, and rows of as many cells.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

/// One column.
struct Column {
    head: &'static str,
    align: Align,
}

/// Where a column's text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// One cell.
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Text in a style.
    pub(crate) fn new(style: Style, text: impl ToString) -> Self {
        Self { text: text.to_string(), style }
    }

    /// Text as it is.
    pub(crate) fn plain(text: impl ToString) -> Self {
        Self::new(Style::Plain, text)
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl Table {
    /// An empty table with these columns.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        let columns = columns.iter().map(|&(head, align)| Column { head, align }).collect();
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Its lines.
    pub(crate) fn render(&self, paint: impl Fn(Style, &str) -> String) -> Vec<String> {
        let widths: Vec<usize> = self
            .columns
            .iter()
            .enumerate()
            .map(|(index, column)| {
                let cells = self.rows.iter().filter_map(|row| row.get(index)).map(Cell::width);
                cells.chain([column.head.chars().count()]).max().unwrap_or_default()
            })
            .collect();
        let rule = |left: &str, middle: &str, right: &str| {
            let pieces: Vec<_> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
            paint(Style::Faint, &format!("{left}{}{right}", pieces.join(middle)))
        };
        let line = |cells: Vec<(Style, &str)>| {
            let bar = paint(Style::Faint, "│");
            let columns = self.columns.iter().zip(&widths);
            let cells: Vec<_> = columns
                .zip(cells)
                .map(|((column, width), (style, text))| {
                    let padding = " ".repeat(width.saturating_sub(text.chars().count()));
                    let text = paint(style, text);
                    match column.align {
                        Align::Left => format!(" {text}{padding} "),
                        Align::Right => format!(" {padding}{text} "),
                    }
                })
                .collect();
            format!("{bar}{}{bar}", cells.join(&bar))
        };
        let mut lines = vec![rule("┌", "┬", "┐")];
        lines.push(line(self.columns.iter().map(|column| (Style::Faint, column.head)).collect()));
        lines.push(rule("├", "┼", "┤"));
        lines.extend(
            self.rows.iter().map(|row| line(row.iter().map(|cell| (cell.style, cell.text.as_str())).collect())),
        );
        lines.push(rule("└", "┴", "┘"));
        lines
    }
}

/// A bar of `width` characters, filled to `part` of `whole`.
pub(crate) fn bar(part: u64, whole: u64, width: usize) -> String {
    let filled = (part as f64 / whole.max(1) as f64 * width as f64).round() as usize;
    let filled = filled.min(width);
    format!("{}{}", "█".repeat(filled), "░".repeat(width - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("a", Align::Left), ("number", Align::Right)]);
        table.row([Cell::plain("é é"), Cell::plain(7)]);
        assert_eq!(
            table.render(|_, text| text.to_owned()),
            ["┌─────┬────────┐", "│ a   │ number │", "├─────┼────────┤", "│ é é │      7 │", "└─────┴────────┘"]
        );
    }

    #[test]
    fn a_bar_never_leaves_its_width() {
        assert_eq!(bar(0, 10, 4), "░░░░");
        assert_eq!(bar(5, 10, 4), "██░░");
        assert_eq!(bar(20, 10, 4), "████");
        assert_eq!(bar(0, 0, 2), "░░");
    }
}
