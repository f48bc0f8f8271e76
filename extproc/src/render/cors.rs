//! Which web pages may call: CORS, as Envoy's own filter has it (<https://fetch.spec.whatwg.org/#http-cors-protocol>).
//!
//! The filter stands before all others, so that what the filter, the sidecar and Envoy itself refuse can be read by the page that
//! asked. Preflights of origins that are not named go on, and are refused like any other request of a method that is not served;
//! nothing of an answer lets a browser show it to them.

use std::str::FromStr;

use attache_proto::headers::RATE_LIMITS;
use serde_json::{Value, json};

/// The filter's name, by which routes configure it.
pub(super) const FILTER: &str = "envoy.filters.http.cors";

/// Who may call from a browser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cors {
    /// At least one.
    pub origins: Vec<CorsOrigin>,
    /// Whether browsers may send cookies and the like along. Not with [`CorsOrigin::Any`].
    pub credentials: bool,
}

/// An origin, as browsers write it into `origin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CorsOrigin {
    /// `*`: all of them.
    Any,
    /// `https://app.example:8443`.
    One(String),
    /// `https://*.example`: everything below that name.
    Below {
        /// `https`.
        scheme: String,
        /// `example`, with a port if there is one.
        parent: String,
    },
}

/// The text is no origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no origin; write what a browser sends in `origin`, such as https://app.example.com or http://localhost:3000, without a path; \
     https://*.example.com for all names below one; or * for everybody"
)]
pub struct InvalidCorsOrigin(String);

impl FromStr for CorsOrigin {
    type Err = InvalidCorsOrigin;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || InvalidCorsOrigin(text.to_owned());
        if text == "*" {
            return Ok(Self::Any);
        }
        // Browsers write both in lower case.
        let lower = text.to_ascii_lowercase();
        let (scheme, authority) = lower.split_once("://").ok_or_else(invalid)?;
        let is_scheme = scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|number| number != 0));
        let parent = host.strip_prefix("*.");
        let name = parent.unwrap_or(host);
        let is_v6 = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let is_host = match is_v6 {
            Some(address) => parent.is_none() && address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let letters = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
                !name.is_empty() && letters && name.split('.').all(|label| !label.is_empty())
            }
        };
        if !is_scheme || !is_port || !is_host {
            return Err(invalid());
        }
        match (parent, authority.strip_prefix("*.")) {
            (Some(_), Some(parent)) => Ok(Self::Below { scheme: scheme.to_owned(), parent: parent.to_owned() }),
            _ => Ok(Self::One(lower.clone())),
        }
    }
}

/// The filter. What it does stands at the virtual host.
pub(super) fn filter() -> Value {
    json!({
        "# Answers preflights of the origins that the virtual host names, and lets their pages read every answer, refusals too.": null,
        "name": FILTER,
        "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors"},
    })
}

/// The policy of the virtual host.
pub(super) fn policy(cors: &Cors) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy",
        "allow_origin_string_match": cors.origins.iter().map(matcher).collect::<Vec<_>>(),
        "allow_methods": "GET, POST, DELETE",
        "allow_headers": allowed_headers(cors),
        "expose_headers": exposed_headers(),
        "max_age": "600",
        "allow_credentials": cors.credentials,
    })
}

/// What of a model server's own CORS would contradict ours.
pub(super) const OF_UPSTREAMS: [&str; 6] = [
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-allow-methods",
    "access-control-allow-headers",
    "access-control-expose-headers",
    "access-control-max-age",
];

/// What the client libraries send from browsers.
const ALLOWED: [&str; 26] = [
    "authorization",
    "content-type",
    "accept",
    "x-api-key",
    "api-key",
    "x-request-id",
    "idempotency-key",
    "openai-organization",
    "openai-project",
    "openai-beta",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "x-stainless-arch",
    "x-stainless-async",
    "x-stainless-custom-poll-interval",
    "x-stainless-helper",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-poll-helper",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
];

