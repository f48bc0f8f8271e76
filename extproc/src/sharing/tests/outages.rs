//! Redis goes, hangs or refuses: each sidecar goes by what it knows itself, and nothing needs to be mended by hand after.

use super::*;

#[tokio::test]
async fn a_redis_that_dies_and_comes_back_is_told_what_happened_meanwhile() {
    let mut server = RedisServer::start().await;
    let [one, two] = Sidecar::several(2, &server.url()).await.try_into().ok().unwrap();
    server.kill();
    for sidecar in [&one, &two] {
        sidecar.goes_by_what_it_knows_itself().await;
    }
    one.serve(&prompt(1, 50));
    assert_eq!(one.predicted(&prompt(1, 50)), 50 * 256);
    assert_eq!(two.predicted(&prompt(1, 50)), 0);

    server.restart().await;
    two.predicts(&prompt(1, 50)).await;
    for sidecar in [&one, &two] {
        sidecar.shares().await;
    }
}

#[tokio::test]
async fn the_log_says_once_that_sharing_ends_and_once_that_it_begins_again() {
    let log = Log::start();
    let mut server = RedisServer::start().await;
    let one = Sidecar::start(&server.url());
    for _ in 0..2 {
        one.shares().await;
        server.kill();
        // Several calls fail meanwhile.
        one.goes_by_what_it_knows_itself().await;
        server.restart().await;
    }
    one.shares().await;
    let does = |line: &String| !line.contains("do not");
    let lines: Vec<bool> = log.lines(" tell each other").iter().map(does).collect();
    assert!(lines.len() >= 5 && lines.windows(2).all(|pair| pair[0] != pair[1]), "{}", log.text());
}

#[tokio::test]
async fn a_redis_that_hangs_is_not_waited_for() {
    let server = RedisServer::start().await;
    let [one, two] = Sidecar::several(2, &server.url()).await.try_into().ok().unwrap();
    server.signal("STOP");
    one.goes_by_what_it_knows_itself().await;
    one.serve(&prompt(1, 50));
    server.signal("CONT");
    two.predicts(&prompt(1, 50)).await;
    one.shares().await;
}

#[tokio::test]
async fn a_redis_that_takes_no_writes_is_as_good_as_none_until_it_does_again() {
    let server = RedisServer::start().await;
    let [one, two] = Sidecar::several(2, &server.url()).await.try_into().ok().unwrap();
    let mut connection = server.connection().await;
    let refusals = [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    ];
    for (subject, (refuse, take)) in (1..).zip(refusals) {
        say(&mut connection, refuse).await;
        one.goes_by_what_it_knows_itself().await;
        one.serve(&prompt(subject, 50));
        say(&mut connection, take).await;
        two.predicts(&prompt(subject, 50)).await;
        one.shares().await;
    }
}

#[tokio::test]
async fn what_waits_to_be_told_is_bounded() {
    let mut server = RedisServer::start().await;
    let [one, two] = Sidecar::several(2, &server.url()).await.try_into().ok().unwrap();
    server.kill();
    one.goes_by_what_it_knows_itself().await;
    // 65,536 hashes fit.
    let long = |subject| long_prompt(subject, 1_100);
    for subject in 1..=100 {
        one.serve(&long(subject));
    }
    assert_eq!(one.pool().stats(Instant::now()).dropped_news, 41);
    server.restart().await;
    until(async || two.predicted(&long(100)) == one.predicted(&long(100))).await;
    assert_eq!(two.predicted(&long(1)), 0);
}

#[tokio::test]
async fn sidecars_start_without_redis_and_find_it_later() {
    let mut server = RedisServer::stopped();
    let (one, two) = (Sidecar::start(&server.url()), Sidecar::start(&server.url()));
    one.serve(&prompt(1, 50));
    assert!(!one.hears_peers());
    server.restart().await;
    two.predicts(&prompt(1, 50)).await;
}
