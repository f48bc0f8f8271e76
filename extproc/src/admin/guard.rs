//! Who is shown the admin pages, and who may change something.
//!
//! A browser reaches every address of its machine, and a page from anywhere may have it ask for any name (DNS rebinding): so the name
//! that is asked for must be one that no stranger can own. What was forwarded comes from somebody whom nobody here sees.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use attache_gate::KeyDigest;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::warn;

/// The longest token, in bytes.
const LONGEST_TOKEN_BYTES: u64 = 4096;

/// What the pages demand.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Names by which they may be asked for, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    /// A file whose first line is what callers have to know; read for every request, so that it may change.
    pub token_file: Option<PathBuf>,
}

impl Guard {
    /// The token that is demanded now.
    ///
    /// # Errors
    /// Where there should be one and is none.
    pub fn token(&self) -> io::Result<Option<String>> {
        self.token_file.as_ref().map(|file| first_line(File::open(file)?)).transpose()
    }

    /// # Errors
    /// The answer to whoever is not shown anything.
    fn admits(&self, uri: Option<&Authority>, headers: &HeaderMap) -> Result<(), Refused> {
        let named = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
        if !named.chain(uri.map(Authority::as_str)).all(|host| self.is_ours(host)) {
            return Err(Refused(
                StatusCode::MISDIRECTED_REQUEST,
                "admin pages are asked for by an address or as localhost, or by a name of --admin-host",
            ));
        }
        let token = self.token().map_err(|error| {
            warn!(%error, "admin pages are shown to nobody: --admin-token-file cannot be read");
            Refused(StatusCode::SERVICE_UNAVAILABLE, "the token that admin pages demand cannot be read; see the log")
        })?;
        let Some(token) = token else { return Ok(()) };
        let bearer = |value: &str| {
            value
                .split_once(' ')
                .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))?
                .1
                .trim()
                .to_owned()
                .into()
        };
        let given: Option<String> =
            headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
        // Of both the digests, which are compared in constant time.
        match given.filter(|given| KeyDigest::of(given.as_bytes()) == KeyDigest::of(token.as_bytes())) {
            Some(_) => Ok(()),
            None => Err(Refused(StatusCode::UNAUTHORIZED, "admin pages demand the token of --admin-token-file")),
        }
    }

    fn is_ours(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let is_name = |known: &str| name.eq_ignore_ascii_case(known);
        authority.as_str().find('@').is_none()
            && (address.parse::<IpAddr>().is_ok()
                || is_name("localhost")
                || self.hosts.iter().any(|host| is_name(host)))
    }
}

/// The first line of what should hold a secret.
///
/// # Errors
/// Where that is empty or no text.
pub fn first_line(file: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    file.take(LONGEST_TOKEN_BYTES).read_to_string(&mut text)?;
    match text.lines().next().map(str::trim).filter(|line| !line.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "its first line is empty")),
    }
}

/// Shows a page to whom it is to be shown.
pub(super) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    match guard.admits(request.uri().authority(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// Whether a request is from this machine or pod, and not from a page or from behind a proxy. The error is to complete "not ...".
pub(super) fn stranger(peer: SocketAddr, headers: &HeaderMap) -> Option<Stranger> {
    let is_forwarding = |name: &str| {
        name.starts_with("x-forwarded-")
            || name.starts_with("x-envoy-")
            || matches!(name, "forwarded" | "via" | "x-real-ip" | "x-client-ip" | "true-client-ip" | "cf-connecting-ip")
    };
    // Browsers send one of them with every POST. A page from anywhere may post to a loopback address, and nobody here would notice.
    let is_of_a_page = headers.contains_key(header::ORIGIN)
        || headers.get("sec-fetch-site").is_some_and(|site| site.as_bytes() != b"none");
    if !peer.ip().to_canonical().is_loopback() {
        Some(Stranger::Remote)
    } else if headers.keys().any(|name| is_forwarding(name.as_str())) {
        Some(Stranger::Forwarded)
    } else if is_of_a_page {
        Some(Stranger::Page)
    } else {
        None
    }
}

/// Whose request is not this machine's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stranger {
    /// Another machine's.
    Remote,
    /// Somebody's behind a proxy.
    Forwarded,
    /// A page's in a browser.
    Page,
}

/// Why somebody is shown nothing.
#[derive(Debug, PartialEq, Eq)]
struct Refused(StatusCode, &'static str);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        let mut response = (status, format!("{message}\n")).into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    fn status(guard: &Guard, pairs: &[(&'static str, &'static str)]) -> u16 {
        guard.admits(None, &headers(pairs)).map_or_else(|Refused(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn a_page_is_asked_for_by_an_address_or_a_name_that_no_stranger_can_own() {
        let guard = Guard { hosts: vec!["attache.llm.svc".to_owned()], token_file: None };
        for host in [
            "127.0.0.1:10002",
            "127.0.0.1",
            "[::1]:10002",
            "10.1.2.3:80",
            "localhost:1",
            "LOCALHOST",
            "Attache.llm.svc:10002",
        ] {
            assert_eq!(status(&guard, &[("host", host)]), 200, "{host}");
        }
        let bad = [
            "evil.example:10002",
            "evil.example",
            "127.0.0.1.nip.io",
            "localhost.evil.example",
            "1@127.0.0.1",
            "",
            "a b",
        ];
        for host in bad {
            assert_eq!(status(&guard, &[("host", host)]), 421, "{host}");
        }
        let uri = "evil.example".parse().unwrap();
        assert!(guard.admits(Some(&uri), &headers(&[("host", "127.0.0.1")])).is_err());
    }

    #[test]
    fn a_token_is_demanded_where_there_is_a_file_for_it_and_may_change() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        let guard = Guard { hosts: Vec::new(), token_file: Some(file.clone()) };
        let known = [("authorization", "Bearer one")];
        assert_eq!(status(&guard, &known), 503, "there is no file");
        std::fs::write(&file, " one \nsomething else\n").unwrap();
        let given = |value| status(&guard, &[("authorization", value)]);
        assert_eq!(
            (status(&guard, &[]), given("Bearer two"), given("Basic one"), given("bearer one")),
            (401, 401, 401, 200)
        );
        std::fs::write(&file, "two").unwrap();
        assert_eq!((given("Bearer one"), given("Bearer two")), (401, 200));
        std::fs::write(&file, "\n").unwrap();
        assert_eq!(given("Bearer "), 503);
    }

    #[test]
    fn what_is_forwarded_or_of_a_page_is_not_of_this_machine() {
        let here = "127.0.0.1:5".parse().unwrap();
        assert_eq!(stranger(here, &headers(&[("host", "localhost"), ("sec-fetch-site", "none")])), None);
        assert_eq!(stranger("10.0.0.1:5".parse().unwrap(), &HeaderMap::new()), Some(Stranger::Remote));
        for name in ["x-forwarded-for", "x-forwarded-host", "forwarded", "via", "x-real-ip", "x-envoy-external-address"]
        {
            assert_eq!(stranger(here, &headers(&[(name, "1.2.3.4")])), Some(Stranger::Forwarded), "{name}");
        }
        for (name, value) in [("origin", "null"), ("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-origin")] {
            assert_eq!(stranger(here, &headers(&[(name, value)])), Some(Stranger::Page), "{name}");
        }
    }
}
