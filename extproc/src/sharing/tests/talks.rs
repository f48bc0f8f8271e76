//! What sidecars get to know of each other while all is well.

use super::*;

#[tokio::test]
async fn what_one_of_four_is_sent_the_others_predict() {
    let server = RedisServer::start().await;
    let sidecars = Sidecar::several(4, &server.url()).await;
    for (subject, sidecar) in (1..).zip(&sidecars) {
        sidecar.serve(&prompt(subject, 50));
    }
    for (subject, _) in (1..).zip(&sidecars) {
        for sidecar in &sidecars {
            sidecar.predicts(&prompt(subject, 50)).await;
        }
    }
    assert_eq!(sidecars[0].predicted(&prompt(9, 50)), 0);
}

#[tokio::test]
async fn a_prompt_that_goes_on_elsewhere_is_heard_from_its_beginning_to_its_end() {
    let server = RedisServer::start().await;
    let [one, two, three] = Sidecar::several(3, &server.url()).await.try_into().ok().unwrap();
    one.serve(&prompt(1, 20));
    two.predicts(&prompt(1, 20)).await;
    // What the other told is not told again so soon.
    two.serve(&prompt(1, 60));
    for sidecar in [&one, &three] {
        sidecar.predicts(&prompt(1, 60)).await;
    }
}

#[tokio::test]
async fn a_prompt_of_megabytes_comes_through_in_many_entries() {
    let server = RedisServer::start().await;
    let [one, two] = Sidecar::several(2, &server.url()).await.try_into().ok().unwrap();
    let long = long_prompt(1, 3_176);
    one.serve(&long);
    until(async || two.predicted(&long) == one.predicted(&long)).await;
    let mut connection = server.connection().await;
    let entries: usize = redis::cmd("XLEN").arg(LOG).query_async(&mut connection).await.unwrap();
    assert_eq!(entries, 7, "of 4 KiB, for 3,176 hashes");
}

#[tokio::test]
async fn peers_see_what_is_under_way_until_it_is_computed() {
    let server = RedisServer::start().await;
    let sidecars = Sidecar::several(3, &server.url()).await;
    let mut ticket = sidecars[0].send(&prompt(1, 100));
    let pending = sidecars[0].pending();
    assert!(pending > 1_000.0);
    for sidecar in &sidecars {
        until(async || sidecar.pending().round() == pending.round()).await;
    }
    ticket.answered(Answered::Well, None, Instant::now());
    ticket.first_byte();
    for sidecar in &sidecars {
        until(async || sidecar.pending() == 0.0).await;
    }
    drop(ticket);
}

#[tokio::test]
async fn what_a_sidecar_that_died_had_under_way_is_forgotten() {
    let server = RedisServer::start().await;
    let sidecars = Sidecar::several(2, &server.url()).await;
    let _ticket = sidecars[0].send(&prompt(1, 100));
    until(async || sidecars[1].pending() > 0.0).await;
    sidecars[0].task.abort();
    until(async || sidecars[1].pending() == 0.0).await;
    assert!(sidecars[1].hears_peers());
    let mut connection = server.connection().await;
    let fields: usize = redis::cmd("HLEN").arg(LOADS).query_async(&mut connection).await.unwrap();
    assert_eq!(fields, 1, "it is taken out a minute later");
}

#[tokio::test]
async fn a_sidecar_that_starts_late_knows_what_was_told_before() {
    let server = RedisServer::start().await;
    {
        let sidecars = Sidecar::several(2, &server.url()).await;
        // More than one call reads.
        for subject in 1..=100 {
            sidecars[0].serve(&prompt(subject, 64));
            if subject % 2 == 0 {
                sidecars[1].predicts(&prompt(subject, 64)).await;
            }
        }
    }
    let late = Sidecar::start(&server.url());
    for subject in 1..=100 {
        late.predicts(&prompt(subject, 64)).await;
    }
    late.shares().await;
}

#[tokio::test]
async fn pools_come_and_go_with_the_configuration() {
    let server = RedisServer::start().await;
    let [one, two] = Sidecar::several(2, &server.url()).await.try_into().ok().unwrap();
    let before = one.pool();
    one.serve(&prompt(1, 50));
    two.predicts(&prompt(1, 50)).await;
    one.fleet.adopt(&config(&["other"]), Instant::now());
    until(async || !before.hears_peers(Instant::now())).await;
    one.fleet.adopt(&config(&["other", "pool"]), Instant::now());
    // It begins anew, and is told what it told itself.
    one.predicts(&prompt(1, 50)).await;
    one.shares().await;
    two.fleet.adopt(&config(&["pool", "other"]), Instant::now());
    let other =
        |sidecar: &Sidecar| sidecar.fleet.pools().into_iter().find(|pool| &**pool.id() == "default/other").unwrap();
    for sidecar in [&one, &two] {
        until(async || other(sidecar).hears_peers(Instant::now())).await;
        assert_eq!(other(sidecar).stats(Instant::now()).index_blocks, 0);
    }
}

#[tokio::test]
async fn keys_go_when_nobody_uses_them_for_an_hour() {
    let server = RedisServer::start().await;
    let [one, two] = Sidecar::several(2, &server.url()).await.try_into().ok().unwrap();
    let mut ticket = one.send(&prompt(1, 50));
    ticket.answered(Answered::Well, None, Instant::now());
    two.predicts(&prompt(1, 50)).await;
    let mut connection = server.connection().await;
    for key in [LOG, LOADS] {
        let left: i64 = redis::cmd("TTL").arg(key).query_async(&mut connection).await.unwrap();
        assert!((1_800..=3_600).contains(&left), "{key}: {left}");
    }
}

#[tokio::test]
async fn a_cluster_serves_as_well() {
    let server = RedisServer::start_on_port(|_, _| {
        let bus = free_port();
        let words = format!("--cluster-enabled yes --cluster-port {bus}");
        words.split_whitespace().map(str::to_owned).collect()
    })
    .await;
    say(&mut server.connection().await, "CLUSTER ADDSLOTSRANGE 0 16383").await;
    let [one, two] =
        Sidecar::several(2, &format!("redis+cluster://127.0.0.1:{}", server.port())).await.try_into().ok().unwrap();
    one.serve(&prompt(1, 50));
    two.predicts(&prompt(1, 50)).await;
}
