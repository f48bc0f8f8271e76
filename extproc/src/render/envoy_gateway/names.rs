//! Names of objects: what people recognise, within what Kubernetes allows.
//!
//! A name is put together of parts. Where the whole is too long, or where two wholes would be one, it ends in a hash of its
//! parts, so that it depends on nothing but what it names and, for the second reason, on what it is named beside.

use std::collections::HashMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The length of a DNS label (RFC 1123), which is what Services and label values are bound to; other kinds allow more.
const MAX_BYTES: usize = 63;

/// Digits of the hash. Two of ten thousand names share eight with a probability of about one in a hundred; what is caught
/// then is caught by [`names`] once more.
const HASH_DIGITS: usize = 8;

/// The names of one kind of object, each of its parts, in the same order.
pub(super) fn names(all: &[Vec<&str>]) -> Vec<String> {
    let whole: Vec<String> = all.iter().map(|parts| joined(parts)).collect();
    let mut times: HashMap<&str, usize> = HashMap::new();
    for name in &whole {
        *times.entry(name).or_default() += 1;
    }
    let name = |(parts, whole): (&Vec<&str>, &String)| match times.get(whole.as_str()) {
        Some(1) if whole.len() <= MAX_BYTES => whole.clone(),
        _ => hashed(whole, parts),
    };
    all.iter().zip(&whole).map(name).collect()
}

/// The name of something that stands alone.
pub(super) fn name(parts: &[&str]) -> String {
    let whole = joined(parts);
    if whole.len() <= MAX_BYTES { whole } else { hashed(&whole, parts) }
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

fn hashed(whole: &str, parts: &[&str]) -> String {
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

    #[test]
    fn a_short_name_is_its_parts() {
        assert_eq!(name(&["attache", "gw", "default", "vllm"]), "attache-gw-default-vllm");
        assert_eq!(name(&["attache", "gw.example", "10.0.0.1:80"]), "attache-gw-example-10-0-0-1-80");
        assert_eq!(name(&["attache", "[fd00::2]:8000"]), "attache-fd00-2-8000");
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
    fn two_names_that_would_be_one_are_told_apart_and_the_others_stay_as_they_are() {
        let all = [vec!["a", "b-c"], vec!["a-b", "c"], vec!["d", "e"]];
        let named = names(&all);
        assert_ne!(named[0], named[1]);
        assert!(named[0].starts_with("a-b-c-") && named[1].starts_with("a-b-c-"));
        assert_eq!(named[2], "d-e");
        let turned: Vec<_> = all.iter().rev().cloned().collect();
        assert_eq!(names(&turned), named.iter().rev().cloned().collect::<Vec<_>>());
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
