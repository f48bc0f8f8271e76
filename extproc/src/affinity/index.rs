//! The index: which endpoints probably hold which blocks of prompts, in a fixed amount of memory.
//!
//! A table with open addressing, cut into shards that grow by themselves, so that growing never stops a request for long. An
//! entry is 24 bytes for up to 64 endpoints, and 8 more for every further 64. When a shard is full, the oldest of a sample
//! goes, of equally old ones the deepest: heads of chains stay, without which their tails are worth nothing.

use std::mem::size_of;

/// The most endpoints of one pool that are remembered; others can be chosen, but not for what they hold.
pub(super) const MAX_SLOTS: usize = 1024;
const MAX_WORDS: usize = MAX_SLOTS / 64;
const SHARDS: usize = 256;
/// Slots of a shard that was just made.
const SMALLEST_SHARD: usize = 8;
/// How many entries are looked at for the oldest.
const SAMPLE: usize = 16;
/// What is counted for one request carrying a block, so that halving keeps fractions.
const HEAT_UNIT: u16 = 4;
/// A block that was not used for so long has no heat, whatever its counters say: they wrap.
const COLD_AFTER_SECONDS: u32 = 600;

/// A set of endpoints, by slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Slots([u64; MAX_WORDS]);

impl Slots {
    pub(super) const NONE: Self = Self([0; MAX_WORDS]);

    pub(super) fn insert(&mut self, slot: usize) {
        if let Some(word) = self.0.get_mut(slot / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    pub(super) fn contains(&self, slot: usize) -> bool {
        self.0.get(slot / 64).is_some_and(|word| word >> (slot % 64) & 1 == 1)
    }

    /// Those that are in both.
    pub(super) fn and(&self, other: &Self) -> Self {
        let mut both = *self;
        both.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= other);
        both
    }

    /// Those that are not in the other.
    pub(super) fn without(&self, other: &Self) -> Self {
        let mut rest = *self;
        rest.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word &= !other);
        rest
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The slots of the set, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                rest &= rest.wrapping_sub(1);
                (bit < 64).then_some(index * 64 + bit)
            })
        })
    }
}

/// One block, as the index knows it.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// 0 is an empty slot.
    key: u64,
    /// The first 64 endpoints.
    holders: u64,
    /// In seconds since the pool's start.
    last_used: u32,
    /// How many requests carried it of late, in units, as of `epoch`.
    heat: u16,
    epoch: u8,
    /// How far from the head, in steps of [`DEPTH_STEP`] blocks; and in the highest bit whether the block is hot.
    depth: u8,
}

const HOT: u8 = 0x80;
const DEEPEST: u8 = 0x7f;
/// Divides the numbers of blocks at which their length changes, so that the depth tells the length.
const DEPTH_STEP: usize = 16;

impl Entry {
    fn heat_at(&self, epoch: u8, now: u32) -> u16 {
        if now.saturating_sub(self.last_used) > COLD_AFTER_SECONDS {
            return 0;
        }
        self.heat.checked_shr(u32::from(epoch.wrapping_sub(self.epoch))).unwrap_or(0)
    }
}

/// Where an entry lies. Good until the next insertion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    shard: usize,
    slot: usize,
}

/// The table.
#[derive(Debug)]
pub(super) struct Index {
    shards: Vec<Shard>,
    /// Words for each entry beyond its first.
    further_words: usize,
    most_slots_of_a_shard: usize,
    entries: usize,
    evictions: u64,
}

#[derive(Debug, Default)]
struct Shard {
    entries: Vec<Entry>,
    /// The further words of each entry, in the same order.
    further: Vec<u64>,
    used: usize,
    hand: usize,
}

/// A block that is no longer known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Evicted {
    /// When it was last used, in seconds since the pool's start.
    pub(super) last_used: u32,
    /// Its number of blocks from the head, as far as it is known: enough to tell its length.
    pub(super) depth: usize,
    pub(super) holders: Slots,
}

/// Whether a block was hot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WasHot {
    Yes,
    No,
}

impl Index {
    /// A table that never takes more than `budget` bytes, for endpoints in slots below `slots`.
    pub(super) fn new(budget: usize, slots: usize) -> Self {
        let further_words = slots.min(MAX_SLOTS).div_ceil(64).saturating_sub(1);
        let bytes_per_slot = size_of::<Entry>() + further_words * size_of::<u64>();
        let slots = budget.saturating_sub(SHARDS * size_of::<Shard>()) / bytes_per_slot;
        Self {
            shards: std::iter::repeat_with(Shard::default).take(SHARDS).collect(),
            further_words,
            // A shard that grows is there twice for a moment, and one grows at a time.
            most_slots_of_a_shard: slots / (SHARDS + 1),
            entries: 0,
            evictions: 0,
        }
    }

