//! The hosts that a route serves, as Gateway API has them.

use std::sync::Arc;

/// A host name, or all of those below one (`*.example.com`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostName {
    /// In lower case; without the `*` of a wildcard, but with its dot.
    name: Arc<str>,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Form {
    Wildcard,
    Precise,
}

/// How closely a host is named: the larger wins, as in Gateway API. A precise name before wildcards, and the longer before the
/// shorter. The smallest is that of routes that name no host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct HostRank(Option<(bool, usize)>);

impl HostName {
    /// Reads one. `None` for what Gateway API does not take: IP addresses, upper case, a `*` elsewhere than in front.
    pub fn parse(text: &str) -> Option<Self> {
        const MAX_BYTES: usize = 253;
        let is_label = |label: &str| {
            let is_fit = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            !label.is_empty() && label.bytes().all(is_fit) && !label.starts_with('-') && !label.ends_with('-')
        };
        let (form, name) = text.strip_prefix("*.").map_or((Form::Precise, text), |name| (Form::Wildcard, name));
        let is_address = text.parse::<std::net::Ipv4Addr>().is_ok();
        if text.len() > MAX_BYTES || is_address || !name.split('.').all(is_label) {
            return None;
        }
        let name = match form {
            Form::Precise => Arc::from(name),
            Form::Wildcard => Arc::from(format!(".{name}")),
        };
        Some(Self { name, form })
    }

    /// As it was written.
    pub fn text(&self) -> String {
        match self.form {
            Form::Precise => self.name.to_string(),
            Form::Wildcard => format!("*{}", self.name),
        }
    }

    fn rank(&self, host: &str) -> Option<HostRank> {
        let matches = match self.form {
            Form::Precise => host.eq_ignore_ascii_case(&self.name),
            Form::Wildcard => host
                .len()
                .checked_sub(self.name.len())
                .filter(|label| *label > 0)
                .and_then(|label| host.get(label..))
                .is_some_and(|parent| parent.eq_ignore_ascii_case(&self.name)),
        };
        matches.then_some(HostRank(Some((self.form == Form::Precise, self.name.len()))))
    }
}

/// How closely `names` name the host of a request, which is its `:authority`; `None` if they do not. No names are all hosts.
pub fn rank(names: &[HostName], authority: Option<&str>) -> Option<HostRank> {
    if names.is_empty() {
        return Some(HostRank::default());
    }
    let host = without_port(authority?);
    names.iter().filter_map(|name| name.rank(host)).max()
}

/// RFC 3986: a host has no colon, but for an IPv6 address in brackets. A dot at its end is DNS's and names the same host.
fn without_port(authority: &str) -> &str {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> Vec<HostName> {
        texts.iter().map(|text| HostName::parse(text).unwrap()).collect()
    }

    #[test]
    fn a_host_is_matched_whatever_its_port_and_case() {
        let is_served = |names: &[HostName], authority| rank(names, authority).is_some();
        let precise = names(&["api.example.com"]);
        for authority in ["api.example.com", "API.Example.com:8080", "api.example.com.", "api.example.com.:443"] {
            assert!(is_served(&precise, Some(authority)), "{authority}");
        }
        for authority in
            ["example.com", "x.api.example.com", "api.example.com.evil.org", "api.example.com@evil.org", ""]
        {
            assert!(!is_served(&precise, Some(authority)), "{authority}");
        }
        let wildcard = names(&["*.example.com"]);
        for authority in ["a.example.com", "a.b.example.com:1"] {
            assert!(is_served(&wildcard, Some(authority)), "{authority}");
        }
        for authority in ["example.com", ".example.com", "aexample.com", "é.example.org"] {
            assert!(!is_served(&wildcard, Some(authority)), "{authority}");
        }
        assert!(is_served(&[], None) && !is_served(&precise, None));
    }

    #[test]
    fn the_closest_name_ranks_highest() {
        let of = |texts: &[&str]| rank(&names(texts), Some("a.b.example.com"));
        assert!(of(&["a.b.example.com"]) > of(&["*.b.example.com"]));
        assert!(of(&["*.b.example.com"]) > of(&["*.example.com"]));
        assert!(of(&["*.example.com"]) > of(&[]));
        assert_eq!(of(&["*.com", "a.b.example.com"]), of(&["a.b.example.com"]));
    }

    #[test]
    fn what_gateway_api_does_not_take_is_no_host_name() {
        for text in ["", "*", "*.", "a..b", "A.example.com", "a_b", "-a", "a.*.b", "*a.b", "10.0.0.1", "a:80", "a."] {
            assert_eq!(HostName::parse(text), None, "{text}");
        }
        assert_eq!(
            names(&["*.example.com", "x"]).iter().map(HostName::text).collect::<Vec<_>>(),
            ["*.example.com", "x"]
        );
    }
}
