//! What sidecars tell each other over Redis, where anybody may have written.

use attache::sharing::codec::{
    Dialect, EndpointHash, HashedNews, LONGEST_ENTRY, LONGEST_LOAD, is_idle, load, read_load,
};

use crate::head::Head;

/// What a block's hash takes, what an endpoint's load, and what a piece of news with one block.
const KEY_BYTES: usize = 8;
const LOAD_BYTES: usize = 16;
const NEWS_BYTES: usize = 20;

/// What is read takes no more than its bytes, and is written so that it reads the same.
pub fn sharing(input: &[u8]) {
    let Some((head, input)) = Head::split(input) else { return };
    match (head.chooses(0), head.chooses(1)) {
        (true, _) => loads(input),
        (_, true) => news(input),
        // So that an input need not guess what all entries begin with.
        _ => news(&[header(), input.to_vec()].concat()),
    }
}

fn header() -> Vec<u8> {
    let one = HashedNews { endpoint: EndpointHash(0), depth: 0, keys: vec![0] };
    let mut entry = Dialect::new(0).entries(&[one]).concat();
    entry.truncate(entry.len() - NEWS_BYTES);
    entry
}

fn news(entry: &[u8]) {
    let dialect = Dialect::new(0);
    let Ok(heard) = dialect.news(entry) else { return };
    let keys: usize = heard.iter().map(|news| news.keys.len()).sum();
    assert!(keys * KEY_BYTES + heard.len() * (NEWS_BYTES - KEY_BYTES) <= entry.len(), "{keys} keys");

    let written = dialect.entries(&heard);
    assert!(written.iter().all(|entry| entry.len() <= LONGEST_ENTRY));
    let again: Vec<_> = written.iter().flat_map(|entry| dialect.news(entry).unwrap_or_default()).collect();
    assert_eq!(joined(&again), joined(&heard));
    assert_eq!(dialect.entries(&again), written, "it is written the same");
}

/// Every hash with its endpoint and depth: a piece of news may be told in parts.
fn joined(news: &[HashedNews]) -> Vec<(EndpointHash, usize, u64)> {
    news.iter()
        .flat_map(|news| news.keys.iter().enumerate().map(|(at, key)| (news.endpoint, news.depth + at, *key)))
        .collect()
}

fn loads(bytes: &[u8]) {
    let Some(told) = read_load(bytes) else { return };
    assert!(bytes.len() <= LONGEST_LOAD && told.len() * LOAD_BYTES < bytes.len());
    let written = load(&told);
    let again = read_load(&written);
    let busy = told.into_iter().filter(|(_, load)| load.requests > 0 || load.pending_tokens > 0.0);
    assert_eq!(again, Some(busy.collect()), "what has nothing to do is left out");
    assert_eq!(again.map(|again| load(&again)).as_ref(), Some(&written));
    assert_eq!(is_idle(&written), written.len() <= 1);
}
