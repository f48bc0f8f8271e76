//! Tools that the server runs by itself: what they bring is input, of any length, that nobody sees in the request.

use crate::json::{JsonError, Scanner, ValueKind};

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
const FIELDS: [&[u8]; 4] = [b"mcp_servers", b"web_search_options", b"search_parameters", b"plugins"];

/// Whether the field of this name, whose value comes next, switches tools of the server on.
pub(super) fn are_switched_on(name: &[u8], scanner: &Scanner<'_>) -> bool {
    FIELDS.contains(&name) && matches!(scanner.clone().peek(), Ok(ValueKind::Object | ValueKind::Array))
}

/// Whether the server runs this element of `tools`.
pub(super) fn is_of_server(tool: &[u8]) -> bool {
    let kind = kind(&mut Scanner::new(tool)).unwrap_or_default();
    kind.is_some_and(|kind| !OF_CLIENTS.iter().any(|prefix| kind.starts_with(prefix)))
}

/// The `type` of a tool. One without is the client's.
fn kind(scanner: &mut Scanner<'_>) -> Result<Option<Vec<u8>>, JsonError> {
    let bytes = scanner.bytes();
    if scanner.peek()? != ValueKind::Object {
        return Ok(None);
    }
    scanner.open()?;
    let mut kind = None;
    while let Some(key) = scanner.next_key()? {
        let is_kind = key.text(bytes).as_ref() == b"type";
        if is_kind && scanner.peek()? == ValueKind::String {
            kind = Some(scanner.string()?.text(bytes).into_owned());
        } else {
            scanner.skip()?;
        }
    }
    Ok(kind)
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