    /// How many blocks of one prompt it takes: no single prompt, however long, puts out more than a part of what is known.
    pub(super) fn most_of_one_prompt(&self) -> usize {
        const PARTS: usize = 16;
        (self.most_slots_of_a_shard.saturating_mul(SHARDS) / PARTS).max(1)
    }

    /// How many endpoints it can tell apart.
    pub(super) fn slots(&self) -> usize {
        (self.further_words + 1) * 64
    }

    /// How many blocks are known.
    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// How many had to go for others.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions
    }

    /// How much memory it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let of_shard = |shard: &Shard| shard.entries.capacity() * size_of::<Entry>() + shard.further.capacity() * 8;
        self.shards.iter().map(of_shard).sum::<usize>() + SHARDS * size_of::<Shard>()
    }

    pub(super) fn find(&self, key: u64) -> Option<Place> {
        let key = key.max(1);
        let shard = shard_of(key);
        Some(Place { shard, slot: self.shards.get(shard)?.find(key)? })
    }

    /// When the block was last used, in seconds since the pool's start.
    pub(super) fn last_used(&self, place: Place) -> u32 {
        self.entry(place).last_used
    }

    pub(super) fn holders(&self, place: Place) -> Slots {
        self.shards.get(place.shard).map_or(Slots::NONE, |shard| shard.holders(place.slot, self.further_words))
    }

    pub(super) fn set_holders(&mut self, place: Place, holders: &Slots) {
        let words = self.further_words;
        if let Some(shard) = self.shards.get_mut(place.shard) {
            shard.set_holders(place.slot, holders, words);
        }
    }

    pub(super) fn touch(&mut self, place: Place, now: u32) {
        if let Some(entry) = self.entry_mut(place) {
            entry.last_used = now;
        }
    }

    /// Counts one more request that carries the block. `is_hot` judges the heat, in requests, by whether it was hot before.
    pub(super) fn warm(&mut self, place: Place, epoch: u8, now: u32, is_hot: impl FnOnce(f64, WasHot) -> bool) {
        if let Some(entry) = self.entry_mut(place) {
            entry.heat = entry.heat_at(epoch, now).saturating_add(HEAT_UNIT);
            entry.epoch = epoch;
            let before = if entry.depth & HOT == 0 { WasHot::No } else { WasHot::Yes };
            let hot = is_hot(f64::from(entry.heat) / f64::from(HEAT_UNIT), before);
            entry.depth = (entry.depth & DEEPEST) | if hot { HOT } else { 0 };
        }
    }

    pub(super) fn is_hot(&self, place: Place) -> bool {
        self.entry(place).depth & HOT != 0
    }

    /// Makes a block known that was not, `depth` blocks from the head.
    pub(super) fn insert(&mut self, key: u64, depth: usize, now: u32) -> (Option<Place>, Option<Evicted>) {
        let key = key.max(1);
        let shard_index = shard_of(key);
        let (words, most) = (self.further_words, self.most_slots_of_a_shard);
        let Some(shard) = self.shards.get_mut(shard_index) else { return (None, None) };
        let evicted = shard.make_room(words, most);
        if evicted.is_some() {
            self.entries -= 1;
            self.evictions += 1;
        }
        let depth = u8::try_from(depth / DEPTH_STEP).unwrap_or(DEEPEST).min(DEEPEST);
        let slot = shard.insert(Entry { key, last_used: now, depth, ..Entry::default() }, &Slots::NONE, words);
        self.entries += usize::from(slot.is_some());
        (slot.map(|slot| Place { shard: shard_index, slot }), evicted)
    }

    fn entry(&self, place: Place) -> Entry {
        self.shards.get(place.shard).and_then(|shard| shard.entries.get(place.slot)).copied().unwrap_or_default()
    }

    fn entry_mut(&mut self, place: Place) -> Option<&mut Entry> {
        self.shards.get_mut(place.shard)?.entries.get_mut(place.slot)
    }
}

fn shard_of(key: u64) -> usize {
    (key >> 56) as usize % SHARDS
}

impl Shard {
    fn find(&self, key: u64) -> Option<usize> {
        let mut slot = self.home(key)?;
        // A shard is never full, so the search ends at an empty slot; the bound is for a reader's peace.
        for _ in 0..self.entries.len() {
            match self.entries.get(slot)?.key {
                0 => return None,
                found if found == key => return Some(slot),
                _ => slot = self.next(slot),
            }
        }
        None
    }

    /// Where an entry lies if nobody is in its way.
    fn home(&self, key: u64) -> Option<usize> {
        // The lower bits: the highest ones chose the shard.
        (key as usize).checked_rem(self.entries.len())
    }

    fn next(&self, slot: usize) -> usize {
        if slot + 1 == self.entries.len() { 0 } else { slot + 1 }
    }

