//! Names of objects: what people recognise, within what Kubernetes allows, and never another's.
//!
//! A name is its parts with dashes between them where that can be taken apart in one way alone. Where it cannot, or where it is
//! too long, it ends in a hash of its parts. So it depends on nothing but what it names: no other Gateway's objects have it, and
//! it stays as it is whatever else is rendered beside it.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::config::model::ObjectName;

/// The length of a DNS label (RFC 1123), which is what Services and label values are bound to; other kinds allow more.
const MAX_BYTES: usize = 63;

/// Digits of the hash. Of ten thousand names two share eight with a probability of about one in a hundred, and are one only if
/// what stands before the hash is the same, too.
const HASH_DIGITS: usize = 8;

/// What objects are for whose name is a Gateway's and a role, some with a number behind it.
const ROLES: [&str; 7] = ["authorities", "config", "host", "sidecar", "targets", "unprocessed", "upstream"];

/// What stands once, or once in a role, beside its Gateway: `attache-GATEWAY` or `attache-GATEWAY-ROLE`.
pub(super) fn of_gateway(gateway: &str, role: Option<&str>) -> String {
    let parts: Vec<&str> = ["attache", gateway].into_iter().chain(role).collect();
    let whole = joined(&parts);
    // Dashes in the Gateway's name are no matter: no role ends in another, so what is before the role is the name.
    let is_itself = whole == parts.join("-") && (role.is_some() || !ends_in_role(&whole));
    bounded(whole, &parts, is_itself)
}

/// What stands where Gateways of several namespaces have theirs: `attache-NAMESPACE-GATEWAY`, and the role.
pub(super) fn across_namespaces(gateway: &ObjectName, role: Option<&str>) -> String {
    let parts: Vec<&str> = ["attache", &*gateway.namespace, &*gateway.name].into_iter().chain(role).collect();
    name(&parts)
}

/// What leads to a model server: `attache-GATEWAY-NAMESPACE-NAME` and whatever else tells it from others.
pub(super) fn of_upstream(gateway: &str, upstream: &[&str]) -> String {
    let parts: Vec<&str> = ["attache", gateway].into_iter().chain(upstream.iter().copied()).collect();
    let whole = joined(&parts);
    // A Gateway with dashes in its name may have a role of that name.
    let is_itself = parts.iter().all(|part| is_plain(part)) && !ends_in_role(&whole);
    bounded(whole, &parts, is_itself)
}

/// A name among those of as many parts.
pub(super) fn name(parts: &[&str]) -> String {
    bounded(joined(parts), parts, parts.iter().all(|part| is_plain(part)))
}

