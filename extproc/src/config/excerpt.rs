//! What of the operator's text a report shows. A configuration may come out of a generator, all in one line of a megabyte, and a
//! value may be a whole file that was quoted by mistake: a terminal and a log get what is around the fault.

use std::borrow::Cow;

/// No more of a line is shown, in characters.
pub(super) const MAX_LINE_CHARS: usize = 200;
/// How much of it stands before the fault.
const BEFORE_CHARS: usize = 60;
/// No more of a message, which quotes a value. (Lists of what is known are the longest that have a reason to be long.)
const MAX_MESSAGE_CHARS: usize = 2000;

/// What is left out.
const ELLIPSIS: char = '…';

/// A line with a fault at the byte `at`, or what is around it.
pub(super) fn of_line(line: &str, at: usize) -> Cow<'_, str> {
    if line.chars().nth(MAX_LINE_CHARS).is_none() {
        return Cow::Borrowed(line);
    }
    let before = line.get(..at).unwrap_or_default();
    let start = before.char_indices().rev().nth(BEFORE_CHARS - 1).map_or(0, |(start, _)| start);
    let rest = line.get(start..).unwrap_or_default();
    let end = rest.char_indices().nth(MAX_LINE_CHARS).map_or(rest.len(), |(end, _)| end);
    let shown = rest.get(..end).unwrap_or_default();
    let cut = |is_cut: bool| if is_cut { ELLIPSIS.to_string() } else { String::new() };
    Cow::Owned(format!("{}{shown}{}", cut(start > 0), cut(end < rest.len())))
}

/// A message, or its beginning.
pub(super) fn of_message(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
        message.truncate(end);
        message.push(ELLIPSIS);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_line_what_is_around_the_fault_is_shown() {
        assert_eq!(of_line("a: b", 3), "a: b");
        let line = format!("{}ä: wrong{}", "x".repeat(300), "y".repeat(300));
        let shown = of_line(&line, 304);
        assert_eq!(shown, format!("…{}ä: wrong{}…", "x".repeat(57), "y".repeat(135)));
        assert_eq!(of_line(&line, 0).chars().count(), MAX_LINE_CHARS + 1);
        assert_eq!(of_line(&line, line.len()), format!("…{}", "y".repeat(60)));
    }

    #[test]
    fn of_a_long_message_the_beginning_is_kept() {
        assert_eq!(of_message("ä".repeat(2000)), "ä".repeat(2000));
        assert_eq!(of_message("ä".repeat(2001)), "ä".repeat(2000) + "…");
    }
}
