//! Whom a request counts for, and which counter of a limit that is.
//!
//! A counter's name is a hash, so no key, tenant or header value stands in Redis in clear text, and an 8 KB header costs as
//! much as a short one. Values are fed with their length, so no two lists of values read alike.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use super::{Condition, CostContext, Dimension, Expected, Limit, Priority};

/// What is known of a request's caller and destination.
pub struct Subject<'a> {
    /// The key's id, never the key.
    pub key_id: Option<&'a str>,
    /// The tenant.
    pub tenant: Option<&'a str>,
    /// How much the caller's requests matter.
    pub priority: Priority,
    /// Models, backend and route.
    pub context: &'a Arc<CostContext>,
    /// What counters know its models by, where that is not their names.
    pub groups: ModelGroups<'a>,
    /// The class of the model, where it has one.
    pub model_class: Option<&'a str>,
    /// A label of the caller's key, by its name.
    pub label: &'a dyn Fn(&str) -> Option<&'a str>,
    /// A request header's value, by its lower-case name.
    pub header: &'a dyn Fn(&str) -> Option<&'a [u8]>,
}

/// What stands for models whose names are the client's alone: a rule matches them by a pattern, or whatever they are. By their names
/// every request could have a counter of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelGroups<'a> {
    /// Of the model asked for.
    pub model: Option<&'a str>,
    /// Of the model that serves.
    pub served: Option<&'a str>,
}

impl<'a> Subject<'a> {
    /// Whether `limit` is about this request.
    pub fn is_limited_by(&self, limit: &Limit) -> bool {
        limit.when.iter().all(|condition| self.meets(condition))
    }

    /// Whether the condition holds for this request.
    pub(crate) fn meets(&self, Condition { dimension, expected }: &Condition) -> bool {
        let value = self.value(dimension);
        match expected {
            Expected::Present => value.is_some(),
            Expected::Is(wanted) => value == Some(wanted.as_bytes()),
            Expected::IsNot(unwanted) => value != Some(unwanted.as_bytes()),
        }
    }

    /// What tells this request's counter from others: the dimension's value, but for models of which only a pattern is known.
    pub(crate) fn counted(&self, dimension: &Dimension) -> Option<&'a [u8]> {
        let group = match dimension {
            Dimension::Model => self.groups.model,
            Dimension::ServedModel => self.groups.served,
            _ => None,
        };
        group.map(str::as_bytes).or_else(|| self.value(dimension))
    }

    /// What a dimension is for this request.
    pub(crate) fn value(&self, dimension: &Dimension) -> Option<&'a [u8]> {
        match dimension {
            Dimension::Key => self.key_id.map(str::as_bytes),
            Dimension::Tenant => self.tenant.map(str::as_bytes),
            Dimension::Label(name) => (self.label)(name).map(str::as_bytes),
            Dimension::Route => Some(self.context.route.as_bytes()),
            Dimension::Model => Some(self.context.model.as_bytes()),
            Dimension::ServedModel => Some(self.context.served_model.as_bytes()),
            Dimension::ModelClass => self.model_class.map(str::as_bytes),
            Dimension::Header(name) => (self.header)(name),
        }
    }
}

impl fmt::Debug for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("key_id", &self.key_id)
            .field("tenant", &self.tenant)
            .field("priority", &self.priority)
            .field("context", &self.context)
            .field("groups", &self.groups)
            .field("model_class", &self.model_class)
            .finish_non_exhaustive()
    }
}

/// Which counter of a limit a request falls on: `<group>:<counter>`, both in hex.
///
/// Counters of one group lie together in a store (one hash slot of a Redis Cluster) and share a list of leases. A limit per
/// tenant or per key, which has one tenant, is grouped by tenant; any other limit is a group of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CounterKey(pub Arc<str>);

