//! Warnings about how a Redis is set up: when it may drop counters under memory pressure, callers would get their tokens back;
//! when it is too old, or is not what the URL says, scripts do not run.

use std::time::Duration;

use redis::RedisResult;

use super::dial::Wire;
use super::url::{Address, Place};

/// Policies under which Redis refuses to grow, or drops first what is about to end anyway.
const SAFE: [&str; 2] = ["noeviction", "volatile-ttl"];

/// The first that knows `#!lua`.
const OLDEST: u32 = 7;

const DEADLINE: Duration = Duration::from_secs(5);

/// An access list that hides `INFO` is no reason to fail, and none to warn.
pub(super) async fn warn_of_settings(mut wire: Wire, address: Address, place: Place) {
    let asking = async {
        let mut both = info(&mut wire, "server").await?;
        both.push_str(&info(&mut wire, "memory").await?);
        RedisResult::Ok(both)
    };
    let Ok(Ok(info)) = tokio::time::timeout(DEADLINE, asking).await else {
        return;
    };
    if let Some(remedy) = misnamed(&info, &place) {
        tracing::error!(%address, "this Redis is not what --redis says: {remedy}");
    }
    if let Some(version) = old_version(&info) {
        tracing::warn!(%address, version, "this Redis is too old: token limits need 7.0, or Valkey");
    }
    if let Some(policy) = unsafe_policy(&info) {
        tracing::warn!(
            %address,
            policy,
            "this Redis may evict counters of token limits; set maxmemory-policy to noeviction or volatile-ttl"
        );
    }
}

async fn info(wire: &mut Wire, section: &str) -> RedisResult<String> {
    let answer = wire.query(redis::cmd("INFO").arg(section)).await?;
    Ok(redis::from_redis_value(answer)?)
}

fn unsafe_policy(info: &str) -> Option<&str> {
    let policy = field(info, "maxmemory_policy:")?;
    (!SAFE.contains(&policy)).then_some(policy)
}

/// Valkey says here which Redis it is like.
fn old_version(info: &str) -> Option<&str> {
    let version = field(info, "redis_version:")?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < OLDEST).then_some(version)
}

/// What to write instead of a URL that names this Redis as if it stood alone. It connects, and then refuses most of what it is
/// asked for.
fn misnamed(info: &str, place: &Place) -> Option<&'static str> {
    match (field(info, "redis_mode:")?, place) {
        ("cluster", Place::Server(_)) => Some("it is a node of a cluster; write redis+cluster://HOST:PORT,HOST:PORT"),
        ("sentinel", Place::Server(_)) => Some("it is a sentinel; write redis+sentinel://HOST:PORT,HOST:PORT/SERVICE"),
        _ => None,
    }
}

fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    Some(info.lines().find_map(|line| line.strip_prefix(name))?.trim())
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

    #[test]
    fn a_redis_is_misnamed_only_where_it_is_said_to_stand_alone() {
        let address = Address::Unix("/redis.sock".into());
        let alone = Place::Server(address.clone());
        let cluster = Place::Cluster { seeds: vec![address.clone()] };
        let sentinels = Place::Sentinels { sentinels: vec![address], service: "limits".to_owned() };
        let remedy = |mode: &str, place| misnamed(&format!("redis_version:7.0.15\r\nredis_mode:{mode}\r\n"), place);
        assert!(remedy("cluster", &alone).unwrap().contains("redis+cluster://"));
        assert!(remedy("sentinel", &alone).unwrap().contains("redis+sentinel://"));
        for (mode, place) in [("standalone", &alone), ("cluster", &cluster), ("standalone", &sentinels)] {
            assert_eq!(remedy(mode, place), None, "{mode} {place:?}");
        }
        assert_eq!(misnamed("redis_version:7.0.15\r\n", &alone), None);
    }

    #[test]
    fn a_redis_before_7_is_named_and_a_valkey_is_not() {
        assert_eq!(old_version("# Server\r\nredis_version:6.2.14\r\nredis_git_sha1:0\r\n"), Some("6.2.14"));
        assert_eq!(old_version("redis_version:7.0.15\r\n"), None);
        assert_eq!(old_version("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n"), None);
        assert_eq!(old_version("redis_version:\r\n"), None);
    }
}