    /// Grows, or evicts an entry, so that one more can be inserted.
    fn make_room(&mut self, words: usize, most_slots: usize) -> Option<Evicted> {
        // Above three quarters, a search for what is not there takes ten times as long.
        if (self.used + 1) * 4 <= self.entries.len() * 3 {
            return None;
        }
        if self.entries.len() < most_slots {
            self.grow((self.entries.len() * 2).clamp(SMALLEST_SHARD, most_slots.max(SMALLEST_SHARD)), words);
            return None;
        }
        self.evict(words)
    }

    fn grow(&mut self, slots: usize, words: usize) {
        let entries = std::mem::replace(&mut self.entries, vec![Entry::default(); slots]);
        let further = std::mem::replace(&mut self.further, vec![0; slots * words]);
        self.used = 0;
        self.hand = 0;
        for (slot, entry) in entries.into_iter().enumerate().filter(|(_, entry)| entry.key != 0) {
            let holders = holders(entry.holders, further.get(slot * words..(slot + 1) * words).unwrap_or_default());
            self.insert(entry, &holders, words);
        }
    }

    fn insert(&mut self, entry: Entry, holders: &Slots, words: usize) -> Option<usize> {
        let mut slot = self.home(entry.key)?;
        while self.entries.get(slot)?.key != 0 {
            slot = self.next(slot);
        }
        *self.entries.get_mut(slot)? = entry;
        self.used += 1;
        self.set_holders(slot, holders, words);
        Some(slot)
    }

    /// Takes out the oldest of the next few entries.
    fn evict(&mut self, words: usize) -> Option<Evicted> {
        let mut oldest: Option<(u32, std::cmp::Reverse<u8>, usize)> = None;
        let mut seen = 0;
        for _ in 0..self.entries.len() {
            let slot = self.hand;
            self.hand = self.next(self.hand);
            let entry = self.entries.get(slot)?;
            if entry.key == 0 {
                continue;
            }
            let age = (entry.last_used, std::cmp::Reverse(entry.depth & DEEPEST), slot);
            oldest = Some(oldest.map_or(age, |oldest| oldest.min(age)));
            seen += 1;
            if seen == SAMPLE {
                break;
            }
        }
        let (_, _, slot) = oldest?;
        let entry = *self.entries.get(slot)?;
        let depth = usize::from(entry.depth & DEEPEST) * DEPTH_STEP;
        let evicted = Evicted { last_used: entry.last_used, depth, holders: self.holders(slot, words) };
        self.remove(slot, words);
        Some(evicted)
    }

    /// Empties a slot and moves up whoever had to step aside for it, so that every search still finds what it looks for.
    fn remove(&mut self, mut hole: usize, words: usize) {
        let mut slot = self.next(hole);
        while let Some(entry) = self.entries.get(slot).copied().filter(|entry| entry.key != 0) {
            let Some(home) = self.home(entry.key) else { break };
            let is_home_after_hole =
                if hole <= slot { hole < home && home <= slot } else { hole < home || home <= slot };
            if !is_home_after_hole {
                let holders = self.holders(slot, words);
                if let Some(place) = self.entries.get_mut(hole) {
                    *place = entry;
                }
                self.set_holders(hole, &holders, words);
                hole = slot;
            }
            slot = self.next(slot);
        }
        if let Some(entry) = self.entries.get_mut(hole) {
            *entry = Entry::default();
        }
        self.used = self.used.saturating_sub(1);
    }

    fn holders(&self, slot: usize, words: usize) -> Slots {
        let first = self.entries.get(slot).map_or(0, |entry| entry.holders);
        holders(first, self.further.get(slot * words..(slot + 1) * words).unwrap_or_default())
    }

    fn set_holders(&mut self, slot: usize, holders: &Slots, words: usize) {
        let [first, rest @ ..] = &holders.0;
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.holders = *first;
        }
        if let Some(further) = self.further.get_mut(slot * words..(slot + 1) * words) {
            further.iter_mut().zip(rest).for_each(|(word, holders)| *word = *holders);
        }
    }
}

