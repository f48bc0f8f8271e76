//! What endpoints are believed to hold: a prompt's way through the index, and what the index learns of a prompt that was sent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Ask, State};
use crate::affinity::blocks::{PrefixChain, block_len, blocks_len};
use crate::affinity::index::{Place, Slots, WasHot};
use crate::affinity::member::Member;
use crate::affinity::news::News;
use crate::affinity::policy::Basis;

/// The most leading blocks that can be hot: 128 KiB, longer than system prompts and tools are.
const HOT_BLOCKS: usize = 176;
/// A block is hot when it is in more than this part of what one endpoint gets of the requests, and is no longer below the other.
const HOT_ABOVE: f64 = 0.5;
const COLD_BELOW: f64 = 0.25;
/// So many requests must have carried a block of late before it can be hot: where there are fewer, one endpoint can serve them
/// all, and one conversation is all there is.
const HOT_REQUESTS: f64 = 16.0;
/// A block that peers heard of is told again only when it has not been used for so long, in seconds.
const RETELL_AFTER: u32 = 5;

/// A prompt's way through the index.
pub(super) struct Walk {
    /// For each member, how many bytes of the prompt's beginning it holds.
    pub(super) matched: Vec<u64>,
    /// How many blocks these are.
    depths: Vec<usize>,
    pub(super) hot_bytes: u64,
    /// How many blocks these are.
    pub(super) hot_blocks: usize,
    /// The first block that is not hot.
    pub(super) key: Option<u64>,
}

/// Whether an endpoint held a block already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    New,
    LongAgo,
    Recently,
}

impl State {
    /// Follows the prompt through the index as far as anybody holds it.
    pub(super) fn walk(&self, ask: &Ask) -> Walk {
        let none = self.members.len();
        let mut walk = Walk { matched: vec![0; none], depths: vec![0; none], hot_bytes: 0, hot_blocks: 0, key: None };
        let Some(prompt) = ask.prompt.as_ref().filter(|_| self.policy.basis == Basis::Prefix) else {
            walk.key = ask.prompt.as_ref().and_then(|prompt| prompt.blocks.first()).map(|hash| hash ^ ask.scope);
            return walk;
        };
        let latest_horizon = self.members.iter().map(|member| member.horizon).max().unwrap_or(0);
        let mut holders = Slots::NONE;
        self.members.iter().filter_map(|member| member.slot).for_each(|slot| holders.insert(slot));
        let (mut bytes, mut blocks) = (0, 0);
        let mut is_hot = true;
        for (depth, hash) in prompt.blocks.iter().enumerate() {
            let key = hash ^ ask.scope;
            let place = self.index.find(key);
            is_hot &= depth < HOT_BLOCKS && place.is_some_and(|place| self.index.is_hot(place));
            if is_hot {
                walk.hot_bytes += block_len(depth) as u64;
                walk.hot_blocks += 1;
            } else if walk.key.is_none() {
                walk.key = Some(key);
            }
            let Some(place) = place else { break };
            let mut still = self.index.holders(place).and(&holders);
            let last_used = self.index.last_used(place);
            if last_used < latest_horizon {
                still = self.without_forgotten(&still, last_used);
            }
            if still != holders {
                for slot in holders.without(&still).iter() {
                    self.note_matched(&mut walk, slot, bytes, blocks);
                }
                holders = still;
            }
            if holders.is_empty() && !is_hot {
                break;
            }
            bytes += block_len(depth) as u64;
            blocks = depth + 1;
        }
        for slot in holders.iter() {
            self.note_matched(&mut walk, slot, bytes, blocks);
        }
        self.note_under_way(&mut walk, ask);
        walk
    }

    fn note_matched(&self, walk: &mut Walk, slot: usize, bytes: u64, blocks: usize) {
        let Some(member) = self.slots.get(slot).copied().flatten() else { return };
        if let Some((matched, depth)) = walk.matched.get_mut(member).zip(walk.depths.get_mut(member)) {
            (*matched, *depth) = (bytes, blocks);
        }
    }

    /// Where a prompt with the same beginning is under way, that is about to be in the cache.
    fn note_under_way(&self, walk: &mut Walk, ask: &Ask) {
        for (slot, common) in self.under_way.alike(ask) {
            let member = self.slots.get(slot).copied().flatten();
            let Some(depth) = member.and_then(|member| walk.depths.get(member)) else { continue };
            if let Some(blocks) = common(*depth) {
                self.note_matched(walk, slot, blocks_len(blocks), blocks);
            }
        }
    }

    /// Those of the holders that did not lose what was last used then.
    fn without_forgotten(&self, holders: &Slots, last_used: u32) -> Slots {
        let mut still = Slots::NONE;
        for slot in holders.iter() {
            let member = self.slots.get(slot).copied().flatten().and_then(|at| self.members.get(at));
            if member.is_some_and(|member| member.horizon <= last_used) {
                still.insert(slot);
            }
        }
        still
    }

