//! The canonical prefix stream: what a request's prompt is for a cache, whatever its JSON looked like.
//!
//! Segments go in the order in which a chat template prints them, not in the document's: template fields, tools, messages.
//! Each is framed as kind (1 byte), bytes, length (u32, little endian). The length comes last so that a text which grows
//! keeps its beginning: two questions after one long document in the same message share all blocks of the document.

use attache_proto::request::{Segment, SegmentKind};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::blocks::{Chunker, PrefixChain};

/// Counts up whenever the same request would give another stream, so that sidecars of two versions never take each other's
/// hashes for their own.
pub const CANON_VERSION: u32 = 1;

/// What two equal prompts must have in common besides to share a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixScope<'a> {
    /// The replicas among which one is chosen: the Backend's cluster.
    pub pool: &'a str,
    /// The model as the replicas know it, after any rewrite.
    pub model: &'a str,
    /// The caller's tenant, where tenants are isolated from each other.
    pub tenant: Option<&'a str>,
}

impl PrefixScope<'_> {
    /// The chain of the prompt that `segments` of `body` make, in whatever order they lie there.
    pub fn chain(&self, segments: &[Segment], body: &[u8]) -> PrefixChain {
        let cache_salt = segments.iter().find(|segment| segment.kind == SegmentKind::CacheSalt);
        let mut stream = Stream {
            chunker: Chunker::new(self.seed(cache_salt.map(|salt| salt.text(body)).as_deref())),
            speaker: Speaker::System,
        };
        for segment in in_template_order(segments, body) {
            stream.push(segment.kind, &segment.text(body));
        }
        stream.chunker.finish()
    }

    fn seed(&self, cache_salt: Option<&[u8]>) -> u64 {
        let mut hasher = Xxh3::new();
        hasher.update(&CANON_VERSION.to_le_bytes());
        let fields =
            [Some(self.pool.as_bytes()), Some(self.model.as_bytes()), cache_salt, self.tenant.map(str::as_bytes)];
        for field in fields {
            let Some(field) = field else {
                hasher.update(&[0]);
                continue;
            };
            hasher.update(&[1]);
            hasher.update(field);
            hasher.update(&framed_len(field.len()));
        }
        hasher.digest()
    }
}

/// The prompt's segments as a template prints them. Within one message the document's order of keys makes no difference,
/// while the parts of a content keep theirs.
fn in_template_order<'a>(segments: &'a [Segment], body: &[u8]) -> Vec<&'a Segment> {
    let mut message = 0_usize;
    let mut positioned: Vec<(Position, &Segment)> = Vec::with_capacity(segments.len());
    for segment in segments {
        if segment.kind == SegmentKind::Role {
            message += 1;
        }
        if let Some(position) = Position::of(segment.kind, message) {
            positioned.push((position, segment));
        }
    }
    positioned.sort_by(|(position, segment), (other_position, other)| {
        // Template fields have no name here; by their text they are in the same order whatever the document's was.
        position.cmp(other_position).then_with(|| match position {
            Position::Template => segment.text(body).cmp(&other.text(body)),
            Position::Tool | Position::Message(..) => std::cmp::Ordering::Equal,
        })
    });
    positioned.into_iter().map(|(_, segment)| segment).collect()
}

/// Where a segment stands in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Position {
    Template,
    Tool,
    /// The message's number, and where in the message.
    Message(usize, u8),
}

impl Position {
    /// `None` for what is no part of the prompt.
    fn of(kind: SegmentKind, message: usize) -> Option<Self> {
        let within = match kind {
            SegmentKind::Template => return Some(Self::Template),
            SegmentKind::Tool => return Some(Self::Tool),
            SegmentKind::CacheSalt => return None,
            SegmentKind::Role => 0,
            SegmentKind::Name => 1,
            SegmentKind::ToolCallId => 2,
            SegmentKind::Reasoning => 3,
            SegmentKind::Text | SegmentKind::Media | SegmentKind::Tokens => 4,
            SegmentKind::ToolCalls => 5,
        };
        Some(Self::Message(message, within))
    }
}

struct Stream {
    chunker: Chunker,
    speaker: Speaker,
}

/// Whose message is being written; before the first role it is the system's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaker {
    System,
    Other,
}

impl Stream {
    fn push(&mut self, kind: SegmentKind, text: &[u8]) {
        match kind {
            SegmentKind::Role => {
                let is_system = matches!(text, b"system" | b"developer");
                self.speaker = if is_system { Speaker::System } else { Speaker::Other };
                self.frame(kind, text);
            }
            SegmentKind::Text if self.speaker == Speaker::System => self.frame(kind, without_volatile_head(text)),
            // Megabytes of image would drown the text; equal images are equal hashes.
            SegmentKind::Media => self.frame(kind, &xxh3_64(text).to_le_bytes()),
            SegmentKind::Tokens => self.frame(kind, &token_ids(text)),
            _ => self.frame(kind, text),
        }
    }

