//! What a pool promises, from outside.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use super::blocks::{Chunker, MAX_BLOCKS};
use super::{AffinityPolicy, Answered, Ask, Basis, OwnLoad, Placement, Pool, PrefixChain, Reason, Scrape, Ticket};
use crate::config::model::{Endpoint, EndpointAddress};

const SCOPE: u64 = 7;

fn endpoint(number: u8) -> Arc<Endpoint> {
    let address = SocketAddr::from(([10, 0, 0, number], 8000));
    Arc::new(Endpoint {
        id: address.to_string().into(),
        cluster: format!("default/vllm/{address}").into(),
        address: EndpointAddress::Ip(address),
    })
}

fn endpoints(count: u8) -> Vec<Arc<Endpoint>> {
    (0..count).map(endpoint).collect()
}

/// A pool and a clock that a test moves.
struct Bed {
    pool: Arc<Pool>,
    now: Instant,
    requests: u64,
}

impl Bed {
    fn new(count: u8) -> Self {
        Self::with_policy(count, AffinityPolicy::default())
    }

    fn with_policy(count: u8, policy: AffinityPolicy) -> Self {
        let now = Instant::now();
        let pool = Arc::new(Pool::new("default/vllm".into(), Arc::new(policy), now));
        pool.set_members(endpoints(count), now);
        Self { pool, now, requests: 0 }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn ask(&mut self, prompt: &Arc<PrefixChain>) -> Ask {
        self.requests += 1;
        Ask { scope: SCOPE, prompt: Some(Arc::clone(prompt)), session: None, entropy: self.requests }
    }

    fn place(&mut self, prompt: &Arc<PrefixChain>) -> Placement {
        let ask = self.ask(prompt);
        self.pool.place(&ask, |_| true, self.now)
    }

    /// Places, sends and completes a request with success.
    fn serve(&mut self, prompt: &Arc<PrefixChain>) -> Placement {
        let placement = self.place(prompt);
        self.answer(&placement);
        placement
    }

    fn answer(&mut self, placement: &Placement) {
        let mut ticket = self.pool.dispatch(placement).unwrap();
        ticket.answered(Answered::Well, None, self.now);
        ticket.first_byte();
    }

    /// Sends it to `endpoint`, whatever the decision would be.
    fn serve_at(&mut self, prompt: &Arc<PrefixChain>, endpoint: &Arc<Endpoint>) {
        let ask = self.ask(prompt);
        let placement = self.pool.place(&ask, |candidate| candidate.id == endpoint.id, self.now);
        self.answer(&placement);
    }

    fn matched(&mut self, prompt: &Arc<PrefixChain>, endpoint: &Endpoint) -> u64 {
        let ask = self.ask(prompt);
        let standings = self.pool.standings(&ask, self.now);
        standings.into_iter().find(|standing| standing.endpoint == endpoint.id).unwrap().matched_bytes
    }

    fn dispatch(&mut self, placement: &Placement) -> Ticket {
        self.pool.dispatch(placement).unwrap()
    }
}

fn chain(text: &[u8]) -> Arc<PrefixChain> {
    let mut chunker = Chunker::new(0, MAX_BLOCKS);
    chunker.push(text);
    Arc::new(chunker.finish())
}

/// Text that nothing else has in common with.
fn text(number: u64, len: usize) -> Vec<u8> {
    (0..len as u64 / 8 + 1).flat_map(|at| xxh3_64(&(number << 32 | at).to_le_bytes()).to_le_bytes()).take(len).collect()
}

/// One of many conversations: `shared` bytes of a system prompt that all have, then its own.
fn conversation(number: u64, shared: usize, own: usize) -> Arc<PrefixChain> {
    let mut all = text(1_000_000, shared);
    all.extend(text(number, own));
    chain(&all)
}

fn first(placement: &Placement) -> Arc<str> {
    Arc::clone(&placement.order[0].id)
}

#[test]
fn a_conversation_stays_where_it_is_cached_as_it_grows() {
    let mut bed = Bed::new(8);
    for number in 0..50 {
        let whole = text(number, 200_000);
        let home = first(&bed.serve(&chain(&whole[..20_000])));
        for len in [40_000, 90_000, 200_000] {
            bed.pass(1);
            let placement = bed.serve(&chain(&whole[..len]));
            assert_eq!((first(&placement), placement.reason), (Arc::clone(&home), Reason::Prefix));
        }
    }
}

#[test]
fn sidecars_that_do_not_talk_send_a_conversation_to_the_same_endpoint() {
    let (mut one, mut other) = (Bed::new(8), Bed::new(8));
    for number in 0..100 {
        let prompt = conversation(number, 0, 30_000);
        assert_eq!(first(&one.serve(&prompt)), first(&other.serve(&prompt)));
    }
}

#[test]
fn conversations_spread_over_all_endpoints() {
    let mut bed = Bed::new(8);
    let mut counts = std::collections::HashMap::<Arc<str>, u32>::new();
    for number in 0..2_000 {
        *counts.entry(first(&bed.serve(&conversation(number, 0, 4_000)))).or_default() += 1;
    }
    assert_eq!(counts.len(), 8);
    // 250 each; the standard deviation is 15.
    assert!(counts.values().all(|count| (190..310).contains(count)), "{counts:?}");
}

#[test]
fn what_everybody_shares_draws_nobody_to_one_endpoint() {
    let mut bed = Bed::new(8);
    let mut homes = HashSet::new();
    for number in 0..400 {
        let placement = bed.serve(&conversation(number, 12_000, 3_000));
        if number > 300 {
            homes.insert(first(&placement));
        }
    }
    assert_eq!(homes.len(), 8);
}

#[test]
fn few_requests_make_nothing_hot() {
    let mut bed = Bed::new(8);
    let whole = text(1, 12_000);
    let home = first(&bed.serve(&chain(&whole[..2_000])));
    for len in (3_000..12_000).step_by(1_000) {
        bed.pass(5);
        assert_eq!(first(&bed.serve(&chain(&whole[..len]))), home);
    }
}

#[test]
fn a_busy_endpoint_is_left_when_waiting_costs_more_than_computing_anew() {
    let mut bed = Bed::new(8);
    let prompt = conversation(1, 0, 40_000);
    let home = first(&bed.serve(&prompt));
    let page = |waiting| Scrape { waiting, ..Scrape::default() };
    // 10,000 tokens are not in cache elsewhere, which counts fifteen times: more must wait for it.
    bed.pool.scraped(&home, page(50.0), bed.now);
    assert_eq!(first(&bed.place(&prompt)), home);
    bed.pool.scraped(&home, page(500.0), bed.now);
    let placement = bed.place(&prompt);
    assert_ne!(first(&placement), home);
    assert_eq!(placement.reason, Reason::Load);
    assert!(placement.order.iter().any(|endpoint| endpoint.id == home), "a retry may find it there");
    bed.pass(6);
    assert_eq!(first(&bed.place(&prompt)), home, "the page is stale");
}

#[test]
fn own_requests_weigh_until_their_first_byte_however_they_end() {
    let mut bed = Bed::new(2);
    let prompt = conversation(1, 0, 40_000);
    let placement = bed.place(&prompt);
    let home = first(&placement);
    let own = |bed: &Bed| bed.pool.own_loads().into_iter().find(|(id, _)| *id == home).unwrap().1;
    let mut ticket = bed.dispatch(&placement);
    assert_eq!((own(&bed).requests, own(&bed).pending_tokens), (1, 10_000.0));
    ticket.answered(Answered::Well, None, bed.now);
    assert_eq!(own(&bed).pending_tokens, 10_000.0, "servers send headers before they begin");
    ticket.first_byte();
    assert_eq!((own(&bed).requests, own(&bed).pending_tokens), (1, 0.0));
    drop(ticket);
    let abandoned = bed.dispatch(&placement);
    drop(abandoned);
    assert_eq!(own(&bed), OwnLoad::default());
}

#[test]
fn what_failed_is_not_believed_to_be_in_cache() {
    let mut bed = Bed::new(4);
    let whole = text(1, 40_000);
    let known = chain(&whole[..16_384]);
    let grown = chain(&whole);
    let home = Arc::clone(&bed.serve(&known).order[0]);
    let placement = bed.place(&grown);
    let mut ticket = bed.dispatch(&placement);
    assert!(bed.matched(&grown, &home) > 39_000);
    ticket.answered(Answered::Badly, None, bed.now);
    assert_eq!(bed.matched(&grown, &home), 16_384, "what it held before it holds still");
    drop(bed.dispatch(&placement));
    assert_eq!(bed.matched(&grown, &home), 16_384, "nobody answered");
}

#[test]
fn prompts_that_are_refused_put_nothing_out_and_those_under_way_draw_their_siblings() {
    let mut bed = Bed::with_policy(4, AffinityPolicy { index_bytes: 1 << 20, ..AffinityPolicy::default() });
    let known = conversation(1, 0, 40_000);
    let home = Arc::clone(&bed.serve(&known).order[0]);
    let blocks = bed.pool.stats(bed.now).index_blocks;
    for number in 2..60 {
        let giant = conversation(number, 0, 15 << 20);
        let placement = bed.place(&giant);
        let mut ticket = bed.dispatch(&placement);
        let sent_to = Arc::clone(&placement.order[0]);
        let sibling = bed.place(&giant);
        assert_eq!((first(&sibling), sibling.reason), (Arc::clone(&sent_to.id), Reason::Prefix));
        ticket.answered(Answered::Badly, None, bed.now);
        assert_eq!(bed.matched(&giant, &sent_to), 0);
    }
    assert_eq!(bed.pool.stats(bed.now).index_blocks, blocks);
    assert!(bed.matched(&known, &home) > 39_000);
    // One that is served takes a part of the index, and not all of it.
    bed.serve(&conversation(60, 0, 15 << 20));
    assert!(bed.matched(&known, &home) > 39_000);
}

#[test]
fn a_prompt_is_believed_to_take_no_more_than_its_endpoints_cache() {
    let mut bed = Bed::with_policy(1, AffinityPolicy { cache_tokens: Some(10_000), ..AffinityPolicy::default() });
    let only = endpoint(0);
    let known = conversation(1, 0, 8_000);
    bed.serve(&known);
    bed.pass(1);
    let giant = conversation(2, 0, 1 << 20);
    bed.serve(&giant);
    let matched = bed.matched(&giant, &only);
    assert!((38_000..=40_000).contains(&matched), "{matched}");
}

#[test]
fn whoever_served_holds_the_prompt() {
    let mut bed = Bed::new(4);
    let prompt = conversation(1, 0, 16_384);
    let placement = bed.place(&prompt);
    let [chosen, other, ..] = &placement.order[..] else { panic!() };
    let mut ticket = bed.dispatch(&placement);
    ticket.answered(Answered::Well, Some(&other.id), bed.now);
    assert_eq!((bed.matched(&prompt, chosen), bed.matched(&prompt, other)), (0, 16_384));
    assert_eq!(bed.pool.own_loads().iter().map(|(_, load)| load.requests).sum::<u64>(), 0);
}

#[test]
fn an_endpoint_is_believed_to_hold_no_more_than_it_has_room_for() {
    let mut bed = Bed::with_policy(2, AffinityPolicy { cache_tokens: Some(25_000), ..AffinityPolicy::default() });
    let at = endpoint(0);
    for number in 0..8 {
        bed.serve_at(&conversation(number, 0, 16_384), &at);
        bed.pass(1);
    }
    let held: Vec<u64> = (0..8).map(|number| bed.matched(&conversation(number, 0, 16_384), &at)).collect();
    // 100,000 bytes: six of them, the youngest.
    assert_eq!(held, [0, 0, 16_384, 16_384, 16_384, 16_384, 16_384, 16_384]);
    // What is used again is young again.
    bed.serve_at(&conversation(2, 0, 16_384), &at);
    bed.serve_at(&conversation(9, 0, 16_384), &at);
    assert_eq!(bed.matched(&conversation(2, 0, 16_384), &at), 16_384);
    assert_eq!(bed.matched(&conversation(3, 0, 16_384), &at), 0);
    assert!(bed.pool.stats(bed.now).endpoints[0].held_bytes <= 100_000);
}

#[test]
fn an_endpoint_that_went_and_came_back_holds_nothing() {
    let mut bed = Bed::new(3);
    let prompt = conversation(1, 0, 16_384);
    let at = endpoint(2);
    bed.serve_at(&prompt, &at);
    bed.pass(2);
    bed.pool.set_members(endpoints(2), bed.now);
    assert_eq!(bed.pool.members().len(), 2);
    bed.pass(2);
    bed.pool.set_members(endpoints(3), bed.now);
    assert_eq!(bed.matched(&prompt, &at), 0);
    bed.pass(2);
    bed.serve_at(&prompt, &at);
    assert_eq!(bed.matched(&prompt, &at), 16_384);
}

#[test]
fn a_new_endpoint_takes_no_more_than_its_share_of_the_keys() {
    let homes = |bed: &mut Bed| -> Vec<Arc<str>> {
        (0..2_000).map(|number| first(&bed.place(&conversation(number, 0, 1_000)))).collect()
    };
    let mut bed = Bed::new(7);
    let before = homes(&mut bed);
    bed.pool.set_members(endpoints(8), bed.now);
    let new = endpoint(7).id.clone();
    let moved = |before: &[Arc<str>], after: &[Arc<str>]| {
        let moved: Vec<_> = before.iter().zip(after).filter(|(before, after)| before != after).collect();
        assert!(moved.iter().all(|(_, after)| **after == new));
        moved.len()
    };
    // 0.2 of 7.2, and 1 of 8: 56 and 250, with deviations of 7 and 15.
    let slowly = moved(&before, &homes(&mut bed));
    assert!((28..84).contains(&slowly), "{slowly}");
    bed.pass(60);
    let fully = moved(&before, &homes(&mut bed));
    assert!((190..310).contains(&fully), "{fully}");
}

#[test]
fn an_engine_that_began_anew_is_noticed_by_what_it_delivers() {
    let mut bed = Bed::new(2);
    let at = endpoint(0);
    let prompts: Vec<_> = (0..4).map(|number| conversation(number, 0, 16_384)).collect();
    prompts.iter().for_each(|prompt| bed.serve_at(prompt, &at));
    let answer = |bed: &mut Bed, prompt: &Arc<PrefixChain>, cached| {
        let ask = bed.ask(prompt);
        let placement = bed.pool.place(&ask, |candidate| candidate.id == at.id, bed.now);
        let mut ticket = bed.dispatch(&placement);
        ticket.answered(Answered::Well, None, bed.now);
        ticket.finish(Some(4_096), cached, bed.now);
    };
    // An engine that never says what came from its cache says nothing by that.
    answer(&mut bed, &prompts[0], 0);
    answer(&mut bed, &prompts[0], 0);
    assert_eq!(bed.matched(&prompts[3], &endpoint(0)), 16_384);
    answer(&mut bed, &prompts[0], 4_000);
    answer(&mut bed, &prompts[1], 0);
    assert_eq!(bed.matched(&prompts[3], &endpoint(0)), 16_384);
    answer(&mut bed, &prompts[2], 0);
    assert_eq!(bed.matched(&prompts[3], &endpoint(0)), 0);
    assert_eq!(bed.pool.stats(bed.now).restarts, 1);
}

#[test]
fn what_a_token_is_in_bytes_is_learned_from_text_alone() {
    let mut bed = Bed::new(2);
    let prompt = conversation(1, 0, 16_384);
    let answer = |bed: &mut Bed, tokens| {
        let placement = bed.place(&prompt);
        let mut ticket = bed.dispatch(&placement);
        ticket.answered(Answered::Well, None, bed.now);
        ticket.finish(tokens, 0, bed.now);
    };
    let cost = |bed: &mut Bed| bed.place(&prompt).bytes_per_token;
    (0..50).for_each(|_| answer(&mut bed, None));
    assert_eq!(cost(&mut bed), 4.0);
    (0..500).for_each(|_| answer(&mut bed, Some(8_192)));
    assert!((1.9..2.2).contains(&cost(&mut bed)));
}

#[test]
fn peers_hear_what_was_sent_where_and_how_busy_everybody_is() {
    let (mut one, mut other) = (Bed::new(4), Bed::new(4));
    one.pool.share();
    other.now = one.now;
    let prompt = conversation(1, 0, 16_384);
    let at = endpoint(3);
    one.serve_at(&prompt, &at);
    let news = one.pool.take_news();
    assert_eq!(news.len(), 1);
    assert_eq!((&news[0].endpoint, news[0].keys.len()), (&at.id, 64));
    news.iter().for_each(|news| other.pool.hear_news(news, Duration::ZERO, other.now));
    other.pool.heard_all(other.now);
    assert_eq!(other.matched(&prompt, &at), 16_384);
    assert_eq!(first(&other.place(&prompt)), at.id);
    // What was just told is not told again; what has rested is.
    one.serve_at(&prompt, &at);
    assert_eq!(one.pool.take_news(), []);
    one.pass(10);
    one.serve_at(&prompt, &at);
    assert_eq!(one.pool.take_news().len(), 1);
    other.pool.hear_load(1, &at.id, OwnLoad { requests: 9, pending_tokens: 90_000.0 }, other.now);
    assert_ne!(first(&other.place(&prompt)), at.id);
}

#[test]
fn a_session_keeps_its_endpoint_whatever_it_says() {
    let mut bed = Bed::new(8);
    let place = |bed: &mut Bed, session: u64, number: u64| {
        let ask = Ask { session: Some(session), ..bed.ask(&conversation(number, 0, 2_000)) };
        let placement = bed.pool.place(&ask, |_| true, bed.now);
        bed.answer(&placement);
        (first(&placement), placement.reason)
    };
    for session in 0..20 {
        let (home, _) = place(&mut bed, session, session);
        assert_eq!(place(&mut bed, session, 100 + session), (home, Reason::Session));
    }
}

#[test]
fn by_key_alone_neither_caches_nor_load_count() {
    let mut bed = Bed::with_policy(4, AffinityPolicy { basis: Basis::KeyOnly, ..AffinityPolicy::default() });
    let prompt = conversation(1, 0, 40_000);
    let home = first(&bed.serve(&prompt));
    bed.pool.scraped(&home, Scrape { waiting: 10_000.0, kv_usage: 1.0, ..Scrape::default() }, bed.now);
    assert_eq!(first(&bed.serve(&prompt)), home);
    assert_eq!(bed.pool.stats(bed.now).index_blocks, 0);
}

#[test]
fn what_has_no_prompt_or_a_short_one_spreads() {
    let mut bed = Bed::new(4);
    for prompt in [None, Some(chain(b"hello"))] {
        let mut chosen = HashSet::new();
        for entropy in 0..100 {
            let ask = Ask { scope: SCOPE, prompt: prompt.clone(), session: None, entropy };
            let placement = bed.pool.place(&ask, |_| true, bed.now);
            assert_eq!(placement.reason, Reason::Spread);
            chosen.insert(first(&placement));
            bed.answer(&placement);
        }
        assert_eq!(chosen.len(), 4);
    }
}

#[test]
fn where_none_is_available_all_are_tried() {
    let mut bed = Bed::new(4);
    let ask = bed.ask(&conversation(1, 0, 4_000));
    let placement = bed.pool.place(&ask, |_| false, bed.now);
    assert_eq!((placement.reason, placement.order.len()), (Reason::NoneAvailable, 3));
    let nobody = Bed::new(0);
    assert_eq!(nobody.pool.place(&ask, |_| true, nobody.now).order.len(), 0);
}

#[test]
fn requests_of_other_scopes_share_nothing() {
    let mut bed = Bed::new(4);
    let prompt = conversation(1, 0, 16_384);
    let at = Arc::clone(&bed.serve(&prompt).order[0]);
    assert_eq!(bed.matched(&prompt, &at), 16_384);
    let ask = Ask { scope: SCOPE + 1, ..bed.ask(&prompt) };
    assert!(bed.pool.standings(&ask, bed.now).iter().all(|standing| standing.matched_bytes == 0));
}

#[test]
fn the_index_keeps_to_its_budget_under_a_flood_and_still_knows_the_latest() {
    let policy = AffinityPolicy { index_bytes: 1 << 20, ..AffinityPolicy::default() };
    let mut bed = Bed::with_policy(4, policy);
    for number in 0..4_000 {
        if number % 20 == 0 {
            bed.pass(1);
        }
        let prompt = conversation(number, 0, 16_384);
        let at = Arc::clone(&bed.serve(&prompt).order[0]);
        assert_eq!(bed.matched(&prompt, &at), 16_384);
        assert!(bed.pool.stats(bed.now).index_bytes <= 1 << 20);
    }
    assert!(bed.pool.stats(bed.now).index_evictions > 100_000);
}

#[test]
fn more_endpoints_than_the_index_can_tell_apart_are_served_all_the_same() {
    let now = Instant::now();
    let pool = Arc::new(Pool::new("default/vllm".into(), Arc::default(), now));
    let many: Vec<_> = (0..1_100_u32)
        .map(|number| {
            let address = SocketAddr::from(([10, 1, (number >> 8) as u8, number as u8], 8000));
            Arc::new(Endpoint {
                id: address.to_string().into(),
                cluster: address.to_string().into(),
                address: EndpointAddress::Ip(address),
            })
        })
        .collect();
    pool.set_members(many, now);
    let mut bed = Bed { pool, now, requests: 0 };
    for number in 0..200 {
        let prompt = conversation(number, 0, 8_192);
        let home = first(&bed.serve(&prompt));
        assert_eq!(first(&bed.serve(&prompt)), home);
    }
}
