//! What the gate is told: versioned JSON that the sidecar renders and the filter reads.
//!
//! Nothing that opens the gate has a default: a truncated or misspelt configuration is an error, never an open door.

use std::collections::BTreeMap;

use attache_proto::pass_through::PatternError;
use serde::{Deserialize, Serialize};

use crate::digest::KeyDigest;

/// The version of the JSON that this code writes and reads. It counts up when an older filter would misread a newer
/// configuration.
pub const CONFIG_VERSION: u32 = 1;

/// The gate's configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateConfig {
    /// [`CONFIG_VERSION`].
    pub version: u32,
    /// What stands before `/v1/...` in every path: empty, or `/like/this`, without a slash at its end.
    #[serde(default)]
    pub path_prefix: String,
    /// The most bytes that all header names and values of a request may have together, pseudo-headers included.
    #[serde(default = "default_max_header_bytes")]
    pub max_header_bytes: u64,
    /// The most bytes that `content-length` may declare.
    #[serde(default = "default_max_body_bytes")]
    pub max_body_bytes: u64,
    /// Who may come in.
    pub access: Access,
    /// For each model name, the routes that serve it.
    #[serde(default)]
    pub models: BTreeMap<String, Vec<String>>,
    /// For each path that passes through, as [`attache_proto::pass_through::PathPattern`] is written, the routes that name it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pass_through: BTreeMap<String, Vec<String>>,
    /// With which status a key is refused that is not attached to what it calls.
    #[serde(default, skip_serializing_if = "UnattachedStatus::is_unauthorized")]
    pub unattached_status: UnattachedStatus,
    /// When the filter answers what it refuses; nothing that the sidecar looks at.
    #[serde(default, skip_serializing_if = "AnswerTime::is_at_once")]
    pub answers: AnswerTime,
    /// What the filter does with a key of which it does not know that it may come in; nothing that the sidecar looks at.
    #[serde(default, skip_serializing_if = "UnknownKeys::is_ask")]
    pub unknown_keys: UnknownKeys,
}

/// What becomes of a request in the filter that its documents refuse: they may be older than the sidecar's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownKeys {
    /// It goes on to the sidecar, which decides.
    #[default]
    Ask,
    /// It is refused.
    Refuse,
}

impl UnknownKeys {
    fn is_ask(&self) -> bool {
        *self == Self::Ask
    }
}

/// The status of an answer to a key that is known, but not attached to what it calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnattachedStatus {
    /// 401, as gateways answer that do not tell apart whom they do not know and whom they do not let in.
    #[default]
    Unauthorized,
    /// 403, as HTTP has it for credentials that are known and do not suffice (RFC 9110, section 15.5.4).
    Forbidden,
}

impl UnattachedStatus {
    fn is_unauthorized(&self) -> bool {
        *self == Self::Unauthorized
    }
}

/// When the filter answers a request that it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerTime {
    /// As soon as it has the headers. Envoy then closes an HTTP/1.1 connection whose request has a body, since it has not read it.
    #[default]
    AtOnce,
    /// When the body has come in, if it is a small one ([`crate::BodyWait`]), so that the connection can be used again. Only
    /// where the plugin's `allow_on_headers_stop_iteration` is true: otherwise Envoy gives the filter no body to wait for, and
    /// such a request has no answer before a timeout.
    AfterBody,
}

impl AnswerTime {
    fn is_at_once(&self) -> bool {
        *self == Self::AtOnce
    }
}

/// Who may come in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Everybody: there is no ClientKey, so no key is demanded.
    Open,
    /// Who shows one of these keys. An empty list admits nobody, as is right when the only ClientKey is invalid.
    Keys(Vec<KeyEntry>),
}

