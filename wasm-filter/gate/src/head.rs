//! What the gate wants to know of a request's headers, found in one pass and borrowed from them.

use attache_proto::headers;

/// The headers in which a client may present its API key, in lower case. Whoever forwards a request to a model server
/// must not forward these.
pub const CREDENTIAL_HEADERS: [&str; 3] = ["authorization", "x-api-key", "api-key"];

/// The parts of a request's headers that the gate looks at.
///
/// Names are taken in any case. It makes no difference whether a list-valued header comes as one line with commas or as
/// several lines, which is for the proxies before us to choose (RFC 9110, section 5.3).
#[derive(Debug, Clone)]
pub struct RequestHead<'h> {
    method: Field<'h>,
    path: Field<'h>,
    content_length: Field<'h>,
    expects: bool,
    wants_web_socket: bool,
    model: Field<'h>,
    shown: Shown<'h>,
    size_bytes: u64,
    count: usize,
    owned: [bool; headers::OWNED.len()],
}

impl<'h> RequestHead<'h> {
    /// Reads all headers of a request, pseudo-headers (`:method`, `:path`) included.
    pub fn read(headers: impl IntoIterator<Item = (&'h str, &'h [u8])>) -> Self {
        let mut head = Self {
            method: Field::Absent,
            path: Field::Absent,
            content_length: Field::Absent,
            expects: false,
            wants_web_socket: false,
            model: Field::Absent,
            shown: Shown::NONE,
            size_bytes: 0,
            count: 0,
            owned: [false; headers::OWNED.len()],
        };
        for (name, value) in headers {
            head.take(name, value);
        }
        head
    }

    fn take(&mut self, name: &'h str, value: &'h [u8]) {
        self.count = self.count.saturating_add(1);
        // A usize fits into a u64 on every target we have.
        self.size_bytes = self.size_bytes.saturating_add(name.len() as u64).saturating_add(value.len() as u64);
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        let [authorization, key_headers @ ..] = CREDENTIAL_HEADERS;
        if is(":method") {
            self.method.add(value);
        } else if is(":path") {
            self.path.add(value);
        } else if is("content-length") {
            self.content_length.add(value);
        } else if is("expect") {
            self.expects = true;
        } else if is("upgrade") {
            self.wants_web_socket |= elements(value).any(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
        } else if is(authorization) {
            elements(value).for_each(|element| self.take_authorization(element));
        } else if key_headers.into_iter().any(is) {
            elements(value).for_each(|key| self.shown.add(key));
        } else if let Some((_, present)) = headers::OWNED.into_iter().zip(&mut self.owned).find(|(owned, _)| is(owned))
        {
            *present = true;
            if is(headers::MODEL) {
                self.model.add(value);
            }
        }
    }

    /// A scheme other than Bearer is no API key: it may be meant for somebody else, and is passed over.
    fn take_authorization(&mut self, element: &'h [u8]) {
        let Some((scheme, token)) = element.split_at_checked(BEARER.len()) else { return };
        // RFC 9110, section 11.1: the scheme is case-insensitive. RFC 6750, section 2.1: at least one space follows.
        if scheme.eq_ignore_ascii_case(BEARER.as_bytes()) && token.starts_with(b" ") {
            let token = token.trim_ascii();
            if !token.is_empty() {
                self.shown.add(token);
            }
        }
    }

    /// Which of our own headers ([`headers::OWNED`]) the request has.
    pub fn owned_headers(&self) -> impl Iterator<Item = &'static str> + use<> {
        headers::OWNED.into_iter().zip(self.owned).filter_map(|(name, present)| present.then_some(name))
    }

