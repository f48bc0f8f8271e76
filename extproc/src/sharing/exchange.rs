//! One call of the script: what it is given, and what it answers. The answer comes off a wire, so nothing is believed of it but
//! what can be read; the script leaves out what is longer than anything of ours, so that a foreign entry never gets here.

use std::time::Duration;

use redis::Value;

use super::codec::{LONGEST_ENTRY, LONGEST_LOAD};
use crate::affinity::PEER_EXPIRES_AFTER;

/// How far back a sidecar that starts looks.
pub(super) const HISTORY: Duration = Duration::from_secs(600);
/// How many entries are read at once; 256 KiB at most.
pub(super) const MOST_ENTRIES: usize = 64;
/// What an access list must allow.
pub(super) const RIGHTS: &str = "sharing of prompts' places among sidecars needs: ~attache:affinity:* +eval +evalsha +time +xrange \
                                 +xadd +xtrim +hset +hlen +hgetall +hdel +pttl +pexpire";

/// Keys that nobody uses are kept for so long.
const KEEP: Duration = Duration::from_secs(3600);
/// A load that was not renewed for so long is of a sidecar that is gone.
const FORGET: Duration = Duration::from_secs(60);
/// More sidecars than share one pool.
const MOST_PEERS: usize = 512;

/// The script's text. Without a flag, so Redis runs it only where it may write: a replica, or one that is out of memory, refuses.
pub(super) fn script() -> String {
    format!(
        "#!lua\n\
         local KEEP_MS, FORGET_MS, HISTORY_MS = {}, {}, {}\n\
         local EXPIRES_MS, MOST_PEERS, MOST_ENTRIES = {}, {MOST_PEERS}, {MOST_ENTRIES}\n\
         local LONGEST_ENTRY, LONGEST_LOAD = {LONGEST_ENTRY}, {LONGEST_LOAD}\n\
         {}",
        KEEP.as_millis(),
        FORGET.as_millis(),
        HISTORY.as_millis(),
        PEER_EXPIRES_AFTER.as_millis(),
        include_str!("exchange.lua")
    )
}

/// From where on the log is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Position {
    /// After the entry with this id.
    After(String),
    /// The entries of the last so long.
    Last(Duration),
}

/// What is told, and from where on is heard.
#[derive(Debug)]
pub(super) struct Request<'e> {
    pub(super) me: u64,
    pub(super) position: Position,
    /// How many entries the log shall have at most, about.
    pub(super) longest_log: usize,
    /// What we have under way, where that is to be told.
    pub(super) load: Option<Vec<u8>>,
    pub(super) entries: Vec<&'e [u8]>,
}

impl Request<'_> {
    pub(super) fn arguments(self) -> Vec<Vec<u8>> {
        let (after, look_back) = match self.position {
            Position::After(id) => (id, Duration::ZERO),
            Position::Last(time) => (String::new(), time),
        };
        let mut arguments = vec![
            self.me.to_le_bytes().to_vec(),
            after.into_bytes(),
            look_back.as_millis().to_string().into_bytes(),
            self.longest_log.to_string().into_bytes(),
            self.load.unwrap_or_default(),
        ];
        arguments.extend(self.entries.into_iter().map(<[u8]>::to_vec));
        arguments
    }
}

/// What was heard.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Redis's time, in milliseconds since the epoch.
    pub(super) now_ms: u64,
    /// The id of the last entry that was heard.
    pub(super) position: String,
    pub(super) rest: Rest,
    /// Entries of peers, each with its age.
    pub(super) news: Vec<(Duration, Vec<u8>)>,
    /// Loads of peers that are alive.
    pub(super) loads: Vec<Load>,
}

/// Whether the log goes on after what was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    None,
    Perhaps,
}

/// What a peer has under way, as it wrote it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) age: Duration,
    pub(super) peer: u64,
    pub(super) bytes: Vec<u8>,
}

impl Answer {
    /// `None` where it is no answer of the script's.
    pub(super) fn read(value: Value) -> Option<Self> {
        let Value::Array(values) = value else { return None };
        let [
            Value::Int(now_ms),
            Value::BulkString(position),
            Value::Int(rest),
            Value::Array(news),
            Value::Array(loads),
        ] = <[Value; 5]>::try_from(values).ok()?
        else {
            return None;
        };
        Some(Self {
            now_ms: u64::try_from(now_ms).ok()?,
            position: id(position)?,
            rest: if rest == 0 { Rest::None } else { Rest::Perhaps },
            news: in_groups(news).map(|[age, entry]| Some((self::age(age)?, bytes(entry)?))).collect::<Option<_>>()?,
            loads: in_groups(loads).map(Load::read).collect::<Option<_>>()?,
        })
    }
}

impl Load {
    fn read([age, peer, load]: [Value; 3]) -> Option<Self> {
        let peer = u64::from_le_bytes(bytes(peer)?.try_into().ok()?);
        Some(Self { age: self::age(age)?, peer, bytes: bytes(load)? })
    }
}

/// Whatever is left over at the end is of no use.
fn in_groups<const N: usize>(values: Vec<Value>) -> impl Iterator<Item = [Value; N]> {
    let mut values = values.into_iter();
    std::iter::from_fn(move || values.by_ref().take(N).collect::<Vec<_>>().try_into().ok())
}

fn age(value: Value) -> Option<Duration> {
    match value {
        // Where Redis's clock was set back, entries are from the future.
        Value::Int(ms) => Some(Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
        _ => None,
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

/// An id of a stream: two numbers.
fn id(bytes: Vec<u8>) -> Option<String> {
    let is_id = bytes.len() <= 41 && bytes.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
    String::from_utf8(bytes).ok().filter(|_| is_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn answer(now: Value, id: Value, news: Vec<Value>, loads: Vec<Value>) -> Option<Answer> {
        Answer::read(Value::Array(vec![now, id, Value::Int(1), Value::Array(news), Value::Array(loads)]))
    }

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let now = || Value::Int(1_000);
        let id = || text("900-1");
        let news = || vec![Value::Int(20), text("news"), Value::Int(-3), text("from the future")];
        let loads = || vec![Value::Int(5), text("\u{1}\0\0\0\0\0\0\0"), text("load")];
        let expected = Answer {
            now_ms: 1_000,
            position: "900-1".to_owned(),
            rest: Rest::Perhaps,
            news: vec![(Duration::from_millis(20), b"news".to_vec()), (Duration::ZERO, b"from the future".to_vec())],
            loads: vec![Load { age: Duration::from_millis(5), peer: 1, bytes: b"load".to_vec() }],
        };
        assert_eq!(answer(now(), id(), news(), loads()), Some(expected));
        for (wrong_news, wrong_loads) in [
            (vec![text("20"), text("news")], loads()),
            (vec![Value::Int(20), Value::Nil], loads()),
            (news(), vec![Value::Int(5), text("a short name"), text("load")]),
        ] {
            assert_eq!(answer(now(), id(), wrong_news, wrong_loads), None);
        }
        for (wrong_now, wrong_id) in [(text("1000"), id()), (Value::Int(-1), id()), (now(), text("900-1 x"))] {
            assert_eq!(answer(wrong_now, wrong_id, news(), loads()), None);
        }
        assert_eq!(Answer::read(Value::Nil), None);
        assert_eq!(Answer::read(Value::Array(vec![])), None);
    }
}
