//! What two equal prompts must have in common besides to share a cache.

use xxhash_rust::xxh3::Xxh3;

use super::CANON_VERSION;

/// What two equal prompts must have in common besides to share a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixScope<'a> {
    /// The replicas among which one is chosen: the Backend's cluster.
    pub pool: &'a str,
    /// The model as the replicas know it, after any rewrite.
    pub model: &'a str,
    /// The caller's tenant, where tenants are isolated from each other.
    pub tenant: Option<&'a str>,
    /// [`super::Prompt::cache_salt`].
    pub cache_salt: Option<u64>,
}

impl PrefixScope<'_> {
    /// One number for all of it, to be mixed into every hash of a chain. The same in every process.
    pub fn hash(&self) -> u64 {
        let mut hasher = Xxh3::new();
        hasher.update(&CANON_VERSION.to_le_bytes());
        let salt = self.cache_salt.map(u64::to_le_bytes);
        let fields = [
            Some(self.pool.as_bytes()),
            Some(self.model.as_bytes()),
            self.tenant.map(str::as_bytes),
            salt.as_ref().map(<[u8; 8]>::as_slice),
        ];
        for field in fields {
            let Some(field) = field else {
                hasher.update(&[0]);
                continue;
            };
            hasher.update(&[1]);
            hasher.update(field);
            hasher.update(&(field.len() as u64).to_le_bytes());
        }
        hasher.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCOPE: PrefixScope<'static> =
        PrefixScope { pool: "default/vllm", model: "llama", tenant: None, cache_salt: None };

    #[test]
    fn every_part_of_the_scope_counts() {
        let scopes = [
            SCOPE,
            PrefixScope { cache_salt: Some(0), ..SCOPE },
            PrefixScope { cache_salt: Some(1), ..SCOPE },
            PrefixScope { tenant: Some(""), ..SCOPE },
            PrefixScope { tenant: Some("s"), ..SCOPE },
            PrefixScope { model: "llama2", ..SCOPE },
            PrefixScope { pool: "default/vl", model: "lmllama", ..SCOPE },
        ];
        let hashes = scopes.map(|scope| scope.hash());
        for (index, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..index].contains(hash), "{index}");
        }
    }

    #[test]
    fn no_process_has_a_hash_of_its_own() {
        let scope = PrefixScope { tenant: Some("acme"), cache_salt: Some(7), ..SCOPE };
        assert_eq!(scope.hash(), 15_436_673_334_088_326_713);
    }
}