/// One ClientKey.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// The ClientKey's `namespace/name`.
    pub id: String,
    /// The digest of the key.
    pub sha256: KeyDigest,
    /// The digests of further keys of the same caller, while one takes the place of another.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<KeyDigest>,
    /// Whose key it is.
    pub tenant: String,
    /// The routes (`namespace/name`) that it may call, each written out.
    pub routes: Vec<String>,
    /// What token limits count by besides the key and the tenant; nothing that the gate looks at.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// How much the caller's requests matter where tokens get scarce; nothing that the gate looks at.
    #[serde(default, skip_serializing_if = "KeyPriority::is_normal")]
    pub priority: KeyPriority,
    /// The last moment at which it may come in, in milliseconds since 1970; without one there is no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after_ms: Option<u64>,
    /// Whether it may not come in for now.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disabled: bool,
}

impl KeyEntry {
    /// A key without labels, of normal priority and without an end.
    pub fn new(id: String, sha256: KeyDigest, tenant: String, routes: Vec<String>) -> Self {
        Self {
            id,
            sha256,
            also: Vec::new(),
            tenant,
            routes,
            labels: BTreeMap::new(),
            priority: KeyPriority::Normal,
            not_after_ms: None,
            disabled: false,
        }
    }

    /// All digests by which it is known.
    pub(crate) fn digests(&self) -> impl Iterator<Item = KeyDigest> {
        std::iter::once(self.sha256).chain(self.also.iter().copied())
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

/// How much a caller's requests matter where tokens get scarce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyPriority {
    /// It may use all of a limit.
    #[default]
    Normal,
    /// It may use a share of a limit, so that the rest is there for others.
    Low,
}

impl KeyPriority {
    fn is_normal(&self) -> bool {
        *self == Self::Normal
    }
}

impl GateConfig {
    /// The default of [`GateConfig::max_header_bytes`], 48 KiB: below the 60 KiB at which Envoy itself answers 431, and
    /// without JSON (`max_request_headers_kb`).
    pub const DEFAULT_MAX_HEADER_BYTES: u64 = 48 * 1024;
    /// The default of [`GateConfig::max_body_bytes`], 32 MiB: what Anthropic takes, and more than the 25 MiB of OpenAI's audio.
    pub const DEFAULT_MAX_BODY_BYTES: u64 = 32 * 1024 * 1024;

    /// A configuration with the default bounds, no prefix and no models, whose refusals are answered at once.
    pub fn new(access: Access) -> Self {
        Self {
            version: CONFIG_VERSION,
            path_prefix: String::new(),
            max_header_bytes: Self::DEFAULT_MAX_HEADER_BYTES,
            max_body_bytes: Self::DEFAULT_MAX_BODY_BYTES,
            access,
            models: BTreeMap::new(),
            pass_through: BTreeMap::new(),
            unattached_status: UnattachedStatus::Unauthorized,
            answers: AnswerTime::AtOnce,
            unknown_keys: UnknownKeys::Ask,
        }
    }

    /// Reads the JSON that [`Serialize`] writes.
    ///
    /// # Errors
    /// [`ConfigError::Version`] or [`ConfigError::Json`]; what only the values can get wrong is found by
    /// [`crate::Gate::new`].
    pub fn from_json(json: &[u8]) -> Result<Self, ConfigError> {
        // The version first: of a newer configuration, an unknown field is not the news.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = read(json)?;
        check_version(version)?;
        read(json)
    }

