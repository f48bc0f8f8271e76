//! A warning at start when Redis may drop counters under memory pressure: callers would get their tokens back.

use redis::Value;

use super::link::Link;

/// Policies under which Redis refuses to grow, or drops first what is about to end anyway.
const SAFE: [&str; 2] = ["noeviction", "volatile-ttl"];

/// Looks once there is a connection. An access list that hides `INFO` is no reason to fail.
pub(super) fn warn_at_first_connection(link: &Link) {
    let connected = link.first_connection();
    tokio::spawn(async move {
        let Some(mut connection) = connected.await else {
            return;
        };
        let info: redis::RedisResult<Value> = redis::cmd("INFO").arg("memory").query_async(&mut connection).await;
        let Ok(info) = info.and_then(|info| Ok(redis::from_redis_value::<String>(info)?)) else {
            return;
        };
        if let Some(policy) = unsafe_policy(&info) {
            tracing::warn!(
                policy,
                "this Redis may evict counters of token limits; set maxmemory-policy to noeviction or volatile-ttl"
            );
        }
    });
}

fn unsafe_policy(info: &str) -> Option<&str> {
    let policy = info.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"))?.trim();
    (!SAFE.contains(&policy)).then_some(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_drops_counters_is_named() {
        assert_eq!(unsafe_policy("maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n"), Some("allkeys-lru"));
        assert_eq!(unsafe_policy("maxmemory_policy:noeviction\r\n"), None);
        assert_eq!(unsafe_policy("maxmemory_policy:volatile-ttl\r\n"), None);
        assert_eq!(unsafe_policy("maxmemory:0\r\n"), None);
    }
}