    /// The `:method`; empty, and so no method at all, where it is missing, repeated or not UTF-8.
    pub(crate) fn method(&self) -> &'h str {
        self.method.text().unwrap_or_default()
    }

    /// The `:path` with its query; empty, and so no path at all, where it is missing, repeated or not UTF-8.
    pub(crate) fn path(&self) -> &'h str {
        self.path.text().unwrap_or_default()
    }

    pub(crate) fn content_length(&self) -> ContentLength {
        match self.content_length {
            Field::Absent => ContentLength::Absent,
            Field::Repeated => ContentLength::Repeated,
            Field::Once(value) => decimal(value).map_or(ContentLength::Invalid, ContentLength::Bytes),
        }
    }

    /// Whether the client waits for a word of ours before it sends its body (RFC 9110, section 10.1.1: `100-continue` is all
    /// that there is to expect).
    pub(crate) fn expects(&self) -> bool {
        self.expects
    }

    /// Whether the connection is to become a WebSocket (RFC 6455, section 4.1).
    pub(crate) fn wants_web_socket(&self) -> bool {
        self.wants_web_socket
    }

    /// The model that the client says it will ask for, if it says so once.
    pub(crate) fn model_hint(&self) -> Option<&'h str> {
        self.model.text()
    }

    pub(crate) fn credentials(&self) -> Credentials<impl Iterator<Item = &'h [u8]> + Clone + use<'h>> {
        match self.shown.more {
            true => Credentials::TooMany,
            false => Credentials::Few(self.shown.first.into_iter().flatten()),
        }
    }

    /// How many there are, pseudo-headers included.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The bytes of all names and values together.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

const BEARER: &str = "bearer";

/// What a request says of its body's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentLength {
    /// Nothing: it is chunked, or HTTP/2 without the header, or there is none.
    Absent,
    /// So much; more than can be counted is [`u64::MAX`].
    Bytes(u64),
    /// What is no number.
    Invalid,
    /// Several things.
    Repeated,
}

/// RFC 9110, section 8.6: 1*DIGIT. [`str::parse`] would take a sign as well.
fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, digit| {
        digit.is_ascii_digit().then(|| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
    })
}

/// A header that must not come twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field<'h> {
    Absent,
    Once(&'h [u8]),
    Repeated,
}

impl<'h> Field<'h> {
    fn add(&mut self, value: &'h [u8]) {
        *self = match self {
            Self::Absent => Self::Once(value.trim_ascii()),
            Self::Once(_) | Self::Repeated => Self::Repeated,
        };
    }

    fn text(self) -> Option<&'h str> {
        match self {
            Self::Once(value) => str::from_utf8(value).ok(),
            Self::Absent | Self::Repeated => None,
        }
    }
}

/// The credentials that a request presents, each once.
#[derive(Debug, Clone)]
pub(crate) enum Credentials<I> {
    /// At most [`MOST_CREDENTIALS`], or none.
    Few(I),
    /// More than are looked at.
    TooMany,
}

/// A key of ours and those of proxies and clouds before us. Each is hashed, so there is a bound.
pub(crate) const MOST_CREDENTIALS: usize = 4;

/// The first credentials that differ. The same key in two headers, as some client libraries send it, is one.
#[derive(Debug, Clone, Copy)]
struct Shown<'h> {
    first: [Option<&'h [u8]>; MOST_CREDENTIALS],
    more: bool,
}

impl<'h> Shown<'h> {
    const NONE: Self = Self { first: [None; MOST_CREDENTIALS], more: false };

    fn add(&mut self, credential: &'h [u8]) {
        for slot in &mut self.first {
            match slot {
                Some(known) if *known == credential => return,
                Some(_) => {}
                None => {
                    *slot = Some(credential);
                    return;
                }
            }
        }
        self.more = true;
    }
}