    /// Checks what the types do not.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check_version(self.version)?;
        let prefix = self.path_prefix.as_str();
        let is_path = prefix.starts_with('/')
            && !prefix.ends_with('/')
            && prefix.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#'));
        if !prefix.is_empty() && !is_path {
            return Err(ConfigError::PathPrefix { value: prefix.to_owned() });
        }
        for (field, value) in [("max_header_bytes", self.max_header_bytes), ("max_body_bytes", self.max_body_bytes)] {
            if value == 0 {
                return Err(ConfigError::Zero { field });
            }
        }
        let Access::Keys(keys) = &self.access else { return Ok(()) };
        for (index, key) in keys.iter().enumerate() {
            for (field, value) in [("id", &key.id), ("tenant", &key.tenant)] {
                if !is_header_value(value) {
                    return Err(ConfigError::NotAHeaderValue {
                        field: format!("access.keys[{index}].{field}"),
                        value: value.clone(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Why a configuration cannot be used. The text names the field and the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or not of this shape.
    #[error("gate configuration, field `{field}`: {reason}")]
    Json {
        /// The path to the field, `access.keys[3].sha256`; `.` is the whole document.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Written for another filter than this one.
    #[error(
        "gate configuration, field `version`: {found} is not {CONFIG_VERSION}; use the filter and the sidecar of one release"
    )]
    Version {
        /// The version found.
        found: u32,
    },
    /// Not a prefix of paths.
    #[error("gate configuration, field `path_prefix`: `{value}` must be empty, or start with / and not end with one")]
    PathPrefix {
        /// The value found.
        value: String,
    },
    /// A bound of zero would refuse everything.
    #[error("gate configuration, field `{field}`: must be above 0")]
    Zero {
        /// The field's name.
        field: &'static str,
    },
    /// Goes into a header, but must not.
    #[error("gate configuration, field `{field}`: {value:?} must be non-empty text without control characters")]
    NotAHeaderValue {
        /// The path to the field.
        field: String,
        /// The value found.
        value: String,
    },
    /// Not a pattern of paths.
    #[error("gate configuration, field `pass_through`: {0}")]
    PassThrough(#[from] PatternError),
    /// One key with two owners: which of them is charged would be chance.
    #[error("gate configuration, field `access.keys`: `{first}` and `{second}` have the same sha256; remove one")]
    SameKeyTwice {
        /// The id of the first.
        first: String,
        /// The id of the second.
        second: String,
    },
}

fn read<'de, T: Deserialize<'de>>(json: &'de [u8]) -> Result<T, ConfigError> {
    let invalid = |field: String, reason: serde_json::Error| ConfigError::Json { field, reason: reason.to_string() };
    let mut json = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        // Where the text is no JSON, the path ends at some field that is not at fault; line and column say where it broke.
        let is_json = error.inner().is_data();
        let field = if is_json { error.path().to_string() } else { ".".to_owned() };
        invalid(field, error.into_inner())
    })?;
    json.end().map_err(|error| invalid(".".to_owned(), error))?;
    Ok(value)
}

fn check_version(found: u32) -> Result<(), ConfigError> {
    if found == CONFIG_VERSION { Ok(()) } else { Err(ConfigError::Version { found }) }
}

/// Stricter than RFC 9110's field-value, which allows tabs inside and octets above 127: anything that Envoy would refuse
/// or a log would garble has no place in a name.
fn is_header_value(value: &str) -> bool {
    !value.is_empty() && value.trim() == value && !value.chars().any(char::is_control)
}

const fn default_max_header_bytes() -> u64 {
    GateConfig::DEFAULT_MAX_HEADER_BYTES
}

const fn default_max_body_bytes() -> u64 {
    GateConfig::DEFAULT_MAX_BODY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gate;

    const SHA: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn keys() -> Vec<KeyEntry> {
        let routes = vec!["default/unified".to_owned()];
        vec![KeyEntry::new("default/app-a".to_owned(), KeyDigest::of(b"abc"), "acme".to_owned(), routes)]
    }

    fn error_of(json: &str) -> String {
        GateConfig::from_json(json.as_bytes()).and_then(Gate::new).unwrap_err().to_string()
    }

    #[test]
    fn the_json_is_what_the_documentation_shows() {
        let mut config = GateConfig::new(Access::Keys(keys()));
        config.models.insert("chat".to_owned(), vec!["default/unified".to_owned()]);
        let json = format!(
            r#"{{"version":1,"path_prefix":"","max_header_bytes":49152,"max_body_bytes":33554432,"access":{{"keys":[{{"id":"default/app-a","sha256":"{SHA}","tenant":"acme","routes":["default/unified"]}}]}},"models":{{"chat":["default/unified"]}}}}"#
        );
        assert_eq!(serde_json::to_string(&config).unwrap(), json);
        assert_eq!(GateConfig::from_json(json.as_bytes()), Ok(config));
    }

    #[test]
    fn an_open_gate_must_say_so() {
        let json = br#"{"version":1,"access":"open"}"#;
        assert_eq!(GateConfig::from_json(json), Ok(GateConfig::new(Access::Open)));
        assert_eq!(
            error_of(r#"{"version":1}"#),
            "gate configuration, field `.`: missing field `access` at line 1 column 13"
        );
    }

    #[test]
    fn a_wrong_value_is_reported_with_the_path_to_its_field() {
        let key = |id: &str, sha: &str, tenant: &str| {
            format!(
                r#"{{"version":1,"access":{{"keys":[{{"id":"{id}","sha256":"{sha}","tenant":"{tenant}","routes":[]}}]}}}}"#
            )
        };
        let cases = [
            ("".to_owned(), "field `.`: EOF while parsing"),
            ("\u{0}".to_owned(), "field `.`: expected value"),
            ("[]".to_owned(), "field `.`: "),
            (r#"{"version":1,"#.to_owned(), "field `.`: EOF while parsing"),
            (r#"{"version":1,"access":opn}"#.to_owned(), "field `.`: expected"),
            (r#"{"version":1,"access":"open"} x"#.to_owned(), "field `.`: trailing characters"),
            (r#"{"access":"open"}"#.to_owned(), "field `.`: missing field `version`"),
            (r#"{"version":"1"}"#.to_owned(), "field `version`: invalid type: string"),
            (r#"{"version":2,"novelty":1}"#.to_owned(), "field `version`: 2 is not 1"),
            (r#"{"version":1,"access":"shut"}"#.to_owned(), "field `access`: unknown variant `shut`"),
            (r#"{"version":1,"access":"open","acess":1}"#.to_owned(), "field `acess`: unknown field"),
            (
                r#"{"version":1,"access":"open","max_body_bytes":-1}"#.to_owned(),
                "field `max_body_bytes`: invalid value: integer `-1`",
            ),
            (
                r#"{"version":1,"access":"open","max_body_bytes":0}"#.to_owned(),
                "field `max_body_bytes`: must be above 0",
            ),
            (
                r#"{"version":1,"access":"open","max_header_bytes":0}"#.to_owned(),
                "field `max_header_bytes`: must be above 0",
            ),
            (
                r#"{"version":1,"access":"open","models":{"a":[7]}}"#.to_owned(),
                "field `models.a[0]`: invalid type: integer `7`",
            ),
            (key("a", "sk-oops", "t"), "field `access.keys[0].sha256`: a SHA-256 is 64 hexadecimal digits"),
            (key("", SHA, "t"), r#"field `access.keys[0].id`: "" must be"#),
            (key("a", SHA, r"x\r\ny: z"), r#"field `access.keys[0].tenant`: "x\r\ny: z" must be"#),
            (key("a", SHA, " t"), r#"field `access.keys[0].tenant`: " t" must be"#),
        ];
        for (json, expected) in cases {
            let error = error_of(&json);
            assert!(error.contains(expected), "{json}\n{error}\n{expected}");
            assert!(!error.contains("sk-oops"), "{error}");
        }
    }

    #[test]
    fn a_path_prefix_starts_with_a_slash_and_does_not_end_with_one() {
        for (prefix, good) in [
            ("", true),
            ("/gw", true),
            ("/enterpriseai/gateway", true),
            ("/", false),
            ("gw", false),
            ("/gw/", false),
            ("/g w", false),
            ("/gw?x", false),
            ("/gw#x", false),
            ("/gé", false),
        ] {
            let mut config = GateConfig::new(Access::Open);
            config.path_prefix = prefix.to_owned();
            let expected = if good { Ok(()) } else { Err(ConfigError::PathPrefix { value: prefix.to_owned() }) };
            assert_eq!(Gate::new(config).map(drop), expected);
        }
    }

    #[test]
    fn one_key_with_two_owners_is_refused() {
        let mut twice = keys();
        twice.push(KeyEntry { id: "default/app-b".to_owned(), ..keys()[0].clone() });
        assert_eq!(
            Gate::new(GateConfig::new(Access::Keys(twice))).unwrap_err(),
            ConfigError::SameKeyTwice { first: "default/app-a".to_owned(), second: "default/app-b".to_owned() }
        );
    }
}