impl CounterKey {
    /// The counter of `limit` that a request of `subject` falls on.
    pub fn new(limit: &Limit, subject: &Subject<'_>) -> Self {
        let by_tenant = limit.per.iter().any(|dimension| matches!(dimension, Dimension::Tenant | Dimension::Key));
        let group = match subject.tenant.filter(|_| by_tenant) {
            Some(tenant) => xxh3_64(format!("tenant:{tenant}").as_bytes()),
            None if by_tenant => xxh3_64(b"nobody"),
            None => xxh3_64(format!("limit:{}", limit.id).as_bytes()),
        };
        // Header values are the client's: with a hash that is only fast, it could look for one that falls on another's counter.
        let mut counter = Sha256::new();
        for dimension in &limit.per {
            // The dimension goes in as well: a limit that is changed from per key to per tenant starts anew.
            let (kind, name) = match dimension {
                Dimension::Key => (0, "key"),
                Dimension::Tenant => (0, "tenant"),
                Dimension::Route => (0, "route"),
                Dimension::Model => (0, "model"),
                Dimension::ServedModel => (0, "servedModel"),
                Dimension::ModelClass => (0, "modelClass"),
                Dimension::Header(name) => (1, &**name),
                Dimension::Label(name) => (2, &**name),
            };
            counter.update([kind]);
            feed(&mut counter, Some(name.as_bytes()));
            feed(&mut counter, subject.counted(dimension));
        }
        let [high, low] = halves(&counter.finalize());
        Self(format!("{group:016x}:{high:016x}{low:016x}").into())
    }

    /// The group's and the counter's part. A key that was not made here is a group of its own.
    pub(super) fn parts(&self) -> (&str, &str) {
        self.0.split_once(':').unwrap_or((&self.0, &self.0))
    }
}

/// Feeds one value so that no two sequences of values feed the same bytes: presence, length, value.
fn feed(hash: &mut Sha256, value: Option<&[u8]>) {
    match value {
        None => hash.update([0]),
        Some(value) => {
            hash.update([1]);
            hash.update((value.len() as u64).to_le_bytes());
            hash.update(value);
        }
    }
}

