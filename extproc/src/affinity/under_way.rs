//! Prompts that nobody has answered yet. Others with the same beginning are drawn to the same endpoint, but no cache is believed to
//! hold them: what an endpoint refuses must not take the place of what it holds.
//!
//! It holds an entry for each request under way, and shares its chain with it.

use std::collections::HashMap;
use std::sync::Arc;

use super::blocks::PrefixChain;
use super::pool::Ask;

/// How many prompts with the same first block are looked at for one that is placed, the latest first. Siblings come together.
const LOOKED_AT: usize = 256;

/// All of them, by their first blocks.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    by_first: HashMap<u64, Vec<Entry>>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    slot: usize,
    scope: u64,
    prompt: Arc<PrefixChain>,
}

/// Names an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnderWayId(u64);

impl UnderWay {
    /// A request for the endpoint in `slot`. `None` where its prompt has no block.
    pub(super) fn add(&mut self, slot: usize, ask: &Ask) -> Option<UnderWayId> {
        let prompt = Arc::clone(ask.prompt.as_ref()?);
        let first = first(ask)?;
        let id = self.next;
        self.next = self.next.wrapping_add(1);
        self.by_first.entry(first).or_default().push(Entry { id, slot, scope: ask.scope, prompt });
        Some(UnderWayId(id))
    }

    /// It was answered, or is gone.
    pub(super) fn remove(&mut self, ask: &Ask, UnderWayId(id): UnderWayId) {
        let Some(first) = first(ask) else { return };
        let Some(entries) = self.by_first.get_mut(&first) else { return };
        // In order: the latest come last.
        if let Some(at) = entries.iter().rposition(|entry| entry.id == id) {
            entries.remove(at);
        }
        if entries.is_empty() {
            self.by_first.remove(&first);
        }
    }

    /// Forgets what is under way to endpoints in other slots.
    pub(super) fn keep_only(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.by_first.retain(|_, entries| {
            entries.retain(|entry| is_kept(entry.slot));
            !entries.is_empty()
        });
    }

    /// Slots to which prompts with the same beginning are under way, with a function that tells how many of its first blocks that
    /// is if it is more than so many.
    pub(super) fn alike<'a>(
        &'a self,
        ask: &'a Ask,
    ) -> impl Iterator<Item = (usize, impl Fn(usize) -> Option<usize> + 'a)> {
        let entries = first(ask).and_then(|first| self.by_first.get(&first));
        let entries = entries.into_iter().flat_map(|entries| entries.iter().rev().take(LOOKED_AT));
        let alike = entries.zip(std::iter::repeat(ask.prompt.as_deref())).filter(|(entry, _)| entry.scope == ask.scope);
        alike.filter_map(|(entry, prompt)| Some((entry.slot, common(&entry.prompt.blocks, &prompt?.blocks))))
    }
}

fn first(ask: &Ask) -> Option<u64> {
    Some(ask.prompt.as_ref()?.blocks.first()? ^ ask.scope)
}

/// How many blocks two chains have in common, if that is more than so many. Each block stands for all before it, so it is enough to
/// look at few of them.
fn common<'a>(one: &'a [u64], other: &'a [u64]) -> impl Fn(usize) -> Option<usize> + 'a {
    move |beyond| {
        let same = |at: usize| one.get(at).is_some_and(|block| other.get(at) == Some(block));
        if !same(beyond) {
            return None;
        }
        let (mut known, mut end) = (beyond + 1, one.len().min(other.len()));
        while known < end {
            let middle = known.midpoint(end);
            if same(middle) { known = middle + 1 } else { end = middle }
        }
        Some(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(scope: u64, blocks: &[u64]) -> Ask {
        let chain = PrefixChain { seed: 0, blocks: blocks.to_vec(), tail: 0, bytes: 0 };
        Ask { scope, prompt: Some(Arc::new(chain)), session: None, entropy: 0 }
    }

    #[test]
    fn the_common_beginning_is_found_wherever_it_ends() {
        let other: Vec<u64> = (0..100).collect();
        for shared in 0..=100 {
            let one: Vec<u64> = (0..90).map(|at| if at < shared { at } else { 1_000 + at }).collect();
            let expected = (shared as usize).min(90);
            for beyond in 0..100 {
                let found = common(&one, &other)(beyond);
                assert_eq!(found, (beyond < expected).then_some(expected), "{shared}, {beyond}");
            }
        }
    }

    #[test]
    fn what_is_gone_and_what_is_of_another_scope_draws_nobody() {
        let mut under_way = UnderWay::default();
        let (one, sibling) = (ask(7, &[1, 2, 3]), ask(7, &[1, 2, 4]));
        let found = |under_way: &UnderWay, ask: &Ask| -> Vec<(usize, Option<usize>)> {
            under_way.alike(ask).map(|(slot, common)| (slot, common(0))).collect()
        };
        let first = under_way.add(3, &one).unwrap();
        let second = under_way.add(5, &one).unwrap();
        assert_eq!(found(&under_way, &sibling), [(5, Some(2)), (3, Some(2))]);
        assert_eq!(found(&under_way, &ask(8, &[1, 2, 4])), []);
        under_way.remove(&one, second);
        under_way.remove(&one, second);
        assert_eq!(found(&under_way, &sibling), [(3, Some(2))]);
        under_way.keep_only(|slot| slot != 3);
        assert_eq!(found(&under_way, &sibling), []);
        under_way.remove(&one, first);
        assert!(under_way.by_first.is_empty() && under_way.add(1, &ask(7, &[])).is_none());
    }
}
