//! What only a running Envoy can tell: whether it reaches the sidecar, which one that is, and what has become of streams.

use attache_tests::{Stack, port, until};
use tokio::process::Command;

use super::{address, chat, diagnose, doctor, ids, message_timeout, stack, what};
use crate::{
    documents::{pool, route},
    raw::{Connection, post},
    second_envoy::envoy_with,
};

/// The sidecar's socket, as the bootstrap has it.
fn socket(stack: &Stack) -> String {
    stack.gateway.sidecar.listen().trim_start_matches("unix:").to_owned()
}

#[tokio::test]
async fn a_sidecar_that_is_not_where_envoy_looks_is_an_error_with_the_address() {
    let stack = stack().await;
    let envoy = envoy_with(&stack, &[(&socket(&stack), "/nowhere/attache.sock")]).await;
    // Nobody has asked for anything: Envoy has not tried.
    let (status, found, _) = diagnose(&envoy, None).await;
    assert_eq!((status, found), (Some(0), ids(&[])));
    let text = doctor(&["--admin", &address(&envoy.admin_url())]).await;
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("\nattached by its configuration; no request has been counted yet: 0 errors"), "{text}");

    assert_eq!(envoy.client().unwrap().chat(&chat()).await.unwrap().status, 503);
    let (status, found, proxy) = diagnose(&envoy, None).await;
    assert_eq!((status, found), (Some(1), ids(&["sidecar-unreachable", "has-failed-open"])), "{proxy}");
    let said = what(&proxy, "sidecar-unreachable");
    assert!(said.starts_with("Envoy does not reach the sidecar at /nowhere/attache.sock: "), "{said}");
    assert!(what(&proxy, "has-failed-open").contains("requests got 503"), "{proxy}");
}

#[tokio::test]
async fn a_server_that_is_no_sidecar_is_told_from_one_that_is() {
    let stack = stack().await;
    let pipe = format!("pipe: {{path: {}}}", socket(&stack));
    let model = format!("socket_address: {{address: 127.0.0.1, port_value: {}}}", stack.models[0].addr().port());
    let envoy = envoy_with(&stack, &[(&pipe, &model)]).await;
    assert_eq!(envoy.client().unwrap().chat(&chat()).await.unwrap().status, 503);
    let (status, found, proxy) = diagnose(&envoy, None).await;
    assert_eq!((status, found), (Some(1), ids(&["sidecar-never-answered", "has-failed-open"])), "{proxy}");
}

#[tokio::test]
async fn a_sidecar_that_this_envoy_does_not_ask_is_named_as_another() {
    let documents = pool() + &route("r", "m", "{name: pool}");
    let stack = Stack::builder(documents).models(1).sidecars(2).redis().start().await.unwrap();
    assert_eq!(stack.client().chat(&chat()).await.unwrap().status, 200);
    let admin = |index: usize| address(&stack.gateways().nth(index).unwrap().sidecar.admin_url());
    let (status, found, _) = diagnose(&stack.gateway.envoy, Some(&admin(0))).await;
    assert_eq!((status, found), (Some(0), ids(&[])));
    let (status, found, _) = diagnose(&stack.gateway.envoy, Some(&admin(1))).await;
    assert_eq!((status, found), (Some(1), ids(&["another-sidecar"])));
    // And the other way round: the other Envoy has opened no stream yet.
    let (status, found, _) = diagnose(&stack.peers[0].envoy, Some(&admin(0))).await;
    assert_eq!((status, found), (Some(1), ids(&["another-sidecar"])));
}