    fn frame(&mut self, kind: SegmentKind, bytes: &[u8]) {
        self.chunker.push(&[kind as u8]);
        self.chunker.push(bytes);
        self.chunker.push(&framed_len(bytes.len()));
    }
}

fn framed_len(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}

/// The text without a first line that is another one in every request: Claude Code's
/// `x-anthropic-billing-header: ... cch=<nonce>`. At most 256 bytes are left out.
fn without_volatile_head(text: &[u8]) -> &[u8] {
    const VOLATILE: &[u8] = b"x-anthropic-billing-header:";
    const MOST: usize = 256;
    if !text.starts_with(VOLATILE) {
        return text;
    }
    let end = text.iter().take(MOST).position(|byte| *byte == b'\n').unwrap_or(MOST);
    text.get(end..).unwrap_or_default()
}

/// A JSON array of token ids as u32, little endian: white space between them is no part of the prompt.
fn token_ids(json: &[u8]) -> Vec<u8> {
    let numbers = json.split(|byte| !byte.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.flat_map(|digits| parse_id(digits).to_le_bytes()).collect()
}

/// An id that is no u32 wraps: it is no token, and any value will do as long as it is always the same.
fn parse_id(digits: &[u8]) -> u32 {
    digits.iter().fold(0, |id: u32, digit| id.wrapping_mul(10).wrapping_add(u32::from(digit.wrapping_sub(b'0'))))
}

#[cfg(test)]
mod tests {
    use attache_proto::Operation;
    use attache_proto::request::scan;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const SCOPE: PrefixScope<'static> = PrefixScope { pool: "default/vllm", model: "llama", tenant: None };

    fn chain_of(operation: Operation, body: &str) -> PrefixChain {
        SCOPE.chain(&scan(operation, body.as_bytes()).unwrap().segments, body.as_bytes())
    }

    fn chat(body: &str) -> PrefixChain {
        chain_of(Operation::ChatCompletions, body)
    }

    fn chat_value(body: &Value) -> PrefixChain {
        chat(&body.to_string())
    }

    /// How many of their first blocks two chains share.
    fn shared(one: &PrefixChain, other: &PrefixChain) -> usize {
        one.blocks.iter().zip(&other.blocks).take_while(|(one, other)| one == other).count()
    }

    fn conversation(turns: &[String]) -> Value {
        let messages = turns
            .iter()
            .enumerate()
            .map(|(turn, text)| json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": text}));
        json!({"model": "llama", "messages": messages.collect::<Vec<_>>()})
    }

    #[test]
    fn white_space_key_order_escapes_and_sampling_make_no_difference() {
        let plain = r#"{"model":"llama","reasoning_effort":"high","documents":[{"a":1}],"messages":[{"role":"user","name":"Zoë","content":"hi\nthere","tool_calls":[1]}]}"#;
        let other = r#"{ "temperature" : 0.5, "stream" : true,
            "messages" : [ { "tool_calls":[1], "content" : "hi\u000athere" , "name" : "Zo\u00eb", "role" : "user" } ],
            "documents":[{"a":1}], "max_tokens": 5, "model" : "llama", "reasoning_effort":"high" }"#;
        assert_eq!(chat(plain), chat(other));
    }

    #[test]
    fn another_stream_needs_another_version() {
        // Where this test fails because the stream was changed, CANON_VERSION must count up.
        let body = json!({
            "model": "m", "cache_salt": "s", "reasoning_effort": "low", "tools": [{"name": "t"}],
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "u".repeat(300)}],
        });
        let chain = chat_value(&body);
        assert_eq!((CANON_VERSION, chain.bytes), (1, 366));
        assert_eq!(chain.seed, 7_650_980_573_684_028_615);
        assert_eq!(chain.blocks, [12_921_791_327_006_499_556]);
        assert_eq!(chain.tail, 2_433_942_728_351_526_151);
    }

    #[test]
    fn the_bytes_of_tools_matter() {
        let with_tool = |tool: &str| chat(&format!(r#"{{"model":"m","tools":[{tool}],"messages":[]}}"#));
        assert_eq!(with_tool(r#"{"a":1}"#), with_tool(r#"{"a":1}"#));
        assert_ne!(with_tool(r#"{"a":1}"#), with_tool(r#"{"a": 1}"#));
        assert_ne!(with_tool(r#"{"a":1,"b":2}"#), with_tool(r#"{"b":2,"a":1}"#));
    }

    #[test]
    fn tools_come_before_messages_wherever_they_are_in_the_document() {
        let tool = "t".repeat(1000);
        let early = format!(r#"{{"model":"m","tools":["{tool}"],"messages":[{{"role":"user","content":"a"}}]}}"#);
        let late = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"b"}}],"tools":["{tool}"]}}"#);
        assert_eq!(shared(&chat(&early), &chat(&late)), 3);
    }

    #[test]
    fn the_order_of_a_contents_parts_matters() {
        let (one, two) =
            (json!({"type": "text", "text": "one"}), json!({"type": "image_url", "image_url": {"url": "x"}}));
        let body = |parts: [&Value; 2]| json!({"model": "m", "messages": [{"role": "user", "content": parts}]});
        assert_ne!(chat_value(&body([&one, &two])), chat_value(&body([&two, &one])));
    }

    #[test]
    fn where_one_segment_ends_and_the_next_begins_matters() {
        let body = |texts: [&str; 2]| {
            let parts = texts.map(|text| json!({"type": "text", "text": text}));
            json!({"model": "m", "messages": [{"role": "user", "content": parts}]})
        };
        assert_ne!(chat_value(&body(["ab", "c"])), chat_value(&body(["a", "bc"])));
    }

    #[test]
    fn a_longer_text_keeps_the_blocks_of_what_it_starts_with() {
        let document = "d".repeat(10_000);
        let asked = |question: &str| chat_value(&conversation(&[format!("{document}{question}")]));
        let (short, long) = (asked("Who?"), asked("Who was it, and why did nobody see it coming?"));
        assert_eq!(shared(&short, &long), 10_000 / 256);
        let prompt = |text: &str| chain_of(Operation::Completions, &json!({"model": "m", "prompt": text}).to_string());
        assert_eq!(shared(&prompt(&document), &prompt(&document.repeat(2))), 10_000 / 256);
    }

    #[test]
    fn media_count_by_their_hash() {
        let body = |url: &str| {
            let part = json!({"type": "image_url", "image_url": {"url": url}});
            json!({"model": "m", "messages": [{"role": "user", "content": [part]}]})
        };
        let (one, other) = (chat_value(&body(&"a".repeat(100_000))), chat_value(&body(&"b".repeat(100_000))));
        assert_ne!(one, other);
        assert!(one.bytes < 100);
    }

    #[test]
    fn token_ids_count_by_their_values() {
        let body = |prompt: &str| chain_of(Operation::Completions, &format!(r#"{{"model":"m","prompt":{prompt}}}"#));
        assert_eq!(body("[1,22,333]"), body("[ 1,\n22 , 333 ]"));
        assert_ne!(body("[1,22,333]"), body("[1,2,2333]"));
        assert_eq!(body("[1,22,333]").bytes, 3 * 4 + 5);
    }

    #[test]
    fn a_nonce_at_the_head_of_a_system_text_makes_no_difference() {
        let said = |role: &str, text: &str| json!({"model": "m", "messages": [{"role": role, "content": text}]});
        let line = |nonce: &str| format!("x-anthropic-billing-header: cc_version=2.1; cch={nonce};\nYou are an agent.");
        let chain = |role: &str, nonce: &str| chat_value(&said(role, &line(nonce)));
        assert_eq!(chain("system", "1"), chain("system", "22"));
        assert_eq!(chain("developer", "1"), chain("developer", "22"));
        assert_ne!(chain("user", "1"), chain("user", "22"));
    }

    #[test]
    fn no_more_than_256_bytes_are_masked() {
        let head = b"x-anthropic-billing-header:";
        let text = [head.as_slice(), &[b'a'; 300]].concat();
        assert_eq!(without_volatile_head(&text).len(), text.len() - 256);
        assert_eq!(without_volatile_head(head), b"");
        assert_eq!(without_volatile_head(b"x-anthropic-billing-header: 1\nrest"), b"\nrest");
        assert_eq!(without_volatile_head(b" x-anthropic-billing-header: 1"), b" x-anthropic-billing-header: 1");
    }

    #[test]
    fn the_scope_and_the_salt_make_the_seed() {
        let seed = |scope: PrefixScope<'_>, salt: Option<&[u8]>| scope.seed(salt);
        let seeds = [
            seed(SCOPE, None),
            seed(SCOPE, Some(b"")),
            seed(SCOPE, Some(b"s")),
            seed(PrefixScope { tenant: Some("s"), ..SCOPE }, None),
            seed(PrefixScope { model: "llama2", ..SCOPE }, None),
            seed(PrefixScope { pool: "default/vl", model: "lmllama", ..SCOPE }, None),
        ];
        for (index, seed) in seeds.iter().enumerate() {
            assert!(!seeds[..index].contains(seed), "{index}");
        }
        let salted = |salt: &str| chat(&format!(r#"{{"model":"m","cache_salt":"{salt}","messages":[]}}"#));
        assert_ne!(salted("a").seed, salted("b").seed);
        assert_eq!(salted("a").bytes, 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn a_conversation_that_grows_keeps_its_blocks(turns in prop::collection::vec("[a-zé\"\\\\\n ]{0,900}", 1..12), cut in 1_usize..12) {
            let whole = chat_value(&conversation(&turns));
            let earlier = chat_value(&conversation(&turns[..cut.min(turns.len())]));
            prop_assert!(whole.blocks.starts_with(&earlier.blocks));
        }

        #[test]
        fn pretty_printing_makes_no_difference(turns in prop::collection::vec("\\PC{0,300}", 1..6)) {
            let body = conversation(&turns);
            prop_assert_eq!(chat(&serde_json::to_string_pretty(&body).unwrap()), chat_value(&body));
        }
    }
}