fn holders(first: u64, further: &[u64]) -> Slots {
    let mut slots = Slots::NONE;
    let words = std::iter::once(&first).chain(further);
    slots.0.iter_mut().zip(words).for_each(|(slot, word)| *slot = *word);
    slots
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    fn key(n: u64) -> u64 {
        xxh3_64(&n.to_le_bytes())
    }

    fn slots(of: &[usize]) -> Slots {
        let mut slots = Slots::NONE;
        of.iter().for_each(|slot| slots.insert(*slot));
        slots
    }

    #[test]
    fn a_set_of_slots_lists_what_was_put_in() {
        let set = slots(&[0, 63, 64, 700, 1023]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 700, 1023]);
        assert!(set.contains(700) && !set.contains(701) && !set.is_empty());
    }

    #[test]
    fn a_block_is_found_with_all_that_is_known_of_it() {
        let mut index = Index::new(1 << 20, 200);
        assert_eq!(index.slots(), 256);
        assert!(index.find(key(1)).is_none());
        let place = index.insert(key(1), 70, 5).0.unwrap();
        index.set_holders(place, &slots(&[3, 199]));
        let place = index.find(key(1)).unwrap();
        assert_eq!((index.holders(place), index.last_used(place)), (slots(&[3, 199]), 5));
        index.touch(place, 9);
        assert_eq!(index.last_used(place), 9);
    }

    #[test]
    fn heat_halves_with_every_epoch_and_goes_when_nobody_came_for_long() {
        let mut index = Index::new(1 << 20, 8);
        let place = index.insert(key(1), 0, 0).0.unwrap();
        let mut heat = |epoch, now| {
            let mut seen = 0.0;
            index.warm(place, epoch, now, |heat, _| {
                seen = heat;
                false
            });
            seen
        };
        assert_eq!([heat(0, 0), heat(0, 0), heat(0, 0), heat(1, 1)], [1.0, 2.0, 3.0, 2.5]);
        assert_eq!(heat(3, 1), 1.5);
        index.touch(place, 1_000);
        assert_eq!(index.entry(place).heat_at(3, 1_601), 0);
    }

    #[test]
    fn hotness_is_remembered_for_the_next_judgement() {
        let mut index = Index::new(1 << 20, 8);
        let place = index.insert(key(1), 4_000, 0).0.unwrap();
        index.warm(place, 0, 0, |_, was| was == WasHot::No);
        assert!(index.is_hot(place));
        index.warm(place, 0, 0, |_, was| was == WasHot::No);
        assert!(!index.is_hot(place));
    }

    #[test]
    fn the_oldest_go_first_and_of_equally_old_ones_the_deepest() {
        let mut index = Index::new(400_000, 8);
        let mut kept = HashMap::new();
        for n in 0..40_000_u64 {
            // Every tenth is used again and again.
            index.insert(key(n), 0, n as u32);
            for n in (0..n).rev().take(100).filter(|n| n % 10 == 0) {
                if let Some(place) = index.find(key(n)) {
                    index.touch(place, u32::MAX);
                    kept.insert(n, ());
                }
            }
        }
        assert!(index.evictions() > 20_000);
        let survivors = kept.keys().filter(|n| index.find(key(**n)).is_some()).count();
        assert!(survivors * 100 > kept.len() * 95, "{survivors} of {}", kept.len());
    }

    #[test]
    fn the_budget_is_never_exceeded_while_all_of_it_is_used() {
        for (budget, endpoints) in [(100_000, 8), (1 << 20, 64), (1 << 20, 256), (4 << 20, 1024)] {
            let mut index = Index::new(budget, endpoints);
            for n in 0..200_000 {
                index.insert(key(n), 0, 0);
                assert!(index.bytes() <= budget, "{} of {budget}", index.bytes());
            }
            assert!(index.bytes() * 10 > budget * 8, "{} of {budget}", index.bytes());
            assert!(index.evictions() > 0);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Against a map, with so few keys that searches meet each other.
        #[test]
        fn whatever_is_evicted_every_other_block_is_still_found(
            steps in prop::collection::vec((0_u64..600, 0_usize..130), 1..900),
        ) {
            let mut index = Index::new(SHARDS * size_of::<Shard>() + 257 * 24 * 11, 130);
            let mut model: HashMap<u64, (u32, Slots)> = HashMap::new();
            for (now, (n, slot)) in steps.into_iter().enumerate() {
                let now = now as u32;
                // All in one shard.
                let key = key(n) >> 8 | 1;
                let place = match index.find(key) {
                    Some(place) => place,
                    None => {
                        let (place, evicted) = index.insert(key, 0, now);
                        if let Some(evicted) = evicted {
                            let gone = model
                                .iter()
                                .find(|(_, (used, holders))| (*used, *holders) == (evicted.last_used, evicted.holders))
                                .map(|(key, _)| *key);
                            prop_assert!(model.remove(&gone.unwrap()).is_some());
                        }
                        place.unwrap()
                    }
                };
                let mut holders = index.holders(place);
                holders.insert(slot);
                index.set_holders(place, &holders);
                index.touch(place, now);
                model.insert(key, (now, holders));
                prop_assert_eq!(index.len(), model.len());
                for (key, (used, holders)) in &model {
                    let place = index.find(*key).unwrap();
                    prop_assert_eq!((index.last_used(place), index.holders(place)), (*used, *holders));
                }
            }
        }
    }
}
