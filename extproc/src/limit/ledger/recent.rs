//! A table of bounded size that forgets what was not written for longest.
//!
//! Two generations instead of a list of uses: when the young one is full, it becomes the old one, and what was the old one is
//! gone. So reading changes nothing, and no entry has links to others.

use std::collections::HashMap;

use super::name::CounterName;

#[derive(Debug)]
pub(super) struct Recent<V> {
    half: usize,
    young: HashMap<CounterName, V>,
    old: HashMap<CounterName, V>,
}

impl<V> Recent<V> {
    /// A table of at most twice `half` entries, which are at least the last `half` written.
    pub(super) fn new(half: usize) -> Self {
        Self { half, young: HashMap::new(), old: HashMap::new() }
    }

    pub(super) fn insert(&mut self, name: CounterName, value: V) {
        if self.young.len() >= self.half && !self.young.contains_key(&name) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, value);
    }

    pub(super) fn get_mut(&mut self, name: CounterName) -> Option<&mut V> {
        self.young.get_mut(&name).or_else(|| self.old.get_mut(&name))
    }

    pub(super) fn remove(&mut self, name: CounterName) {
        self.young.remove(&name);
        self.old.remove(&name);
    }

    pub(super) fn clear(&mut self) {
        self.young = HashMap::new();
        self.old = HashMap::new();
    }

    pub(super) fn get(&self, name: CounterName) -> Option<&V> {
        self.young.get(&name).or_else(|| self.old.get(&name))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::Mode;
    use crate::limit::tests::{hold, limit};

    fn name(caller: usize) -> CounterName {
        CounterName::of(&hold(&Arc::new(limit("a", 300, Mode::Soft)), &caller.to_string(), 0))
    }

    #[test]
    fn it_keeps_the_last_written_and_never_more_than_twice_its_half() {
        let mut recent = Recent::new(4);
        for written in 0..50 {
            recent.insert(name(written), written);
            assert!(recent.young.len() + recent.old.len() <= 8);
            for kept in (0..=written).rev().take(4) {
                assert_eq!(recent.get(name(kept)), Some(&kept));
            }
        }
        assert_eq!(recent.get(name(0)), None);
    }

    #[test]
    fn the_latest_value_counts_and_what_was_removed_is_gone() {
        let mut recent = Recent::new(1);
        recent.insert(name(1), "first");
        recent.insert(name(2), "another");
        recent.insert(name(1), "second");
        assert_eq!(recent.get(name(1)), Some(&"second"));
        recent.remove(name(1));
        assert_eq!(recent.get(name(1)), None);
    }
}