/// The elements of a list-valued header. Envoy joins repeated `authorization` lines with commas, and a comma is in no
/// bearer token (RFC 6750, section 2.1), so an API key with one cannot be used.
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<'h>(headers: &[(&'h str, &'h str)]) -> RequestHead<'h> {
        RequestHead::read(headers.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    /// The credentials, or `None` if there are too many.
    fn shown<'h>(headers: &[(&'h str, &'h str)]) -> Option<Vec<&'h str>> {
        match read(headers).credentials() {
            Credentials::Few(shown) => Some(shown.map(|credential| str::from_utf8(credential).unwrap()).collect()),
            Credentials::TooMany => None,
        }
    }

    #[test]
    fn a_key_is_found_in_each_of_its_headers() {
        for headers in [
            [("authorization", "Bearer k")],
            [("Authorization", "bearer k")],
            [("authorization", "BEARER   k ")],
            [("x-api-key", "k")],
            [("X-Api-Key", " k")],
            [("api-key", "k")],
        ] {
            assert_eq!(shown(&headers).unwrap(), ["k"], "{headers:?}");
        }
    }

    #[test]
    fn what_is_no_bearer_token_is_no_key() {
        for value in ["", "k", "Bearer", "Bearer ", "Bearer\tk", "Bearerk", "Basic azpr", "Token k", ","] {
            assert!(shown(&[("authorization", value)]).unwrap().is_empty(), "{value}");
        }
        assert!(shown(&[("x-api-key", "")]).unwrap().is_empty());
        assert!(shown(&[("x-api-keys", "k"), ("api_key", "k")]).unwrap().is_empty());
    }

    #[test]
    fn the_same_key_twice_is_one_key() {
        assert_eq!(shown(&[("authorization", "Bearer k"), ("x-api-key", "k")]).unwrap(), ["k"]);
        assert_eq!(shown(&[("authorization", "Bearer k,Bearer k")]).unwrap(), ["k"]);
        assert_eq!(shown(&[("x-api-key", "k"), ("x-api-key", "k, k"), ("api-key", "k")]).unwrap(), ["k"]);
    }

    #[test]
    fn credentials_that_differ_are_all_found_wherever_they_stand() {
        for headers in [
            &[("authorization", "Bearer a"), ("x-api-key", "b")][..],
            &[("x-api-key", "a"), ("api-key", "b")],
            &[("x-api-key", "a"), ("x-api-key", "b")],
            &[("x-api-key", "a,b")],
            &[("authorization", "Bearer a, Bearer b")],
            &[("authorization", "Bearer a"), ("authorization", "bearer  b")],
            &[("x-api-key", "a"), ("x-api-key", "b"), ("api-key", "a")],
            &[("authorization", "Basic azpr, Bearer a"), ("x-api-key", "b")],
        ] {
            assert_eq!(shown(headers).unwrap(), ["a", "b"], "{headers:?}");
        }
    }

    #[test]
    fn more_than_four_are_too_many() {
        assert_eq!(shown(&[("x-api-key", "a,b,c"), ("api-key", "d,a,b")]).unwrap(), ["a", "b", "c", "d"]);
        assert_eq!(shown(&[("x-api-key", "a,b,c"), ("api-key", "d,e")]), None);
    }

    #[test]
    fn another_scheme_beside_a_key_is_passed_over() {
        assert_eq!(shown(&[("authorization", "Basic azpr"), ("x-api-key", "k")]).unwrap(), ["k"]);
    }

    #[test]
    fn a_header_of_ours_is_reported_in_whatever_case_it_comes() {
        let head = read(&[("X-Attache-Cluster", "a"), ("x-attache-cluster", ""), ("x-ai-eg-model", "m"), ("x", "")]);
        assert_eq!(head.owned_headers().collect::<Vec<_>>(), [headers::CLUSTER, headers::MODEL]);
        assert_eq!(read(&[("x-attache", "")]).owned_headers().count(), 0);
    }

    #[test]
    fn a_repeated_field_is_none() {
        let head = read(&[(":path", "/a"), (":path", "/a"), ("x-ai-eg-model", "m"), ("x-ai-eg-model", "m")]);
        assert_eq!(head.path(), "");
        assert_eq!(head.model_hint(), None);
    }

    #[test]
    fn the_size_counts_names_and_values() {
        assert_eq!(read(&[("ab", "cde"), ("f", "")]).size_bytes(), 6);
    }
}
