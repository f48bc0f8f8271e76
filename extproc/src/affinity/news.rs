//! What a sidecar tells its peers: which endpoint was just sent which blocks. Hashes only, never text.

use std::sync::Arc;

/// The most hashes that wait to be told: 512 KiB. Beyond, the oldest news are dropped; a peer then predicts less than it could.
const MOST_HASHES: usize = 64 * 1024;

/// Blocks that one endpoint holds now, a part of one chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// The endpoint's id.
    pub endpoint: Arc<str>,
    /// How many blocks the chain has before the first of these.
    pub depth: usize,
    /// The blocks, as the index knows them: hashes of prompt, model and pool.
    pub keys: Vec<u64>,
}

/// News that wait to be told.
#[derive(Debug, Default)]
pub(super) struct Newsroom {
    waiting: std::collections::VecDeque<News>,
    hashes: usize,
    dropped: u64,
}

impl Newsroom {
    pub(super) fn add(&mut self, news: News) {
        if news.keys.is_empty() {
            return;
        }
        self.hashes += news.keys.len();
        self.waiting.push_back(news);
        while self.hashes > MOST_HASHES {
            let Some(oldest) = self.waiting.pop_front() else { break };
            self.hashes -= oldest.keys.len();
            self.dropped += 1;
        }
    }

    pub(super) fn take(&mut self) -> Vec<News> {
        self.hashes = 0;
        std::mem::take(&mut self.waiting).into()
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_told_once_and_the_oldest_are_dropped_where_nobody_asks() {
        let mut newsroom = Newsroom::default();
        let news = |endpoint: &str, keys: usize| News { endpoint: endpoint.into(), depth: 0, keys: vec![1; keys] };
        newsroom.add(news("a", 0));
        newsroom.add(news("b", 4_000));
        assert_eq!(newsroom.take(), [news("b", 4_000)]);
        assert_eq!(newsroom.take(), []);
        newsroom.add(news("c", 4_000));
        newsroom.add(news("d", MOST_HASHES - 1));
        assert_eq!(newsroom.take(), [news("d", MOST_HASHES - 1)]);
        assert_eq!(newsroom.dropped(), 1);
    }
}
