//! Tables for terminals.

use std::fmt::Write as _;

/// Columns as wide as their widest cell.
pub(super) fn draw_table<const N: usize>(rows: &[[String; N]], drawn: &mut String) {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let is_number = cell.starts_with(|first: char| first.is_ascii_digit()) && !cell.contains(' ');
            let _ = if is_number { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:<width$}  ") };
        }
        let _ = writeln!(drawn, "{}", line.trim_end());
    }
}