/// The first 128 bits of a digest, which has 256.
fn halves(digest: &[u8]) -> [u64; 2] {
    let half = |index| {
        let bytes = digest.chunks_exact(8).nth(index).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_be_bytes)
    };
    [half(0), half(1)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Mode;
    use super::super::tests::{asking, limit, nobody};
    use super::*;

    fn per(dimensions: &[Dimension]) -> Limit {
        Limit { per: dimensions.to_vec(), ..limit("ns/policy/limit", 300, Mode::Soft) }
    }

    fn by_tenant_and_key(tenant: Option<&str>, key_id: Option<&str>) -> CounterKey {
        CounterKey::new(&per(&[Dimension::Tenant, Dimension::Key]), &Subject { tenant, key_id, ..nobody() })
    }

    #[test]
    fn values_that_only_differ_in_where_they_are_cut_have_counters_of_their_own() {
        let long = "x".repeat(8 * 1024);
        let longer = format!("{long}y");
        let values = [
            (None, None),
            (Some(""), None),
            (None, Some("")),
            (Some(""), Some("")),
            (Some("a:b"), Some("c")),
            (Some("a"), Some("b:c")),
            (Some("ab"), Some("c")),
            (Some("a"), Some("bc")),
            (Some("a\0"), Some("b")),
            (Some("a"), Some("\0b")),
            (Some("é"), Some("b")),
            (Some("e\u{301}"), Some("b")),
            (Some(&long), Some("b")),
            (Some(&longer), Some("b")),
            (Some("b"), Some(&long)),
        ];
        let keys: std::collections::HashSet<_> = values.iter().map(|(t, k)| by_tenant_and_key(*t, *k)).collect();
        assert_eq!(keys.len(), values.len());
    }

    proptest! {
        #[test]
        fn two_callers_share_a_counter_only_if_they_are_the_same(
            a in (any::<Option<String>>(), any::<Option<String>>()),
            b in (any::<Option<String>>(), any::<Option<String>>()),
        ) {
            let of = |(tenant, key): &(Option<String>, Option<String>)| by_tenant_and_key(tenant.as_deref(), key.as_deref());
            prop_assert_eq!(of(&a) == of(&b), a == b);
        }
    }

    #[test]
    fn a_counter_is_named_without_clear_text_and_at_a_fixed_length() {
        let key = by_tenant_and_key(Some("acme"), Some("sk-secret"));
        assert_eq!(key.0.len(), 16 + 1 + 32);
        assert!(key.0.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':'));
    }

    #[test]
    fn only_the_limits_own_dimensions_tell_counters_apart() {
        let limit = per(&[Dimension::Key]);
        let of =
            |model| CounterKey::new(&limit, &Subject { key_id: Some("ns/key"), context: &asking(model), ..nobody() });
        assert_eq!(of("a"), of("b"));
    }

    #[test]
    fn models_of_which_only_a_pattern_is_known_share_a_counter_and_keep_their_names_for_conditions() {
        let groups = ModelGroups { model: Some("ns/route/0"), served: None };
        let (one, other) = (asking("gpt-1"), asking("gpt-2"));
        let counter =
            |context, groups, dimension| CounterKey::new(&per(&[dimension]), &Subject { context, groups, ..nobody() });
        assert_eq!(counter(&one, groups, Dimension::Model), counter(&other, groups, Dimension::Model));
        assert_ne!(counter(&one, groups, Dimension::ServedModel), counter(&other, groups, Dimension::ServedModel));
        let groups = ModelGroups { served: Some("ns/route/0"), ..groups };
        assert_eq!(counter(&one, groups, Dimension::ServedModel), counter(&other, groups, Dimension::ServedModel));
        let when = vec![Condition { dimension: Dimension::Model, expected: Expected::Is("gpt-1".into()) }];
        let limit = Limit { when, ..per(&[]) };
        let is_limited = |context| Subject { context, groups, ..nobody() }.is_limited_by(&limit);
        assert!(is_limited(&one) && !is_limited(&other));
    }

    #[test]
    fn requests_without_the_header_share_a_counter_of_their_own() {
        let limit = per(&[Dimension::Header("x-team".into())]);
        let of = |team: Option<&'static [u8]>| {
            let header = move |name: &str| team.filter(|_| name == "x-team");
            CounterKey::new(&limit, &Subject { header: &header, ..nobody() })
        };
        assert_eq!(of(None), of(None));
        assert_ne!(of(None), of(Some(b"")));
        assert_ne!(of(Some(b"red")), of(Some(b"\xff")));
    }

    #[test]
    fn a_header_or_label_named_like_a_dimension_is_not_that_dimension() {
        let header = |_: &str| Some(b"v".as_slice());
        let label = |_: &str| Some("v");
        let subject = Subject { context: &asking("v"), header: &header, label: &label, ..nobody() };
        let keys = [Dimension::Model, Dimension::Header("model".into()), Dimension::Label("model".into())]
            .map(|dimension| CounterKey::new(&per(&[dimension]), &subject));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    }

    #[test]
    fn limits_of_a_tenant_and_of_its_keys_lie_together() {
        let subject = Subject { tenant: Some("acme"), key_id: Some("ns/key"), ..nobody() };
        let group = |dimensions: &[Dimension]| CounterKey::new(&per(dimensions), &subject).parts().0.to_owned();
        assert_eq!(group(&[Dimension::Tenant]), group(&[Dimension::Key, Dimension::Model]));
        assert_ne!(group(&[Dimension::Tenant]), group(&[Dimension::Model]));
    }

    #[test]
    fn a_limit_is_about_the_requests_that_meet_all_of_its_conditions() {
        let header = |name: &str| (name == "x-team").then_some(b"red".as_slice());
        let subject = Subject { header: &header, ..nobody() };
        let team = || Dimension::Header("x-team".into());
        let holds = |dimension, expected| {
            let when = vec![Condition { dimension, expected }];
            subject.is_limited_by(&Limit { when, ..per(&[]) })
        };
        assert!(holds(team(), Expected::Present) && holds(team(), Expected::Is("red".into())));
        assert!(!holds(team(), Expected::IsNot("red".into())) && !holds(team(), Expected::Is("blue".into())));
        assert!(!holds(Dimension::Key, Expected::Present) && holds(Dimension::Key, Expected::IsNot("a".into())));
        let both = [Expected::Present, Expected::Is("blue".into())];
        let when = both.map(|expected| Condition { dimension: team(), expected }).into();
        assert!(!subject.is_limited_by(&Limit { when, ..per(&[]) }));
    }
}
