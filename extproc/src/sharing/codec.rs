//! How news and loads are written: bytes in, values out, nothing believed of what was read but what can be checked.
//!
//! Numbers are little endian. An entry of the stream is a header (format: 1 byte, canon version: 4, mark of the secret: 4), then
//! for each piece of news the endpoint's hash (8), the depth (2), the number of keys (2) and the keys (8 each). A load is the
//! format (1), then for each endpoint that has something to do its hash (8), requests (4) and pending tokens (4). What has
//! another format, canon version or secret is another's: its hashes mean something else.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use crate::affinity::blocks::MAX_BLOCKS;
use crate::affinity::prefix::CANON_VERSION;
use crate::affinity::{News, OwnLoad};

/// The longest entry, in bytes: as much as one node of a stream holds by default, so that trimming is to the point.
pub const LONGEST_ENTRY: usize = 4096;
/// The longest load, in bytes: of 1,024 endpoints.
pub const LONGEST_LOAD: usize = 1 + 1024 * LOAD_BYTES;

const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 1 + 4 + 4;
const NEWS_BYTES: usize = 8 + 2 + 2;
const KEY_BYTES: usize = 8;
const LOAD_BYTES: usize = 8 + 4 + 4;

/// An endpoint's id, hashed: no address of anybody's leaves the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointHash(pub u64);

impl EndpointHash {
    /// Of this id.
    pub fn of(id: &str) -> Self {
        Self(xxh3_64(id.as_bytes()))
    }
}

/// A piece of news as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedNews {
    /// The endpoint that it is about.
    pub endpoint: EndpointHash,
    /// As in [`News`].
    pub depth: usize,
    /// As in [`News`].
    pub keys: Vec<u64>,
}

impl HashedNews {
    /// The same of the endpoint that has this hash.
    pub fn of(self, endpoint: Arc<str>) -> News {
        News { endpoint, depth: self.depth, keys: self.keys }
    }
}

impl From<News> for HashedNews {
    fn from(News { endpoint, depth, keys }: News) -> Self {
        Self { endpoint: EndpointHash::of(&endpoint), depth, keys }
    }
}

/// Why an entry says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreadable {
    /// Of a sidecar of another version, or with another secret.
    OfOthers,
    /// It is no entry.
    Broken,
}

/// Among whom hashes mean the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    header: [u8; HEADER_BYTES],
}

impl Dialect {
    /// Of sidecars of this version with this secret.
    pub fn new(secret: u64) -> Self {
        Self::of(CANON_VERSION, secret)
    }

    fn of(canon_version: u32, secret: u64) -> Self {
        // By a hash that does not lead back to the secret.
        let digest: [u8; 32] =
            Sha256::new().chain_update(b"attache affinity").chain_update(secret.to_le_bytes()).finalize().into();
        let parts = std::iter::once(FORMAT).chain(canon_version.to_le_bytes()).chain(digest);
        let mut header = [0; HEADER_BYTES];
        header.iter_mut().zip(parts).for_each(|(byte, part)| *byte = part);
        Self { header }
    }

    /// Entries that tell these news, each no longer than [`LONGEST_ENTRY`].
    pub fn entries(&self, news: &[HashedNews]) -> Vec<Vec<u8>> {
        let mut entries: Vec<Vec<u8>> = Vec::new();
        for HashedNews { endpoint, depth, keys } in news {
            let (mut depth, mut keys) = (*depth, keys.as_slice());
            while !keys.is_empty() && depth < MAX_BLOCKS {
                let room = entries.last().map_or(0, |entry| keys_in(LONGEST_ENTRY - entry.len().min(LONGEST_ENTRY)));
                // A few more keys are not worth a piece of their own.
                if room < keys.len().min(16) {
                    entries.push(self.header.to_vec());
                    continue;
                }
                let (now, later) = keys.split_at(room.min(keys.len()));
                if let Some(entry) = entries.last_mut() {
                    entry.extend(endpoint.0.to_le_bytes());
                    entry.extend(short(depth).to_le_bytes());
                    entry.extend(short(now.len()).to_le_bytes());
                    entry.extend(now.iter().flat_map(|key| key.to_le_bytes()));
                }
                depth += now.len();
                keys = later;
            }
        }
        entries
    }

    /// What an entry tells. It takes no more memory than the entry does.
    ///
    /// # Errors
    /// [`Unreadable`] where it is not written as we do.
    pub fn news(&self, entry: &[u8]) -> Result<Vec<HashedNews>, Unreadable> {
        let rest = entry.strip_prefix(&self.header).ok_or(Unreadable::OfOthers)?;
        let mut reader = Reader(rest);
        let mut news = Vec::new();
        while !reader.0.is_empty() {
            news.push(reader.news().ok_or(Unreadable::Broken)?);
        }
        Ok(news)
    }
}