/// What the client libraries read of an answer, besides what pages may read always: what is said of trying again and of the request.
const OF_THE_REQUEST: [&str; 5] = ["retry-after", "retry-after-ms", "x-should-retry", "x-request-id", "request-id"];

/// What OpenAI's servers say.
const OF_THE_MODEL: [&str; 4] = ["openai-model", "openai-organization", "openai-processing-ms", "openai-version"];

fn exposed_headers() -> String {
    OF_THE_REQUEST.into_iter().chain(RATE_LIMITS).chain(OF_THE_MODEL).collect::<Vec<_>>().join(", ")
}

/// A `*` takes all but `authorization`, and with credentials it is a mere name.
fn allowed_headers(cors: &Cors) -> String {
    let any = (!cors.credentials).then_some("*");
    ALLOWED.into_iter().chain(any).collect::<Vec<_>>().join(", ")
}

fn matcher(origin: &CorsOrigin) -> Value {
    match origin {
        CorsOrigin::Any => json!({"exact": "*"}),
        CorsOrigin::One(origin) => json!({"exact": origin}),
        CorsOrigin::Below { scheme, parent } => {
            let regex = format!("{}://([a-z0-9_-]+[.])+{}", regex::escape(scheme), regex::escape(parent));
            json!({"safe_regex": {"regex": regex}})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Result<CorsOrigin, InvalidCorsOrigin> {
        Ok(CorsOrigin::One(text.to_owned()))
    }

    #[test]
    fn origins_are_read_as_browsers_write_them() {
        assert_eq!("https://App.Example.com".parse(), one("https://app.example.com"));
        for origin in [
            "http://localhost:3000",
            "https://[::1]:8443",
            "http://127.0.0.1",
            "chrome-extension://abc",
            "tauri://localhost",
        ] {
            assert_eq!(origin.parse(), one(origin));
        }
        assert_eq!("*".parse(), Ok(CorsOrigin::Any));
        let below = CorsOrigin::Below { scheme: "https".to_owned(), parent: "example.com:8443".to_owned() };
        assert_eq!("https://*.example.com:8443".parse(), Ok(below));
        for wrong in [
            "",
            "null",
            "example.com",
            "https://",
            "https://a/",
            "https://a/b",
            "https://a?b",
            "https://*",
            "https://*.",
            "https://a.*.b",
            "*.example.com",
            "https://a b",
            "https://a:0",
            "https://a:b",
            "https://a:70000",
            "https://a..b",
            "https://*.[::1]",
            "://a",
            "https://u@a",
            "**",
        ] {
            let error = wrong.parse::<CorsOrigin>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{wrong}` is no origin")), "{error}");
        }
    }

    #[test]
    fn what_is_below_a_name_is_not_what_ends_like_it() {
        let matcher = matcher(&"https://*.example.com".parse().unwrap());
        let regex = matcher.pointer("/safe_regex/regex").and_then(Value::as_str).unwrap();
        let regex = regex::Regex::new(&format!("^(?:{regex})$")).unwrap();
        assert!(["https://a.example.com", "https://a.b-c.example.com"].iter().all(|origin| regex.is_match(origin)));
        for hostile in [
            "https://example.com",
            "https://badexample.com",
            "https://a.example.com.evil",
            "https://evil/.example.com",
            "http://a.example.com",
            "https://a.exampleXcom",
            "https://a.example.com:81",
            "https://.example.com",
        ] {
            assert!(!regex.is_match(hostile), "{hostile}");
        }
    }

    #[test]
    fn with_credentials_every_header_is_named() {
        let origins = vec!["https://a.example".parse().unwrap()];
        let headers =
            |credentials| policy(&Cors { origins: origins.clone(), credentials })["allow_headers"].to_string();
        assert!(headers(false).contains("authorization") && headers(false).contains('*'));
        assert!(headers(true).contains("authorization") && !headers(true).contains('*'));
    }
}
