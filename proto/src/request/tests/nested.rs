//! What is acted on within other fields: it is there once, in its own spelling, and read as the laxest server reads it.

use super::*;

/// Bodies with `@` where the members of an object are that is looked into, one of these members, and what errors call it.
const ACTED_ON: [(Operation, &str, &str, &str); 29] = [
    (Operation::ChatCompletions, r#"{"model":"m","messages":[{@}]}"#, r#""content":"x""#, "messages.content"),
    (Operation::ChatCompletions, r#"{"model":"m","messages":[{@}]}"#, r#""role":"user""#, "messages.role"),
    (Operation::ChatCompletions, r#"{"model":"m","messages":[{@}]}"#, r#""tool_calls":[]"#, "messages.tool_calls"),
    (Operation::ChatCompletions, r#"{"model":"m","messages":[{@}]}"#, r#""reasoning":"x""#, "messages.reasoning"),
    (Operation::ChatCompletions, r#"{"model":"m","messages":[{"content":[{@}]}]}"#, r#""text":"x""#, "content.text"),
    (Operation::ChatCompletions, r#"{"model":"m","messages":[{"content":[{@}]}]}"#, r#""type":"text""#, "content.type"),
    (
        Operation::ChatCompletions,
        r#"{"model":"m","messages":[{"content":[{@}]}]}"#,
        r#""image_url":{"url":"x"}"#,
        "content.image_url",
    ),
    (Operation::ChatCompletions, r#"{"model":"m","tools":[{@}]}"#, r#""type":"function""#, "tools.type"),
    (Operation::ChatCompletions, r#"{"model":"m","thinking":{@}}"#, r#""budget_tokens":1"#, "budget_tokens"),
    (Operation::ChatCompletions, r#"{"model":"m","reasoning":{@}}"#, r#""max_tokens":1"#, "max_tokens"),
    (
        Operation::ChatCompletions,
        r#"{"model":"m","chat_template_kwargs":{@}}"#,
        r#""thinking_budget":1"#,
        "thinking_budget",
    ),
    (
        Operation::ChatCompletions,
        r#"{"model":"m","extra_body":{"google":{@}}}"#,
        r#""thinking_config":{"thinking_budget":1}"#,
        "thinking_config",
    ),
    (
        Operation::ChatCompletions,
        r#"{"model":"m","extra_body":{"google":{"thinking_config":{@}}}}"#,
        r#""thinking_budget":1"#,
        "thinking_budget",
    ),
    (Operation::ChatCompletions, r#"{"model":"m",@}"#, r#""extra_body":{}"#, "extra_body"),
    (Operation::ChatCompletions, r#"{"model":"m",@}"#, r#""thinking_budget":1"#, "thinking_budget"),
    (Operation::ChatCompletions, r#"{"model":"m",@}"#, r#""min_tokens":1"#, "min_tokens"),
    (Operation::ChatCompletions, r#"{"model":"m",@}"#, r#""web_search_options":{}"#, "web_search_options"),
    (
        Operation::ChatCompletions,
        r#"{"model":"m","stream_options":{@}}"#,
        r#""include_usage":true"#,
        "stream_options.include_usage",
    ),
    (Operation::Messages, r#"{"model":"m","messages":[{@}]}"#, r#""content":"x""#, "messages.content"),
    (Operation::Messages, r#"{"model":"m","messages":[{"content":[{@}]}]}"#, r#""text":"x""#, "content.text"),
    (Operation::Messages, r#"{"model":"m","system":[{@}]}"#, r#""text":"x""#, "content.text"),
    (
        Operation::Messages,
        r#"{"model":"m","messages":[{"content":[{"type":"document","source":{@}}]}]}"#,
        r#""data":"x""#,
        "source.data",
    ),
    (
        Operation::Messages,
        r#"{"model":"m","messages":[{"content":[{"type":"tool_result","content":[{@}]}]}]}"#,
        r#""text":"x""#,
        "content.text",
    ),
    (Operation::Messages, r#"{"model":"m","thinking":{@}}"#, r#""budget_tokens":1"#, "budget_tokens"),
    (Operation::Messages, r#"{"model":"m",@}"#, r#""mcp_servers":[]"#, "mcp_servers"),
    (Operation::Responses, r#"{"model":"m","input":[{@}]}"#, r#""content":"x""#, "input.content"),
    (Operation::Responses, r#"{"model":"m","input":[{@}]}"#, r#""arguments":"x""#, "input.arguments"),
    (Operation::Responses, r#"{"model":"m","input":[{"content":[{@}]}]}"#, r#""text":"x""#, "content.text"),
    (Operation::Responses, r#"{"model":"m","conversation":{@}}"#, r#""id":"x""#, "conversation.id"),
];

#[test]
fn a_member_that_is_acted_on_is_there_once_and_spelt_as_all_servers_read_it() {
    for (operation, body, member, name) in ACTED_ON {
        let scan = |members: &str| scan(operation, body.replace('@', members).as_bytes());
        let (key, value) = member.strip_prefix('"').and_then(|member| member.split_once('"')).unwrap();
        assert!(scan(member).is_ok(), "{body} {member}");
        for again in [key.to_owned(), format!("\\u{:04x}{}", key.as_bytes()[0], &key[1..])] {
            let twins = format!(r#"{member},"x":0,"{again}"{value}"#);
            assert_eq!(scan(&twins), Err(ScanError::Duplicate(name)), "{body} {twins}");
        }
        let mut spellings = vec![key.to_uppercase(), key[..1].to_uppercase() + &key[1..]];
        spellings.extend(
            [("s", "\u{17f}"), ("k", "\u{212a}"), ("s", r"\u017f")].map(|(letter, like)| {
                if key.contains(letter) { key.replace(letter, like) } else { key.to_uppercase() }
            }),
        );
        for spelling in spellings {
            for other in [
                format!(r#""{spelling}"{value}"#),
                format!(r#"{member},"{spelling}"{value}"#),
                format!(r#""{spelling}"{value},{member}"#),
            ] {
                assert_eq!(scan(&other), Err(ScanError::Misspelt(name)), "{body} {other}");
            }
        }
    }
}

#[test]
fn what_nobody_acts_on_is_the_clients_however_deep() {
    for (operation, body) in [
        (
            Operation::ChatCompletions,
            r#"{"model":"m","messages":[{"X":1,"x":2,"x":3}],"metadata":{"Content":1,"content":2}}"#,
        ),
        (
            Operation::ChatCompletions,
            r#"{"model":"m","tools":[{"type":"function","function":{"parameters":{"properties":{"Text":{},"text":{}}}}}]}"#,
        ),
        (
            Operation::ChatCompletions,
            r#"{"model":"m","messages":[{"tool_calls":[{"Content":1,"content":2,"content":3}]}]}"#,
        ),
        (
            Operation::Messages,
            r#"{"model":"m","messages":[{"content":[{"type":"tool_use","input":{"Text":1,"text":2}}]}]}"#,
        ),
        (Operation::Messages, r#"{"model":"m","thinking":{"Type":"enabled","type":"enabled"}}"#),
        (Operation::Embeddings, r#"{"model":"m","thinking":{"budget_tokens":1,"Budget_Tokens":2},"Thinking":1}"#),
        (
            Operation::PassThrough,
            r#"{"model":"m","messages":[{"content":1,"Content":2}],"thinking":{"budget_tokens":1,"budget_tokens":2}}"#,
        ),
    ] {
        assert!(scan(operation, body.as_bytes()).is_ok(), "{body}");
    }
}

#[test]
fn a_budget_is_read_as_the_laxest_server_reads_it() {
    let lowered = |budget: &str| {
        let body = format!(r#"{{"model":"m","max_tokens":20000,"thinking":{{"budget_tokens":{budget}}}}}"#);
        let bounds = scan(Operation::Messages, body.as_bytes()).unwrap().bounds;
        let edits = Splice::new(bounds.lowered_to(10_000), body.len()).unwrap();
        let sent: Value = serde_json::from_slice(&edits.apply(&body.clone().into())).unwrap();
        (bounds.least(), sent["thinking"]["budget_tokens"].clone())
    };
    for budget in ["16000", "16000.0", "1.6e4", r#""16000""#, r#"" 16_000 ""#] {
        assert_eq!(lowered(budget), (1_040, Value::from(8_000)), "{budget}");
    }
    assert_eq!(lowered("600"), (616, Value::from(600)));
    for budget in ["null", "-1", "true", r#""auto""#, "[]"] {
        assert_eq!(lowered(budget), (0, serde_json::from_str(budget).unwrap()), "{budget}");
    }
}

#[test]
fn the_least_length_that_a_client_wants_is_the_least_bound() {
    let least = |operation: Operation, fields: &str| {
        scan(operation, format!(r#"{{"model":"m",{fields}}}"#).as_bytes()).map(|scan| scan.bounds.least())
    };
    assert_eq!(least(Operation::ChatCompletions, r#""min_tokens":300"#), Ok(300));
    assert_eq!(least(Operation::Completions, r#""min_tokens":"300""#), Ok(300));
    assert_eq!(least(Operation::Completions, r#""min_tokens":null"#), Ok(0));
    assert_eq!(least(Operation::ChatCompletions, r#""min_tokens":1,"thinking_budget":100"#), Ok(116));
    assert_eq!(least(Operation::ChatCompletions, r#""min_tokens":0.5"#), Err(ScanError::NotACount("min_tokens")));
    // Others do not know it.
    assert_eq!(least(Operation::Responses, r#""min_tokens":300"#), Ok(0));
}