/// What a sidecar has under way where, without endpoints that have nothing to do.
pub fn load(loads: &[(EndpointHash, OwnLoad)]) -> Vec<u8> {
    let mut bytes = vec![FORMAT];
    let busy = loads.iter().filter(|(_, load)| load.requests > 0 || load.pending_tokens >= 1.0);
    for (endpoint, load) in busy.take((LONGEST_LOAD - 1) / LOAD_BYTES) {
        bytes.extend(endpoint.0.to_le_bytes());
        bytes.extend(u32::try_from(load.requests).unwrap_or(u32::MAX).to_le_bytes());
        // Rounded, and at most what fits.
        bytes.extend((load.pending_tokens.round() as u32).to_le_bytes());
    }
    bytes
}

/// Whether a load says that there is nothing.
pub fn is_idle(load: &[u8]) -> bool {
    load.len() <= 1
}

/// What a peer has under way where, or `None` where it is not written as we do.
pub fn read_load(bytes: &[u8]) -> Option<Vec<(EndpointHash, OwnLoad)>> {
    if bytes.len() > LONGEST_LOAD {
        return None;
    }
    let mut reader = Reader(bytes.strip_prefix(&[FORMAT])?);
    let mut loads = Vec::new();
    while !reader.0.is_empty() {
        let endpoint = EndpointHash(u64::from_le_bytes(reader.bytes()?));
        let requests = u64::from(u32::from_le_bytes(reader.bytes()?));
        let pending_tokens = f64::from(u32::from_le_bytes(reader.bytes()?));
        loads.push((endpoint, OwnLoad { requests, pending_tokens }));
    }
    Some(loads)
}

/// How many keys fit into so many bytes, with what stands before them.
fn keys_in(bytes: usize) -> usize {
    bytes.saturating_sub(NEWS_BYTES) / KEY_BYTES
}

