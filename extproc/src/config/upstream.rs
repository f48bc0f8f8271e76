//! What an upstream is sent that is not the client's: the key to it, the headers and fields that the operator sets or removes,
//! and the path under which it serves.

use std::fmt;
use std::sync::Arc;

use attache_proto::fields::FieldEdits;
use attache_proto::{Dialect, Operation};

use super::model::ObjectName;

/// The API that a backend serves, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// The schema of its requests and answers.
    pub schema: Schema,
    /// What stands in the place of `/v1` there: with a leading slash and none at the end, or empty.
    pub prefix: Arc<str>,
}

/// The schemas that are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    /// OpenAI's, and whatever else a server that speaks it serves besides, as vLLM does Anthropic's messages.
    OpenAi,
    /// Anthropic's messages and nothing else.
    Anthropic,
}

/// Where clients call, and where servers serve unless a schema says otherwise.
const DEFAULT_PREFIX: &str = "/v1";

impl Default for Api {
    fn default() -> Self {
        Self { schema: Schema::OpenAi, prefix: Arc::from(DEFAULT_PREFIX) }
    }
}

impl Api {
    /// Whether the operation is served there. What a route passes through, it passes to whoever serves it.
    pub fn serves(&self, operation: Operation) -> bool {
        match self.schema {
            Schema::OpenAi => true,
            Schema::Anthropic => operation.dialect() == Dialect::Anthropic || operation == Operation::PassThrough,
        }
    }

    /// The path to ask for there, where that is not the one that was called. `path_prefix` is our own, which the proxy takes off.
    pub fn path(&self, operation: Operation, called: &str, path_prefix: &str) -> Option<String> {
        let at_server = operation.path_for_server(called, path_prefix);
        let path = at_server.as_deref().unwrap_or(called);
        let rest = path
            .strip_prefix(path_prefix)
            .and_then(|path| path.strip_prefix(DEFAULT_PREFIX))
            .filter(|rest| rest.starts_with('/'));
        match rest {
            Some(rest) if &*self.prefix != DEFAULT_PREFIX => Some(format!("{path_prefix}{}{rest}", self.prefix)),
            _ => at_server,
        }
    }
}

impl Schema {
    /// As documents write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "OpenAI",
            Self::Anthropic => "Anthropic",
        }
    }
}

/// By which field answers of chats are bounded, where their requests have no bound and a limit needs one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AnswerBound {
    /// By the one that fits the model and its server, as far as is known.
    #[default]
    Fitting,
    /// `max_tokens`, unless its server refuses that.
    MaxTokens,
    /// `max_completion_tokens`, unless its server refuses that.
    MaxCompletionTokens,
    /// None is added to any request: its server takes none.
    None,
}

impl AnswerBound {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Fitting, Self::MaxTokens, Self::MaxCompletionTokens, Self::None];

    /// As documents write it.
    pub const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Fitting => None,
            Self::MaxTokens => Some("max_tokens"),
            Self::MaxCompletionTokens => Some("max_completion_tokens"),
            Self::None => Some("none"),
        }
    }
}

/// Changes to a request on its way to an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mutation {
    /// Of its headers.
    pub headers: HeaderEdits,
    /// Of the top-level fields of its body, where that is a JSON object.
    pub body: FieldEdits,
}

impl Mutation {
    /// These changes where `closer` has none of the same header or field.
    #[must_use]
    pub fn overruled_by(&self, closer: &Self) -> Self {
        Self { headers: self.headers.overruled_by(&closer.headers), body: self.body.overruled_by(&closer.body) }
    }
}

/// Headers to set and to remove. Shown by names alone: values may be keys.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct HeaderEdits {
    set: Vec<(Arc<str>, Arc<str>)>,
    remove: Vec<Arc<str>>,
}

impl HeaderEdits {
    /// Sets a header, by its name in lower case, in the place of what was to become of it before.
    pub fn set(&mut self, name: &Arc<str>, value: Arc<str>) {
        self.forget(name);
        self.set.push((Arc::clone(name), value));
    }

    /// Removes a header, in the place of what was to become of it before.
    pub fn remove(&mut self, name: &Arc<str>) {
        self.forget(name);
        self.remove.push(Arc::clone(name));
    }

    /// Names and values of what is set.
    pub fn to_set(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.set.iter().map(|(name, value)| (name, value))
    }

    /// Names of what is removed.
    pub fn to_remove(&self) -> impl Iterator<Item = &Arc<str>> {
        self.remove.iter()
    }

    fn overruled_by(&self, closer: &Self) -> Self {
        let mut all = self.clone();
        closer.to_remove().for_each(|name| all.remove(name));
        closer.to_set().for_each(|(name, value)| all.set(name, Arc::clone(value)));
        all
    }

    fn forget(&mut self, name: &str) {
        self.set.retain(|(other, _)| &**other != name);
        self.remove.retain(|other| &**other != name);
    }
}

impl fmt::Debug for HeaderEdits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.set.iter().map(|(name, _)| name).collect();
        f.debug_struct("HeaderEdits").field("set", &names).field("remove", &self.remove).finish()
    }
}

/// The key to a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// None is asked for.
    NotNeeded,
    /// This one.
    Known(Credential),
    /// There is to be one, and it is not known: nothing is sent there without it.
    Unknown,
}

/// A key and the header that it goes in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The BackendSecurityPolicy that asks for it.
    pub policy: ObjectName,
    /// How it is sent.
    pub scheme: KeyScheme,
    /// The key.
    pub key: ApiKey,
}