    /// The member holds the prompt from now on, or as much of it as it has room for.
    pub(super) fn hold(&mut self, at: usize, ask: &Ask, now: Instant) {
        let Some(prompt) = ask.prompt.clone().filter(|_| self.policy.basis == Basis::Prefix) else { return };
        let Some((slot, endpoint)) =
            self.members.get(at).and_then(|member| Some((member.slot?, Arc::clone(&member.endpoint.id))))
        else {
            return;
        };
        let now = self.seconds(now);
        let held = self.most_blocks(at, &prompt);
        let mut news = None;
        for (depth, hash) in prompt.blocks.iter().enumerate().take(held) {
            let (held, place) = self.hold_block(slot, hash ^ ask.scope, depth, now);
            if let Some(place) = place.filter(|_| depth < HOT_BLOCKS) {
                self.warm(place, now);
            }
            if held != Held::Recently && news.is_none() {
                news = Some(depth);
            }
        }
        if let (Some(newsroom), Some(depth)) = (&mut self.newsroom, news) {
            let keys = prompt.blocks.iter().take(held).skip(depth).map(|hash| hash ^ ask.scope).collect();
            newsroom.add(News { endpoint, depth, keys });
        }
        self.keep_within_capacity(at);
    }

    /// How many of a prompt's blocks the member's cache has room for, and the index may spend on one prompt.
    fn most_blocks(&self, at: usize, prompt: &PrefixChain) -> usize {
        let most = prompt.blocks.len().min(self.index.most_of_one_prompt());
        let Some(capacity) = self.capacity_bytes(at).filter(|capacity| *capacity < prompt.bytes) else { return most };
        let mut bytes = 0_u64;
        let fits = |index: &usize| {
            bytes = bytes.saturating_add(block_len(*index) as u64);
            bytes <= capacity
        };
        (0..most).take_while(fits).count()
    }

    fn keep_within_capacity(&mut self, at: usize) {
        if let Some(capacity) = self.capacity_bytes(at)
            && let Some(member) = self.members.get_mut(at)
        {
            member.keep_within(capacity);
        }
    }

    /// The endpoint in `slot` holds one block. Tells whether it did, and where the block lies.
    fn hold_block(&mut self, slot: usize, key: u64, depth: usize, now: u32) -> (Held, Option<Place>) {
        let bytes = block_len(depth) as u64;
        let Some(place) = self.index.find(key) else {
            let (place, evicted) = self.index.insert(key, depth, now);
            if let Some(evicted) = evicted {
                self.uncount(&evicted.holders, block_len(evicted.depth) as u64, evicted.last_used);
            }
            if let Some(place) = place {
                let mut holders = Slots::NONE;
                holders.insert(slot);
                self.index.set_holders(place, &holders);
                self.count(&holders, bytes, now);
            }
            return (Held::New, place);
        };
        let last_used = self.index.last_used(place);
        let before = self.index.holders(place);
        let mut holders = self.without_forgotten(&before, last_used);
        let age = now.saturating_sub(last_used);
        // Of what many hold it matters less when exactly it was used, and noting it costs more.
        if age > (holders.iter().count() / 16) as u32 {
            self.uncount(&holders, bytes, last_used);
            self.count(&holders, bytes, now);
            self.index.touch(place, now);
        }
        let held = match (holders.contains(slot), age > RETELL_AFTER) {
            (false, _) => Held::New,
            (true, true) => Held::LongAgo,
            (true, false) => Held::Recently,
        };
        if held == Held::New {
            let mut one = Slots::NONE;
            one.insert(slot);
            self.count(&one, bytes, self.index.last_used(place));
            holders.insert(slot);
        }
        if holders != before {
            self.index.set_holders(place, &holders);
        }
        (held, Some(place))
    }

    fn warm(&mut self, place: Place, now: u32) {
        // One endpoint alone may still be one of several sites, which ask as well what tells conversations apart.
        let share_of_one = 1.0 / self.members.len().max(2) as f64;
        let requests = self.requests.max(1.0);
        let judge = |heat: f64, was: WasHot| {
            let bound = match was {
                WasHot::Yes => COLD_BELOW,
                WasHot::No => HOT_ABOVE,
            };
            heat >= HOT_REQUESTS * bound / HOT_ABOVE && heat / requests > bound * share_of_one
        };
        self.index.warm(place, self.epoch, now, judge);
    }

    pub(super) fn hear_news(&mut self, news: &News, age: Duration, now: Instant) {
        let Some(at) = self.position(&news.endpoint) else { return };
        let Some((slot, horizon)) = self.members.get(at).and_then(|member| Some((member.slot?, member.horizon))) else {
            return;
        };
        let then = self.seconds(now).saturating_sub(u32::try_from(age.as_secs()).unwrap_or(u32::MAX));
        if then < horizon {
            return;
        }
        let most = self.index.most_of_one_prompt().saturating_sub(news.depth);
        for (depth, key) in news.keys.iter().enumerate().take(most) {
            self.hold_block(slot, *key, news.depth.saturating_add(depth), then);
        }
        self.keep_within_capacity(at);
    }

    fn count(&mut self, holders: &Slots, bytes: u64, at: u32) {
        for slot in holders.iter() {
            if let Some(member) = self.in_slot(slot) {
                member.ages.add(bytes, at);
            }
        }
    }

    fn uncount(&mut self, holders: &Slots, bytes: u64, at: u32) {
        for slot in holders.iter() {
            if let Some(member) = self.in_slot(slot).filter(|member| member.horizon <= at) {
                member.ages.remove(bytes, at);
            }
        }
    }

    fn in_slot(&mut self, slot: usize) -> Option<&mut Member> {
        let at = self.slots.get(slot).copied().flatten()?;
        self.members.get_mut(at)
    }
}
