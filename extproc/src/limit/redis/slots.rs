//! Which of a cluster's 16,384 slots a key lies in, and which node serves a slot.
//!
//! <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>

use redis::{RedisError, Value};

use super::url::Address;

const SLOTS: u16 = 16_384;

/// More than the 1,000 nodes that a cluster is made for.
const MAX_RANGES: usize = SLOTS as usize;

/// The slot of a key: of the part within its first braces, where they hold one.
pub(super) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(
            crc ^ (u16::from(*byte) << 8),
            |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
            },
        )
    })
}

/// Slots that one node serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) node: Address,
}

/// Reads the answer to `CLUSTER SLOTS` that the node at `asked` gave; in order. Replicas are left out: they do not write.
pub(super) fn ranges(answer: Value, asked: &Address) -> Option<Vec<Range>> {
    let Value::Array(entries) = answer else {
        return None;
    };
    if entries.len() > MAX_RANGES {
        return None;
    }
    let mut ranges: Vec<_> = entries.into_iter().map(|entry| range(entry, asked)).collect::<Option<_>>()?;
    ranges.sort_unstable_by_key(|range| range.first);
    Some(ranges)
}

fn range(entry: Value, asked: &Address) -> Option<Range> {
    let Value::Array(entry) = entry else {
        return None;
    };
    let mut entry = entry.into_iter();
    let first = redis::from_redis_value(entry.next()?).ok()?;
    let last = redis::from_redis_value(entry.next()?).ok()?;
    let Value::Array(primary) = entry.next()? else {
        return None;
    };
    let mut primary = primary.into_iter();
    let host: Option<String> = redis::from_redis_value(primary.next()?).ok()?;
    let port = redis::from_redis_value(primary.next()?).ok()?;
    Some(Range { first, last, node: node(host.as_deref().unwrap_or_default(), port, asked)? })
}

/// Where a node sends us that does not serve a slot: `MOVED <slot> <host>:<port>`, and `ASK` alike.
pub(super) fn redirection(error: &RedisError, from: &Address) -> Option<Address> {
    let (text, _) = error.redirect_node()?;
    let (host, port) = text.rsplit_once(':')?;
    node(host, port.parse().ok()?, from)
}

/// A node that does not know its own name is where we found it.
fn node(host: &str, port: u16, asked: &Address) -> Option<Address> {
    let host = match (host, asked) {
        ("", Address::Tcp { host, .. }) => host,
        // It has a name, but is not known by it.
        ("" | "?", _) => return None,
        (host, _) => host,
    };
    Some(Address::Tcp { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn slots_are_those_of_redis() {
        // As `CLUSTER KEYSLOT` of Redis 7.0.15 says.
        assert_eq!(
            ["123456789", "foo", "a{foo}b", "{}foo", "att1:{sidecars}", ""].map(slot),
            [12_739, 12_182, 12_182, 9_500, 3_335, 0]
        );
    }

    #[test]
    fn ranges_come_in_order_and_a_node_without_a_name_is_where_it_was_asked() {
        let entry = |first, last, host: Value, port| {
            let node = Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(vec![])]);
            Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
        };
        let answer = Value::Array(vec![
            entry(8_192, 16_383, text("b"), 2),
            entry(0, 5, Value::Nil, 1),
            entry(6, 8_191, text(""), 3),
        ]);
        let expected = [(0, 5, at("a", 1)), (6, 8_191, at("a", 3)), (8_192, 16_383, at("b", 2))];
        assert_eq!(
            ranges(answer, &at("a", 9)).unwrap(),
            expected.map(|(first, last, node)| Range { first, last, node })
        );
    }

    #[test]
    fn nonsense_is_none() {
        for answer in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(-1), Value::Nil])]),
            Value::Array(vec![Value::Array(vec![
                Value::Int(0),
                Value::Int(1),
                Value::Array(vec![text("?"), Value::Int(1)]),
            ])]),
        ] {
            assert_eq!(ranges(answer, &at("a", 9)), None);
        }
    }
}
