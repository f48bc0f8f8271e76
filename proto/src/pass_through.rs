//! Paths that a route passes through besides the operations that we know: `/classify`, `POST /v1/custom/*`.
//!
//! They are matched to the byte, as the paths of operations are. Below a `/*` nothing passes that a server might read as
//! another path: no percent-escapes, no `.` or `..`, no empty segments, no path parameters.

use std::fmt;
use std::str::FromStr;

use crate::operation::Operation;

/// Which requests pass through. Written as a path, with a method before it unless all methods do, and `/*` at its end where it
/// stands for all paths below: as in the Gateway API, a match without a method is one on every method.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathPattern {
    method: Option<&'static str>,
    /// Without the `*`.
    path: String,
    extent: Extent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Extent {
    /// The path itself.
    Exact,
    /// Everything below it, and not itself.
    Below,
}

/// What a request is for a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathMatch {
    /// It passes through.
    Full,
    /// The path would, with this method.
    OtherMethod {
        /// The method.
        allow: &'static str,
    },
    /// The path is another one.
    None,
}

/// The methods that pass through. `CONNECT` is a tunnel, and `TRACE` shows a client what it did not send.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

impl PathPattern {
    /// What a request of `method path` is for it. `path` is the request's `:path`, query included, behind the `prefix` of all
    /// paths.
    pub fn matches(&self, method: &str, path: &str, prefix: &str) -> PathMatch {
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let Some(path) = path.strip_prefix(prefix) else { return PathMatch::None };
        let is_at = match self.extent {
            Extent::Exact => path == self.path,
            Extent::Below => path.strip_prefix(self.path.as_str()).is_some_and(are_plain_segments),
        };
        match self.method {
            _ if !is_at => PathMatch::None,
            Some(allow) if allow != method => PathMatch::OtherMethod { allow },
            None if !METHODS.contains(&method) => PathMatch::None,
            _ => PathMatch::Full,
        }
    }

    /// The path of an operation of ours that it would hide. Those that lie below another one (`/v1/responses/compact`) may be named: a
    /// route means what else is there, and operations come first.
    fn hides(&self) -> Option<&'static str> {
        let paths = || Operation::ALL.into_iter().flat_map(|operation| operation.paths().iter().copied());
        let is_below = |served: &str| {
            paths().any(|other| {
                served.strip_prefix(other).is_some_and(|rest| rest.starts_with('/') && !rest.contains('{'))
            })
        };
        paths().filter(|served| !is_below(served)).find(|served| {
            // A model's name may be anything, so its path is all that begins as it does.
            let (served, is_open) = served.strip_suffix("{model}").map_or((*served, false), |root| (root, true));
            match self.extent {
                Extent::Exact => self.path == served || is_open && self.path.starts_with(served),
                Extent::Below => served.starts_with(&self.path) || is_open && self.path.starts_with(served),
            }
        })
    }
}

/// Segments that every server reads alike, with a slash after each but the last.
fn are_plain_segments(path: &str) -> bool {
    let is_plain = |segment: &str| {
        let is_unescaped = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()+=:@".contains(&byte);
        !matches!(segment, "" | "." | "..") && segment.bytes().all(is_unescaped)
    };
    // A slash at the end is a path of its own.
    let path = path.strip_suffix('/').unwrap_or(path);
    path.split('/').all(is_plain)
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = self.method {
            write!(f, "{method} ")?;
        }
        f.write_str(&self.path)?;
        match self.extent {
            Extent::Exact => Ok(()),
            Extent::Below => f.write_str("*"),
        }
    }
}

/// Why a text is no pattern. Each says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// A word before the path that is no method.
    #[error("`{0}` is no method here; write one of {methods}, in capitals, or none for all of them", methods = METHODS.join(", "))]
    Method(String),
    /// A path that is none, or that two servers may read differently.
    #[error("`{0}` is no plain path; write `/a/path`, or `/a/path/*` for all below it, without escapes, `.` and `..`")]
    Path(String),
    /// An operation of ours is there.
    #[error("`{pattern}` would hide {served}, which is served here already; name only what is not")]
    Hides {
        /// The pattern.
        pattern: String,
        /// The path that is served.
        served: &'static str,
    },
}