#[tokio::test]
async fn an_address_that_is_anothers_is_told_by_what_answers() {
    let stack = stack().await;
    let [envoy, listener, sidecar] =
        [stack.gateway.envoy.admin_url(), stack.gateway.envoy.url(), stack.gateway.sidecar.admin_url()]
            .map(|url| address(&url));
    let grpc = stack.gateway.sidecar.listen().to_owned();
    let model = stack.models[0].addr().to_string();
    let nobody = port::free().unwrap().to_string();
    let said = async |arguments: &[&str]| {
        let output = doctor(arguments).await;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    for (given, expected) in [
        (&sidecar, "is a sidecar's admin port, and not Envoy's"),
        (&listener, "is a listener of an Envoy, where clients call, and not Envoy's"),
        (&grpc, "is a gRPC port, such as the sidecar's --extproc-listen, and not Envoy's"),
        (&model, "is an HTTP server of another kind"),
        (&nobody, "no answer from Envoy's admin interface at"),
    ] {
        let text = said(&["--admin", given]).await;
        assert!(text.contains(expected) && text.contains(given.as_str()) && text.contains("--admin: "), "{text}");
    }
    for (given, expected) in [
        (&envoy, "is Envoy's admin interface, and not a sidecar's"),
        (&listener, "is a listener of an Envoy, where clients call, and not a sidecar's"),
        (&grpc, "is a gRPC port, such as the sidecar's --extproc-listen, and not a sidecar's"),
    ] {
        let text = said(&["--admin", &envoy, "--sidecar-admin", given]).await;
        assert!(text.contains(expected) && text.contains("--sidecar-admin: "), "{text}");
    }
}

#[tokio::test]
async fn a_sidecar_that_is_gone_is_an_error_of_its_own_and_one_that_is_back_is_not() {
    let mut stack = stack().await;
    let admin = address(&stack.gateway.sidecar.admin_url());
    assert_eq!(stack.client().chat(&chat()).await.unwrap().status, 200);
    stack.gateway.sidecar.kill().await.unwrap();
    let (status, found, proxy) = diagnose(&stack.gateway.envoy, Some(&admin)).await;
    assert_eq!((status, found), (Some(1), ids(&["sidecar-silent"])), "{proxy}");
    let said = what(&proxy, "sidecar-silent");
    assert!(said.starts_with(&format!("the sidecar's admin page does not answer: at {admin}, /config: ")), "{said}");
    assert_eq!(proxy["attachments"][0]["request_body"], "STREAMED");

    assert_eq!(stack.client().chat(&chat()).await.unwrap().status, 503);
    let (_, found, proxy) = diagnose(&stack.gateway.envoy, Some(&admin)).await;
    assert_eq!(found, ids(&["sidecar-silent", "sidecar-unreachable", "has-failed-open"]), "{proxy}");
    stack.gateway.sidecar.restart().await.unwrap();
    let admin = address(&stack.gateway.sidecar.admin_url());
    let (_, found, proxy) = diagnose(&stack.gateway.envoy, Some(&admin)).await;
    assert_eq!(found, ids(&["sidecar-not-connected", "has-failed-open"]), "{proxy}");

    until("a request is served", async || stack.client().chat(&chat()).await.is_ok_and(|answer| answer.status == 200))
        .await
        .unwrap();
    let reset = format!("{}/reset_counters", stack.gateway.envoy.admin_url());
    let reset = Command::new("curl").args(["-sfX", "POST", &reset]).output().await.unwrap();
    assert!(reset.status.success());
    let (status, found, proxy) = diagnose(&stack.gateway.envoy, Some(&admin)).await;
    assert_eq!((status, found), (Some(0), ids(&[])), "{proxy}");
}

#[tokio::test]
async fn a_client_that_pauses_is_let_through_where_doctor_says_so_and_is_not_taken_for_a_failed_sidecar() {
    let stack = stack().await;
    let timeout = message_timeout(&stack);
    let body = chat().to_string();
    let whole = post("/v1/chat/completions", "", body.as_bytes());
    // Half a request, and the rest when Envoy no longer waits for the sidecar.
    let paused = async |replacements: &[(&str, &str)]| {
        let envoy = envoy_with(&stack, replacements).await;
        let mut connection = Connection::open(&envoy).await;
        connection.send(&whole[..whole.len() - 20]).await;
        until("the message has timed out", async || {
            envoy.stats().await.is_ok_and(|stats| stats.value("http.attache.ext_proc.message_timeouts") == 1)
        })
        .await
        .unwrap();
        connection.send(&whole[whole.len() - 20..]).await;
        (connection.read_answer().await.status, envoy)
    };
    let short = (timeout.as_str(), "message_timeout: 0.5s");
    let (status, envoy) = paused(&[short]).await;
    assert_eq!((status, stack.models[0].requests_total() + stack.models[1].requests_total()), (503, 0));
    let (status, found, proxy) = diagnose(&envoy, None).await;
    assert_eq!((status, found), (Some(0), ids(&["message-timeout", "has-timed-out"])), "{proxy}");
    assert!(what(&proxy, "has-timed-out").contains("by a client that paused its upload"), "{proxy}");
    assert!(what(&proxy, "message-timeout").contains("pauses for 500 ms gets 503"), "{proxy}");

    let (status, envoy) = paused(&[short, ("cluster: unprocessed\n", "cluster: default/pool\n")]).await;
    assert_eq!((status, stack.models[0].requests_total() + stack.models[1].requests_total()), (200, 1));
    let (_, found, proxy) = diagnose(&envoy, None).await;
    let expected = ["message-timeout", "has-timed-out", "has-failed-open", "fails-open"];
    assert_eq!(found, ids(&expected), "{proxy}");
    assert!(what(&proxy, "fails-open").ends_with("by pausing the upload for 0.5 s (message_timeout)"), "{proxy}");
}
