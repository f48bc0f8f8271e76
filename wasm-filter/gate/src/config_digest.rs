//! What a configuration of the gate is known by: so that the sidecar and `attache doctor` see whether the filter runs on the one
//! that is in force.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::config::{Access, AnswerTime, GateConfig, KeyEntry, KeyPriority, UnknownKeys};

/// Short hashes of a configuration, part by part. The order of documents makes no difference, nor does what the gate does not
/// look at. As a text, four times twelve hexadecimal digits with dashes between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConfigDigest {
    keys: Hash,
    models: Hash,
    paths: Hash,
    settings: Hash,
}

/// Enough to tell configurations apart; nobody gains by two that look alike.
type Hash = [u8; 6];

impl ConfigDigest {
    /// Of the configuration as it was rendered, or as the sidecar has it.
    pub fn of(config: &GateConfig) -> Self {
        let mut access = config.access.clone();
        if let Access::Keys(keys) = &mut access {
            keys.iter_mut().for_each(KeyEntry::forget_what_the_gate_does_not_look_at);
            keys.sort_by(|a, b| (&a.id, a.sha256.to_string()).cmp(&(&b.id, b.sha256.to_string())));
        }
        let sorted = |routes: &Vec<String>| {
            let mut routes = routes.clone();
            routes.sort();
            routes
        };
        let named = |lists: &std::collections::BTreeMap<String, Vec<String>>| -> Vec<(String, Vec<String>)> {
            lists.iter().map(|(name, routes)| (name.clone(), sorted(routes))).collect()
        };
        // The filter's own ways are no difference, as each is rendered for one kind of Envoy.
        let settings = GateConfig {
            access: Access::Open,
            models: Default::default(),
            pass_through: Default::default(),
            answers: AnswerTime::AtOnce,
            unknown_keys: UnknownKeys::Ask,
            ..config.clone()
        };
        Self {
            keys: hash(&access),
            models: hash(&named(&config.models)),
            paths: hash(&named(&config.pass_through)),
            settings: hash(&settings),
        }
    }

    /// What differs in another, in words.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let parts = [
            ("keys", self.keys, other.keys),
            ("models", self.models, other.models),
            ("passed-through paths", self.paths, other.paths),
            ("--path-prefix, --max-body or --unattached-status", self.settings, other.settings),
        ];
        parts.into_iter().filter_map(|(name, ours, others)| (ours != others).then_some(name)).collect()
    }
}

impl KeyEntry {
    fn forget_what_the_gate_does_not_look_at(&mut self) {
        self.labels.clear();
        self.priority = KeyPriority::Normal;
        self.routes.sort();
        self.also.sort_by_key(ToString::to_string);
    }
}

fn hash(part: &impl Serialize) -> Hash {
    // Nothing in a configuration cannot be written as JSON; if it were so, nothing would be known of it.
    let json = serde_json::to_vec(part).unwrap_or_default();
    let digest: [u8; 32] = Sha256::digest(&json).into();
    let [a, b, c, d, e, f, ..] = digest;
    [a, b, c, d, e, f]
}

impl fmt::Display for ConfigDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in [self.keys, self.models, self.paths, self.settings].iter().enumerate() {
            if index > 0 {
                f.write_str("-")?;
            }
            part.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

/// The text is no digest of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a configuration's digest is four times 12 hexadecimal digits, with dashes between them")]
pub struct InvalidConfigDigest;

impl FromStr for ConfigDigest {
    type Err = InvalidConfigDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('-').map(|part| {
            let digits =
                Some(part).filter(|part| part.len() == 12 && part.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or(InvalidConfigDigest)?;
            let [_, _, a, b, c, d, e, f] = number.to_be_bytes();
            Ok([a, b, c, d, e, f])
        });
        let mut next = || parts.next().unwrap_or(Err(InvalidConfigDigest));
        let digest = Self { keys: next()?, models: next()?, paths: next()?, settings: next()? };
        if parts.next().is_some() { Err(InvalidConfigDigest) } else { Ok(digest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KeyDigest;

    fn entry(id: &str, routes: &[&str]) -> KeyEntry {
        KeyEntry::new(
            id.to_owned(),
            KeyDigest::of(id.as_bytes()),
            "acme".to_owned(),
            routes.iter().map(|r| (*r).to_owned()).collect(),
        )
    }

    fn config() -> GateConfig {
        let mut config = GateConfig::new(Access::Keys(vec![entry("a", &["one", "two"]), entry("b", &[])]));
        config.models.insert("m".to_owned(), vec!["one".to_owned(), "two".to_owned()]);
        config.pass_through.insert("/classify".to_owned(), vec!["one".to_owned()]);
        config
    }

    fn keys(config: &mut GateConfig) -> &mut Vec<KeyEntry> {
        let Access::Keys(keys) = &mut config.access else { panic!("open") };
        keys
    }

    /// A part, and a change of it.
    type Change = (&'static str, fn(&mut GateConfig));

    #[test]
    fn every_change_that_the_gate_heeds_shows_in_its_part_and_no_other() {
        let changes: [Change; 13] = [
            ("keys", |config| config.access = Access::Open),
            ("keys", |config| keys(config).push(entry("c", &[]))),
            ("keys", |config| keys(config)[0].sha256 = KeyDigest::of(b"rotated")),
            ("keys", |config| keys(config)[0].also.push(KeyDigest::of(b"second"))),
            ("keys", |config| keys(config)[0].not_after_ms = Some(1)),
            ("keys", |config| keys(config)[0].disabled = true),
            ("keys", |config| keys(config)[0].routes.truncate(1)),
            ("keys", |config| keys(config)[0].tenant.push('x')),
            ("models", |config| drop(config.models.insert("n".to_owned(), Vec::new()))),
            ("models", |config| drop(config.models.insert("m".to_owned(), Vec::new()))),
            ("passed-through paths", |config| config.pass_through.clear()),
            ("--path-prefix, --max-body or --unattached-status", |config| config.path_prefix.push_str("/gw")),
            ("--path-prefix, --max-body or --unattached-status", |config| config.max_body_bytes += 1),
        ];
        let before = ConfigDigest::of(&config());
        for (index, (part, change)) in changes.into_iter().enumerate() {
            let mut changed = config();
            change(&mut changed);
            assert_eq!(before.differences(&ConfigDigest::of(&changed)), [part], "change {index}");
        }
    }

    #[test]
    fn the_order_of_documents_and_what_only_the_sidecar_heeds_are_no_difference() {
        let mut other = config();
        keys(&mut other).reverse();
        keys(&mut other)[1].routes.reverse();
        keys(&mut other)[0].labels.insert("tier".to_owned(), "gold".to_owned());
        keys(&mut other)[0].priority = KeyPriority::Low;
        other.models.values_mut().for_each(|routes| routes.reverse());
        other.answers = AnswerTime::AfterBody;
        other.unknown_keys = UnknownKeys::Refuse;
        assert_eq!(ConfigDigest::of(&other), ConfigDigest::of(&config()));
    }

    #[test]
    fn it_reads_back_and_nothing_else_does() {
        let digest = ConfigDigest::of(&config());
        let text = digest.to_string();
        assert_eq!((text.len(), text.parse()), (51, Ok(digest)));
        for wrong in ["", "-", "---", &text[1..], &format!("{text}-"), &format!("{text}0"), &text.replace('-', "+")] {
            assert_eq!(wrong.parse::<ConfigDigest>(), Err(InvalidConfigDigest), "{wrong}");
        }
    }
}