/// How a key is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyScheme {
    /// `authorization: Bearer KEY`
    Bearer,
    /// `x-api-key: KEY`, as Anthropic wants it.
    XApiKey,
    /// `api-key: KEY`, as Azure wants it.
    ApiKey,
}

impl Credential {
    /// The header's name, and its value, which is not to be shown.
    pub fn header(&self) -> (&'static str, Arc<str>) {
        match self.scheme {
            KeyScheme::Bearer => ("authorization", Arc::from(format!("Bearer {}", self.key.0))),
            KeyScheme::XApiKey => ("x-api-key", Arc::clone(&self.key.0)),
            KeyScheme::ApiKey => ("api-key", Arc::clone(&self.key.0)),
        }
    }
}

/// A key to an upstream. It can stand in a header, and is shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(Arc<str>);

/// Why a text is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAKey {
    /// There is nothing in it.
    #[error("it is empty")]
    Empty,
    /// It would not fit a header.
    #[error("it is longer than {MAX_KEY_BYTES} bytes")]
    TooLong,
    /// It cannot stand in a header.
    #[error("it has a character that cannot stand in a header, or a space within")]
    NotVisible,
}

/// Above the longest tokens that providers give out; below what Envoy takes as headers together, which is 60 KiB.
pub(super) const MAX_KEY_BYTES: usize = 8 * 1024;

impl ApiKey {
    /// The key in a text, which may end in a line break, as files do.
    ///
    /// # Errors
    /// [`NotAKey`] for what cannot be sent.
    pub fn parse(text: &[u8]) -> Result<Self, NotAKey> {
        match text.trim_ascii() {
            [] => Err(NotAKey::Empty),
            key if key.len() > MAX_KEY_BYTES => Err(NotAKey::TooLong),
            key => match std::str::from_utf8(key) {
                Ok(key) if key.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Self(Arc::from(key))),
                _ => Err(NotAKey::NotVisible),
            },
        }
    }

    /// For a fingerprint alone.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_by_nothing_that_holds_it() {
        let key = ApiKey::parse(b"  sk-hidden\r\n").unwrap();
        let policy = ObjectName { namespace: Arc::from("default"), name: Arc::from("p") };
        let credential = Credential { policy, scheme: KeyScheme::Bearer, key };
        assert_eq!(credential.header(), ("authorization", Arc::from("Bearer sk-hidden")));
        let mut headers = HeaderEdits::default();
        headers.set(&Arc::from("x-token"), Arc::from("sk-hidden"));
        let mutation = Mutation { headers, ..Mutation::default() };
        let shown = format!("{:?} {mutation:?}", Credentials::Known(credential));
        assert!(shown.contains("x-token") && !shown.contains("sk-hidden"), "{shown}");
    }

    #[test]
    fn what_cannot_stand_in_a_header_is_no_key() {
        let wrong = |text: &[u8]| ApiKey::parse(text).unwrap_err();
        assert_eq!(wrong(b""), NotAKey::Empty);
        assert_eq!(wrong(b" \n"), NotAKey::Empty);
        for text in [&b"a b"[..], b"a\nb", b"a\0", "schl\u{fc}ssel".as_bytes(), b"\xff"] {
            assert_eq!(wrong(text), NotAKey::NotVisible);
        }
        assert_eq!(wrong(&[b'a'; MAX_KEY_BYTES + 1]), NotAKey::TooLong);
    }

    #[test]
    fn a_prefix_takes_the_place_of_v1_and_the_query_stays() {
        let chat = |prefix: &str, path: &str, path_prefix: &str| {
            let api = Api { prefix: Arc::from(prefix), ..Api::default() };
            api.path(Operation::ChatCompletions, path, path_prefix)
        };
        let called = "/v1/chat/completions?a=/v1/b";
        assert_eq!(chat("/v1", called, ""), None);
        assert_eq!(chat("/v1beta/openai", called, "").unwrap(), "/v1beta/openai/chat/completions?a=/v1/b");
        assert_eq!(chat("", called, "").unwrap(), "/chat/completions?a=/v1/b");
        // Ours stays in front: the proxy takes it off.
        assert_eq!(chat("/api/v3", "/v1/v1/chat/completions", "/v1").unwrap(), "/v1/api/v3/chat/completions");
        assert_eq!(chat("/v2", "/v1beta/x", ""), None);
    }

    #[test]
    fn a_mounted_path_is_asked_for_under_the_prefix() {
        let api = Api { schema: Schema::Anthropic, prefix: Arc::from("/claude") };
        let path = |called: &str| api.path(Operation::Messages, called, "/gw");
        assert_eq!(path("/gw/anthropic/v1/messages?beta=true").unwrap(), "/gw/claude/messages?beta=true");
        assert_eq!(path("/gw/v1/messages").unwrap(), "/gw/claude/messages");
        let api = Api { schema: Schema::Anthropic, ..Api::default() };
        assert_eq!(api.path(Operation::Messages, "/anthropic/v1/messages", "").unwrap(), "/v1/messages");
        assert!(api.serves(Operation::Messages) && !api.serves(Operation::ChatCompletions));
    }

    #[test]
    fn the_closer_change_of_a_header_overrules_the_other() {
        let name = |text: &str| Arc::<str>::from(text);
        let (mut far, mut near) = (HeaderEdits::default(), HeaderEdits::default());
        far.set(&name("a"), name("1"));
        far.set(&name("b"), name("1"));
        far.remove(&name("c"));
        near.remove(&name("a"));
        near.set(&name("c"), name("2"));
        let both = far.overruled_by(&near);
        let set: Vec<_> = both.to_set().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!((set, both.remove), (vec!["b=1".to_owned(), "c=2".to_owned()], vec![name("a")]));
    }
}
