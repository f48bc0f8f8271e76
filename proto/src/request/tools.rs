//! Tools that the server runs by itself: what they bring is input, of any length, that nobody sees in the request.

use super::ScanError;
use super::names::Seen;
use crate::json::{Scanner, ValueKind};

/// Types of tools that the client runs, or what they begin with: the server only asks for them. Those that are not known are taken for
/// the server's.
const OF_CLIENTS: [&[u8]; 11] = [
    b"function",
    b"custom",
    b"namespace",
    b"local_shell",
    b"shell",
    b"apply_patch",
    b"computer",
    b"bash_",
    b"text_editor_",
    b"memory_",
    b"builtin_function",
];

/// Fields that switch such tools on: of Anthropic's API, of OpenAI's search models, of xAI's, of OpenRouter's.
const FIELDS: [&str; 4] = ["mcp_servers", "web_search_options", "search_parameters", "plugins"];

/// Whether the field of this name may switch tools of the server on.
pub(super) fn may_switch(name: &str) -> bool {
    FIELDS.contains(&name)
}

/// Whether it does by the value that comes next.
pub(super) fn are_switched_on(name: &str, scanner: &Scanner<'_>) -> bool {
    may_switch(name) && matches!(scanner.clone().peek(), Ok(ValueKind::Object | ValueKind::Array))
}

/// Whether the server runs this element of `tools`. One without a `type` is the client's.
///
/// # Errors
/// [`ScanError::Duplicate`] and [`ScanError::Misspelt`] where servers do not agree on its type.
pub(super) fn is_of_server(tool: &[u8]) -> Result<bool, ScanError> {
    let scanner = &mut Scanner::new(tool);
    if scanner.peek()? != ValueKind::Object {
        return Ok(false);
    }
    scanner.open()?;
    let mut seen = Seen::default();
    let mut is_of_server = false;
    while let Some(key) = scanner.next_key()? {
        let is_kind = seen.member(&["tools.type"], &key.text(tool))?.is_some();
        if is_kind && scanner.peek()? == ValueKind::String {
            let kind = scanner.string()?.text(tool);
            is_of_server = !OF_CLIENTS.iter().any(|prefix| kind.starts_with(prefix));
        } else {
            scanner.skip()?;
        }
    }
    Ok(is_of_server)
}

#[cfg(test)]
mod tests {
    use super::super::scan;
    use crate::operation::Operation;

    #[test]
    fn tools_that_the_server_runs_are_told_from_those_that_the_client_runs() {
        let runs = |operation: Operation, fields: &str| {
            let body = format!(r#"{{"model":"m","messages":[],"input":"Hi",{fields}}}"#);
            scan(operation, body.as_bytes()).unwrap().runs_tools
        };
        for (operation, fields) in [
            (Operation::Responses, r#""tools":[{"type":"web_search_preview"}]"#),
            (
                Operation::Responses,
                r#""tools":[{"type":"function","name":"f"},{"type":"mcp","server_url":"https://x"}]"#,
            ),
            (Operation::Responses, r#""tools":[{"type":"code_interpreter","container":{"type":"auto"}}]"#),
            (Operation::Messages, r#""tools":[{"type":"web_search_20250305","name":"web_search"}]"#),
            (Operation::Messages, r#""mcp_servers":[{"type":"url","url":"https://x"}]"#),
            (Operation::ChatCompletions, r#""web_search_options":{}"#),
        ] {
            assert!(runs(operation, fields), "{fields}");
        }
        for (operation, fields) in [
            (Operation::Responses, r#""tools":[{"type":"function","name":"f"},{"type":"local_shell"}]"#),
            (
                Operation::Messages,
                r#""tools":[{"name":"f","input_schema":{"type":"object"}},{"type":"bash_20250124"}]"#,
            ),
            (
                Operation::ChatCompletions,
                r#""tools":[{"type":"function","function":{"name":"web_search"}}],"plugins":null"#,
            ),
            (Operation::ChatCompletions, r#""tools":"none""#),
        ] {
            assert!(!runs(operation, fields), "{fields}");
        }
    }
}