/// Of a number that is at most [`MAX_BLOCKS`].
fn short(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn news(&mut self) -> Option<HashedNews> {
        let endpoint = EndpointHash(u64::from_le_bytes(self.bytes()?));
        let depth = usize::from(u16::from_le_bytes(self.bytes()?));
        let count = usize::from(u16::from_le_bytes(self.bytes()?));
        if count == 0 || depth + count > MAX_BLOCKS {
            return None;
        }
        // What is said to be there must be there before room is made for it.
        let (keys, rest) = self.0.split_at_checked(count * KEY_BYTES)?;
        self.0 = rest;
        let mut keys = Reader(keys);
        let keys = std::iter::from_fn(|| keys.bytes().map(u64::from_le_bytes)).collect();
        Some(HashedNews { endpoint, depth, keys })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn news(endpoint: &str, depth: usize, keys: impl IntoIterator<Item = u64>) -> HashedNews {
        News { endpoint: endpoint.into(), depth, keys: keys.into_iter().collect() }.into()
    }

    /// All that entries tell, the parts of one piece of news put together again.
    fn read(dialect: &Dialect, entries: &[Vec<u8>]) -> Vec<HashedNews> {
        let mut all: Vec<HashedNews> = Vec::new();
        for part in entries.iter().flat_map(|entry| dialect.news(entry).unwrap()) {
            match all.last_mut() {
                Some(last) if last.endpoint == part.endpoint && last.depth + last.keys.len() == part.depth => {
                    last.keys.extend(part.keys);
                }
                _ => all.push(part),
            }
        }
        all
    }

    #[test]
    fn an_entry_has_these_bytes() {
        let entries = Dialect::of(7, 0).entries(&[news("10.0.0.1:8000", 258, [0x0102_0304_0506_0708])]);
        let mark = &Sha256::digest([b"attache affinity".as_slice(), &[0; 8]].concat())[..4];
        let expected = [
            &[1, 7, 0, 0, 0],
            mark,
            &xxh3_64(b"10.0.0.1:8000").to_le_bytes(),
            &[2, 1, 1, 0],
            &[8, 7, 6, 5, 4, 3, 2, 1],
        ];
        assert_eq!(entries, [expected.concat()]);
    }

    #[test]
    fn sidecars_of_other_versions_and_with_other_secrets_are_not_heard() {
        let [entry] = Dialect::of(1, 5).entries(&[news("a", 0, [1, 2])]).try_into().unwrap();
        assert_eq!(Dialect::of(1, 5).news(&entry).map(|news| news.len()), Ok(1));
        for other in [Dialect::of(2, 5), Dialect::of(1, 6), Dialect::of(1, 0)] {
            assert_eq!(other.news(&entry), Err(Unreadable::OfOthers));
        }
        let mut of_another_format = entry;
        of_another_format[0] = FORMAT + 1;
        assert_eq!(Dialect::of(1, 5).news(&of_another_format), Err(Unreadable::OfOthers));
        assert_eq!(read_load(&[FORMAT + 1]), None);
    }

    #[test]
    fn an_entry_that_promises_more_than_it_holds_is_broken() {
        let dialect = Dialect::new(0);
        let [whole] = dialect.entries(&[news("a", 0, 0..3)]).try_into().unwrap();
        for length in HEADER_BYTES + 1..whole.len() {
            assert_eq!(dialect.news(&whole[..length]), Err(Unreadable::Broken), "{length}");
        }
        let counted = |depth: u16, count: u16, keys: usize| {
            let parts = [&dialect.header[..], &[0; 8], &depth.to_le_bytes(), &count.to_le_bytes(), &vec![0; keys * 8]];
            dialect.news(&parts.concat()).map(|news| news.len())
        };
        assert_eq!(counted(4095, 1, 1), Ok(1));
        assert_eq!(counted(4095, 2, 2), Err(Unreadable::Broken));
        assert_eq!(counted(0, u16::MAX, 3), Err(Unreadable::Broken));
        assert_eq!(counted(0, 0, 0), Err(Unreadable::Broken));
    }

    #[test]
    fn a_load_names_only_endpoints_that_have_something_to_do() {
        let busy = OwnLoad { requests: 3, pending_tokens: 80_000.4 };
        let endless = OwnLoad { requests: u64::MAX, pending_tokens: f64::INFINITY };
        let loads =
            [("a", busy), ("b", OwnLoad::default()), ("c", endless)].map(|(id, load)| (EndpointHash::of(id), load));
        let bytes = load(&loads);
        let most = f64::from(u32::MAX);
        assert_eq!(
            read_load(&bytes).unwrap(),
            [
                (EndpointHash::of("a"), OwnLoad { requests: 3, pending_tokens: 80_000.0 }),
                (EndpointHash::of("c"), OwnLoad { requests: u64::from(u32::MAX), pending_tokens: most }),
            ]
        );
        assert!(is_idle(&load(&loads[1..2])) && !is_idle(&bytes));
        assert_eq!(read_load(&bytes[..bytes.len() - 1]), None);
        assert_eq!(read_load(&vec![FORMAT; LONGEST_LOAD + LOAD_BYTES]), None);
    }

    proptest! {
        #[test]
        fn what_is_told_is_what_is_heard_in_entries_that_are_short(
            all in prop::collection::vec((0_u8..4, 0_usize..4_096, prop::collection::vec(any::<u64>(), 1..1_500)), 0..8)
        ) {
            let dialect = Dialect::new(9);
            let all: Vec<HashedNews> = all
                .into_iter()
                // Each of another endpoint than the one before, so that they can be told apart.
                .enumerate()
                .map(|(at, (endpoint, depth, keys))| {
                    let most = MAX_BLOCKS - depth;
                    news(&format!("{endpoint}-{}", at % 2), depth, keys.into_iter().take(most))
                })
                .collect();
            let entries = dialect.entries(&all);
            prop_assert!(entries.iter().all(|entry| entry.len() <= LONGEST_ENTRY));
            prop_assert_eq!(read(&dialect, &entries), all);
        }

        #[test]
        fn no_bytes_are_too_strange_and_none_make_more_than_they_are(
            mut bytes in prop::collection::vec(any::<u8>(), 0..6_000), is_ours in any::<bool>()
        ) {
            let dialect = Dialect::new(9);
            if is_ours {
                bytes.splice(..0, dialect.header);
            }
            let keys: usize = dialect.news(&bytes).unwrap_or_default().iter().map(|heard| heard.keys.len()).sum();
            prop_assert!(keys * KEY_BYTES <= bytes.len());
            let loads = read_load(&bytes).unwrap_or_default();
            prop_assert!(loads.len() * LOAD_BYTES <= bytes.len());
        }

        #[test]
        fn a_broken_byte_is_read_as_something_or_nothing(at in 0_usize..200, byte in any::<u8>()) {
            let dialect = Dialect::new(9);
            let [mut entry] = dialect.entries(&[news("a", 3, 0..20), news("b", 0, 0..5)]).try_into().unwrap();
            if let Some(place) = entry.get_mut(at) {
                *place = byte;
            }
            let total: usize = dialect.news(&entry).unwrap_or_default().iter().map(|heard| heard.keys.len()).sum();
            prop_assert!(total <= entry.len() / KEY_BYTES);
        }
    }
}
