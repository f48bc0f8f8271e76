//! The script alone: who hears what, and what stays in Redis.

use std::collections::BTreeSet;

use super::*;
use crate::limit::Errand;
use crate::sharing::exchange::{Answer, HISTORY, MOST_ENTRIES, Position, RIGHTS, Request, Rest, script};

struct Bed {
    server: RedisServer,
    errand: Errand,
}

impl Bed {
    async fn new() -> Self {
        let server = RedisServer::start().await;
        let errand = Errand::new(server.url().parse().unwrap(), script(), RIGHTS);
        Self { server, errand }
    }

    async fn call(&self, me: u64, position: &Position, load: Option<&str>, entries: &[Vec<u8>]) -> Answer {
        let request = Request {
            me,
            position: position.clone(),
            longest_log: 1_000,
            load: load.map(|load| load.as_bytes().to_vec()),
            entries: entries.iter().map(Vec::as_slice).collect(),
        };
        let answer = self.errand.run(vec![LOG.to_owned(), LOADS.to_owned()], request.arguments(), PATIENCE).await;
        Answer::read(answer.unwrap()).unwrap()
    }
}

fn heard(answer: &Answer) -> Vec<Vec<u8>> {
    answer.news.iter().map(|(_, entry)| entry.clone()).collect()
}

#[tokio::test]
async fn everybody_hears_each_entry_once_and_nobody_hears_itself() {
    let bed = Bed::new().await;
    let start = Position::Last(HISTORY);
    let [mut one, mut two] = [start.clone(), start.clone()];
    let next = |answer: &Answer| Position::After(answer.position.clone());
    for round in 0..5_u8 {
        let answer = bed.call(1, &one, None, &[vec![1, round], vec![2, round]]).await;
        let expected: Vec<Vec<u8>> = round.checked_sub(1).map(|before| vec![3, before]).into_iter().collect();
        assert_eq!((heard(&answer), answer.rest), (expected, Rest::None));
        one = next(&answer);
        let answer = bed.call(2, &two, None, &[vec![3, round]]).await;
        assert_eq!(heard(&answer), [[1, round], [2, round]]);
        two = next(&answer);
        let answer = bed.call(2, &two, None, &[]).await;
        assert!(heard(&answer).is_empty());
        two = next(&answer);
    }
    assert_eq!(heard(&bed.call(3, &start, None, &[]).await).len(), 15);
    assert_eq!(heard(&bed.call(1, &start, None, &[]).await).len(), 5);
}

#[tokio::test]
async fn a_long_log_is_heard_in_parts_while_others_add_to_it() {
    let bed = Bed::new().await;
    let entries: Vec<Vec<u8>> = (0..150_u8).map(|number| vec![number]).collect();
    bed.call(1, &Position::Last(HISTORY), None, &entries).await;
    let mut position = Position::Last(HISTORY);
    let mut all = BTreeSet::new();
    let mut parts = Vec::new();
    loop {
        let answer = bed.call(2, &position, None, &[vec![255]]).await;
        all.extend(heard(&answer));
        parts.push(answer.news.len());
        position = Position::After(answer.position);
        if answer.rest == Rest::None {
            break;
        }
    }
    assert_eq!((all.len(), parts.as_slice()), (150, [MOST_ENTRIES, MOST_ENTRIES, 22].as_slice()));
    let answer = bed.call(2, &position, None, &[]).await;
    assert!(heard(&answer).is_empty());
}

#[tokio::test]
async fn loads_are_those_of_others_as_they_were_written() {
    let bed = Bed::new().await;
    let position = Position::Last(HISTORY);
    bed.call(1, &position, Some("one"), &[]).await;
    bed.call(2, &position, Some("two\0\r\n"), &[]).await;
    let answer = bed.call(3, &position, None, &[]).await;
    let mut loads: Vec<_> = answer.loads.iter().map(|load| (load.peer, load.bytes.as_slice())).collect();
    loads.sort_unstable();
    assert_eq!(loads, [(1, b"one".as_slice()), (2, b"two\0\r\n")]);
    assert!(answer.loads.iter().all(|load| load.age <= Duration::from_secs(2)));
    assert_eq!(bed.call(2, &position, None, &[]).await.loads.len(), 1);
}

#[tokio::test]
async fn loads_of_the_dead_are_taken_out_after_a_minute() {
    let bed = Bed::new().await;
    let now = bed.call(1, &Position::Last(HISTORY), None, &[]).await.now_ms;
    let mut connection = bed.server.connection().await;
    for (peer, age_ms) in [(5_u64, 61_000), (6, 59_000), (7, 3_000), (8, 0)] {
        let mut value = ((now - age_ms) as f64).to_le_bytes().to_vec();
        value.push(1);
        let command = redis::cmd("HSET").arg(LOADS).arg(&peer.to_le_bytes()).arg(value).to_owned();
        let () = command.query_async(&mut connection).await.unwrap();
    }
    let answer = bed.call(1, &Position::Last(HISTORY), None, &[]).await;
    assert_eq!(answer.loads.iter().map(|load| load.peer).collect::<Vec<_>>(), [8]);
    let left: usize = redis::cmd("HLEN").arg(LOADS).query_async(&mut connection).await.unwrap();
    assert_eq!(left, 3);
}

#[tokio::test]
async fn a_log_stays_about_as_long_as_it_may_be_and_loses_what_is_old() {
    let bed = Bed::new().await;
    let entries: Vec<Vec<u8>> = (0..500_u16).map(|number| number.to_le_bytes().repeat(100)).collect();
    for _ in 0..8 {
        bed.call(1, &Position::Last(HISTORY), None, &entries).await;
    }
    let mut connection = bed.server.connection().await;
    let mut length = async || -> usize { redis::cmd("XLEN").arg(LOG).query_async(&mut connection).await.unwrap() };
    let kept = length().await;
    assert!((1_000..=1_100).contains(&kept), "{kept}");

    say(&mut bed.server.connection().await, &format!("DEL {LOG}")).await;
    let mut add_old = redis::cmd("EVAL");
    let old = "for n = 1, 500 do redis.call('XADD', KEYS[1], n .. '-0', 'x', string.rep('x', 100)) end";
    add_old.arg(old).arg(1).arg(LOG);
    let () = add_old.query_async(&mut bed.server.connection().await).await.unwrap();
    bed.call(1, &Position::Last(HISTORY), None, &[vec![1]]).await;
    let kept = length().await;
    assert!(kept <= 100, "{kept}");
}

#[tokio::test]
async fn the_present_is_heard_from_a_log_that_is_empty_or_gone() {
    let bed = Bed::new().await;
    let answer = bed.call(2, &Position::Last(HISTORY), None, &[]).await;
    let mut position = Position::After(answer.position);
    for _ in 0..2 {
        bed.call(1, &Position::Last(HISTORY), None, &[vec![1]]).await;
        let answer = bed.call(2, &position, None, &[]).await;
        assert_eq!(heard(&answer), [[1]]);
        position = Position::After(answer.position);
        say(&mut bed.server.connection().await, "FLUSHALL").await;
        // A log that begins in the same millisecond has the same ids.
        until(async || bed.call(9, &Position::Last(HISTORY), None, &[]).await.now_ms > answer.now_ms).await;
    }
}
