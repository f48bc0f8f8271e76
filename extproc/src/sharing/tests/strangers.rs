//! Others write into the same Redis, and into the same keys.

use std::time::{SystemTime, UNIX_EPOCH};

use super::*;
use crate::affinity::News;
use crate::sharing::codec::Dialect;

async fn add(connection: &mut MultiplexedConnection, fields: &[(&[u8], Vec<u8>)]) {
    let mut command = redis::cmd("XADD");
    command.arg(LOG).arg("*");
    for (name, value) in fields {
        command.arg(*name).arg(value);
    }
    let () = command.query_async(connection).await.unwrap();
}

/// Nothing of it is an entry or a load.
async fn litter(connection: &mut MultiplexedConnection) {
    add(connection, &[(b"text", b"hello".to_vec())]).await;
    add(connection, &[(b"12345678", vec![0; 4 << 20])]).await;
    add(connection, &[(b"12345678", vec![1; 100]), (b"more", vec![1])]).await;
    for seed in 0..200_u64 {
        let noise: Vec<u8> = (0..seed * 7).map(|at| (at * 31 + seed) as u8).collect();
        add(connection, &[(b"12345678", noise.clone())]).await;
        let mut entry = Dialect::new(0).entries(&[news().into()]).remove(0);
        entry.truncate(entry.len() - 1);
        entry.extend(noise);
        add(connection, &[(b"12345678", entry)]).await;
    }
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as f64;
    for (field, value) in [
        (b"me".to_vec(), b"text".to_vec()),
        (vec![1; 8], vec![0xff; 100]),
        (vec![2; 8], vec![0; 1 << 20]),
        (vec![3; 8], f64::NAN.to_le_bytes().repeat(3)),
        (vec![4; 8], vec![]),
        (vec![5; 8], [&now_ms.to_le_bytes()[..], b"\x01text"].concat()),
    ] {
        let () = redis::cmd("HSET").arg(LOADS).arg(field).arg(value).query_async(connection).await.unwrap();
    }
}

/// Of an endpoint that nobody has.
fn news() -> News {
    News { endpoint: "10.9.9.9:80".into(), depth: 0, keys: vec![1, 2, 3] }
}

#[tokio::test]
async fn entries_and_loads_that_are_none_are_passed_over() {
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    litter(&mut connection).await;
    let [one, two] = Sidecar::several(2, &server.url()).await.try_into().ok().unwrap();
    litter(&mut connection).await;
    one.serve(&prompt(1, 50));
    two.predicts(&prompt(1, 50)).await;
    assert_eq!(two.pending(), 0.0);
    assert_eq!(two.pool().stats(Instant::now()).index_blocks, 50);
}

#[tokio::test]
async fn keys_of_another_kind_are_left_alone_and_cost_no_more_than_the_sharing() {
    let server = RedisServer::start().await;
    let [one, two] = Sidecar::several(2, &server.url()).await.try_into().ok().unwrap();
    let mut connection = server.connection().await;
    for (subject, key) in [(1, LOG), (2, LOADS)] {
        say(&mut connection, &format!("SET {key} theirs")).await;
        one.goes_by_what_it_knows_itself().await;
        one.serve(&prompt(subject, 50));
        let left: String = redis::cmd("GET").arg(key).query_async(&mut connection).await.unwrap();
        assert_eq!(left, "theirs");
        say(&mut connection, &format!("DEL {key}")).await;
        one.shares().await;
        two.predicts(&prompt(subject, 50)).await;
    }
}

#[tokio::test]
async fn more_loads_than_there_can_be_sidecars_are_not_read() {
    let server = RedisServer::start().await;
    let one = Sidecar::start(&server.url());
    one.shares().await;
    let mut connection = server.connection().await;
    let mut command = redis::cmd("HSET");
    command.arg(LOADS);
    (0..1_000_u64).for_each(|peer| {
        command.arg(&peer.to_le_bytes()).arg(vec![0_u8; 20]);
    });
    let () = command.query_async(&mut connection).await.unwrap();
    one.goes_by_what_it_knows_itself().await;
    say(&mut connection, &format!("DEL {LOADS}")).await;
    one.shares().await;
}

#[tokio::test]
async fn sidecars_with_another_secret_are_not_heard_and_their_loads_are() {
    let server = RedisServer::start().await;
    let (one, two, same) =
        (Sidecar::start(&server.url()), Sidecar::start_with(&server.url(), 5), Sidecar::start(&server.url()));
    let mut ticket = one.send(&prompt(1, 50));
    ticket.answered(Answered::Well, None, Instant::now());
    same.predicts(&prompt(1, 50)).await;
    until(async || two.pending() > 0.0).await;
    two.shares().await;
    assert_eq!(two.predicted(&prompt(1, 50)), 0);
}

#[tokio::test]
async fn what_the_access_list_must_allow_is_what_is_said() {
    let log = Log::start();
    let server = RedisServer::start().await;
    let mut connection = server.connection().await;
    say(&mut connection, "ACL SETUSER sidecar on >pass +@all -xadd ~attache:affinity:*").await;
    let url = format!("{}?user=sidecar&pass=pass", server.url());
    let one = Sidecar::start(&url);
    one.shares().await;
    one.serve(&prompt(1, 50));
    let line = log.line("access list does not allow").await;
    let rules = line.split("needs: ").nth(1).unwrap().split(", and").next().unwrap().to_owned();

    say(&mut connection, &format!("ACL SETUSER sidecar reset on >pass {rules}")).await;
    let two = Sidecar::start(&url);
    two.predicts(&prompt(1, 50)).await;
    one.shares().await;
    let _ticket = one.send(&prompt(2, 50));
    until(async || two.pending() > 0.0).await;
    assert_eq!(log.lines("access list does not allow").len(), 1, "{}", log.text());
}