/// Whether no dash in a whole can be this part's.
fn is_plain(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

fn ends_in_role(whole: &str) -> bool {
    let unnumbered = whole.trim_end_matches(|letter: char| letter.is_ascii_digit()).trim_end_matches('-');
    unnumbered.rsplit('-').next().is_some_and(|last| ROLES.contains(&last))
}

/// The parts with dashes between them, and dashes for what no DNS label may have.
fn joined(parts: &[&str]) -> String {
    let mut whole = String::new();
    for letter in parts.join("-").to_ascii_lowercase().chars() {
        let letter = if letter.is_ascii_lowercase() || letter.is_ascii_digit() { letter } else { '-' };
        if letter != '-' || !whole.ends_with('-') {
            whole.push(letter);
        }
    }
    whole.trim_matches('-').to_owned()
}

fn bounded(whole: String, parts: &[&str], is_itself: bool) -> String {
    if is_itself && whole.len() <= MAX_BYTES {
        return whole;
    }
    let kept: String = whole.chars().take(MAX_BYTES - HASH_DIGITS - 1).collect();
    let mut digest = String::new();
    // No part has a zero byte, so no two lists of parts are one text.
    for byte in Sha256::digest(parts.join("\0")) {
        // Writing to a string does not fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest.truncate(HASH_DIGITS);
    format!("{}-{digest}", kept.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(namespace: &str, name: &str) -> ObjectName {
        ObjectName { namespace: namespace.into(), name: name.into() }
    }

    /// Whether it is more than its parts.
    fn is_hashed(name: &str, whole: &str) -> bool {
        name.strip_prefix(whole).is_some_and(|rest| rest.len() == 1 + HASH_DIGITS && rest.starts_with('-'))
    }

    #[test]
    fn a_short_name_is_its_parts() {
        assert_eq!(of_gateway("my-gw", None), "attache-my-gw");
        assert_eq!(of_gateway("my-gw", Some("targets-1")), "attache-my-gw-targets-1");
        assert_eq!(of_upstream("gw", &["default", "vllm"]), "attache-gw-default-vllm");
        assert_eq!(across_namespaces(&gateway("infra", "llm"), Some("config")), "attache-infra-llm-config");
        assert_eq!(across_namespaces(&gateway("infra", "llm"), None), "attache-infra-llm");
        assert_eq!(name(&["secret", "default", "openai"]), "secret-default-openai");
    }

    #[test]
    fn a_name_that_could_be_taken_apart_otherwise_ends_in_a_hash_that_depends_on_itself_alone() {
        let of_pairs = [
            (of_upstream("llm", &["x", "x-y"]), of_upstream("llm-x", &["x", "y"]), "attache-llm-x-x-y"),
            (of_upstream("llm", &["a-b", "c"]), of_upstream("llm", &["a", "b-c"]), "attache-llm-a-b-c"),
            (of_upstream("a.b", &["c", "d"]), of_upstream("a-b", &["c", "d"]), "attache-a-b-c-d"),
            (
                across_namespaces(&gateway("team-a", "llm"), None),
                across_namespaces(&gateway("team", "a-llm"), None),
                "attache-team-a-llm",
            ),
            (of_gateway("a.b", None), of_gateway("a--b", None), "attache-a-b"),
            (of_gateway("a.b", Some("host")), of_gateway("a--b", Some("host")), "attache-a-b-host"),
            (name(&["secret", "a-b", "c"]), name(&["secret", "a", "b-c"]), "secret-a-b-c"),
        ];
        for (one, other, whole) in of_pairs {
            assert!(is_hashed(&one, whole) && is_hashed(&other, whole), "{one} {other}");
            assert_ne!(one, other);
        }
        assert_eq!(of_upstream("gw", &["default", "[fd00::2]:8000"]), "attache-gw-default-fd00-2-8000-b70afc4f");
    }

    #[test]
    fn what_ends_like_a_role_is_no_other_gateways_role() {
        for role in ["host", "targets-1", "upstream-12"] {
            let whole = of_gateway("llm", Some(role));
            assert!(is_hashed(&of_gateway(&format!("llm-{role}"), None), &whole));
        }
        assert_eq!(of_gateway("llm-default", Some("sidecar")), "attache-llm-default-sidecar");
        assert!(is_hashed(&of_upstream("llm", &["default", "sidecar"]), "attache-llm-default-sidecar"));
    }

    #[test]
    fn a_long_name_ends_in_a_hash_that_tells_it_from_others_with_its_beginning() {
        let long = "m".repeat(80);
        let (first, second) = (name(&["attache", &long, "a"]), name(&["attache", &long, "b"]));
        assert_eq!(first.len(), MAX_BYTES);
        assert_ne!(first, second);
        assert_eq!(first, name(&["attache", &long, "a"]));
    }

    #[test]
    fn every_name_is_a_dns_label() {
        for parts in [vec!["attache", "-x-"], vec!["attache", "ä.ö"], vec!["attache", &"x-".repeat(60)]] {
            let name = name(&parts);
            let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
            assert!(name.len() <= MAX_BYTES && name.chars().all(plain), "{name}");
            assert!(!name.starts_with('-') && !name.ends_with('-'), "{name}");
        }
    }
}