impl FromStr for PathPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let text = text.trim();
        let (method, path) = match text.split_once(char::is_whitespace) {
            Some((method, path)) => {
                let known = METHODS.into_iter().find(|known| *known == method);
                (Some(known.ok_or_else(|| PatternError::Method(method.to_owned()))?), path.trim_start())
            }
            None => (None, text),
        };
        let (path, extent) = match path.strip_suffix("/*") {
            Some(root) => (format!("{root}/"), Extent::Below),
            None => (path.to_owned(), Extent::Exact),
        };
        let is_root = extent == Extent::Below && path == "/";
        if !is_root && !path.strip_prefix('/').is_some_and(are_plain_segments) {
            return Err(PatternError::Path(text.to_owned()));
        }
        let pattern = Self { method, path, extent };
        match pattern.hides() {
            Some(served) => Err(PatternError::Hides { pattern: pattern.to_string(), served }),
            None => Ok(pattern),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> PathPattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_pattern_reads_as_it_is_written() {
        for text in ["/classify", "POST /pooling", "GET /v1/custom/*", "/a/b.c/*", "/x/"] {
            assert_eq!(pattern(text).to_string(), text);
        }
        assert_eq!(pattern("  POST   /pooling ").to_string(), "POST /pooling");
    }

    #[test]
    fn without_a_method_every_method_passes_but_tunnels_and_traces() {
        for method in METHODS {
            assert_eq!(pattern("/classify").matches(method, "/classify", ""), PathMatch::Full);
        }
        for method in ["CONNECT", "TRACE", "get", "BREW", ""] {
            assert_eq!(pattern("/classify").matches(method, "/classify", ""), PathMatch::None, "{method}");
        }
        let post = pattern("POST /classify");
        assert_eq!(post.matches("POST", "/classify", ""), PathMatch::Full);
        assert_eq!(post.matches("GET", "/classify", ""), PathMatch::OtherMethod { allow: "POST" });
        assert_eq!(post.matches("GET", "/other", ""), PathMatch::None);
    }

    #[test]
    fn an_exact_path_is_matched_to_the_byte_and_behind_the_prefix() {
        let classify = pattern("/classify");
        assert_eq!(classify.matches("GET", "/gw/classify?x=/../y", "/gw"), PathMatch::Full);
        for path in
            ["/classify", "/gw/classify/", "/gw/classif", "/gw//classify", "/gw/%63lassify", "/gw/x/../classify"]
        {
            assert_eq!(classify.matches("GET", path, "/gw"), PathMatch::None, "{path}");
        }
    }

    #[test]
    fn below_a_path_nothing_passes_that_a_server_might_read_as_another() {
        let below = pattern("/v1/custom/*");
        for path in
            ["/v1/custom/a", "/v1/custom/a/b.txt?q=..", "/v1/custom/a/", "/v1/custom/...", "/v1/custom/file-1:x@y"]
        {
            assert_eq!(below.matches("GET", path, ""), PathMatch::Full, "{path}");
        }
        for path in [
            "/v1/custom",
            "/v1/custom/",
            "/v1/customs/a",
            "/v1/custom//a",
            "/v1/custom/a//",
            "/v1/custom/..",
            "/v1/custom/../chat/completions",
            "/v1/custom/./a",
            "/v1/custom/%2e%2e/chat/completions",
            "/v1/custom/a%2fb",
            "/v1/custom/..;/chat",
            "/v1/custom/a\\..\\b",
            "/v1/custom/a#b",
            "/v1/custom/é",
        ] {
            assert_eq!(below.matches("GET", path, ""), PathMatch::None, "{path}");
        }
    }

    #[test]
    fn what_is_no_pattern_says_what_to_write() {
        for text in
            ["", "classify", "*", "/", "/a*", "/a/*/b", "/a//b", "/a/../b", "/a%20b", "/a;b", "/a?b", "POST classify"]
        {
            assert_eq!(text.parse::<PathPattern>(), Err(PatternError::Path(text.to_owned())), "{text}");
        }
        for (text, method) in [("post /a", "post"), ("CONNECT /a", "CONNECT"), ("/a /b", "/a")] {
            assert_eq!(text.parse::<PathPattern>(), Err(PatternError::Method(method.to_owned())), "{text}");
        }
    }

    #[test]
    fn no_operation_of_ours_is_hidden() {
        for text in [
            "/v1/chat/completions",
            "GET /v1/embeddings",
            "/v1/*",
            "/v1/audio/*",
            "/anthropic/*",
            "/*",
            "/v1/models/gpt",
            "/v1/models/*",
            "/v1/models/a/*",
            "/tokenize",
        ] {
            assert!(matches!(text.parse::<PathPattern>(), Err(PatternError::Hides { .. })), "{text}");
        }
        // What lies below an operation, or beside it, is not served.
        for text in [
            "/v1/responses/*",
            "/v1/responses/compact",
            "/v1/audio/voices",
            "/v1/files/*",
            "/v1/messages/*",
            "/anthropic/v1/messages/batches",
            "/score/*",
        ] {
            assert!(text.parse::<PathPattern>().is_ok(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_passes_is_no_operation_and_is_its_own_only_reading(path in "/v1/custom/[a-z./%;\\\\?#*]{0,12}") {
            if pattern("/v1/custom/*").matches("GET", &path, "") == PathMatch::Full {
                prop_assert!(Operation::resolve("GET", &path, "").is_err());
                let path = path.split('?').next().unwrap_or_default();
                prop_assert!(!path.contains("//") && !path.contains('%') && !path.contains('\\') && !path.contains(';'));
                prop_assert!(!path.split('/').any(|segment| segment == "." || segment == ".."));
            }
        }

        #[test]
        fn any_text_is_read_without_panic(text in any::<String>()) {
            if let Ok(pattern) = text.parse::<PathPattern>() {
                prop_assert_eq!(pattern.to_string().parse(), Ok(pattern));
            }
        }
    }
}
