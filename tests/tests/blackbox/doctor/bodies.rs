//! How large a body may be: what doctor says of limits and windows is what a real Envoy does.

use attache_tests::{Client, Stack};
use serde_json::{Value, json};

use super::{as_envoy_gateway, diagnose, message_timeout, stack, what};
use crate::{
    documents::{pool, route},
    second_envoy::envoy_with,
};

/// A chat request of about so many bytes.
fn of_size(bytes: usize) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "x".repeat(bytes)}]})
}

const LISTENER: &str = "per_connection_buffer_limit_bytes: 1048576\n    filter_chains";
const REQUEST: &str = "request_body_buffer_limit: 33619968\n";
const CODEC: &str = "codec_type: AUTO\n";
const MIB: usize = 1 << 20;

#[tokio::test]
async fn streamed_bodies_stall_above_the_limit_that_doctor_names_for_the_version_of_http() {
    let stack = stack().await;
    let timeout = message_timeout(&stack);
    // The connection's limit, the request's and the stream's window, in KiB; then what holds over HTTP/1.1 and over HTTP/2.
    for (connection, request, window, http1, http2) in
        [(64, None, None, 64, 16_384), (1024, Some(64), Some(64), 1024, 64), (64, Some(512), Some(64), 512, 512)]
    {
        let listener = LISTENER.replace("1048576", &(connection << 10).to_string());
        let request = request.map_or("\n".to_owned(), |kib: u32| format!("request_body_buffer_limit: {}\n", kib << 10));
        let window = window.map_or(CODEC.to_owned(), |kib: u32| {
            format!("{CODEC}          http2_protocol_options: {{initial_stream_window_size: {}}}\n", kib << 10)
        });
        let replacements = [
            (LISTENER, listener.as_str()),
            (REQUEST, &request),
            (CODEC, &window),
            (timeout.as_str(), "message_timeout: 5s"),
        ];
        let envoy = envoy_with(&stack, &replacements).await;
        let (_, _, proxy) = diagnose(&envoy, None).await;
        let named = [what(&proxy, "buffer-too-small"), what(&proxy, "buffer-below-cap")].concat();
        for (client, limit) in [(envoy.client().unwrap(), http1), (Client::over_http2(envoy.url()).unwrap(), http2)] {
            let below = client.chat(&of_size((limit << 10) - (8 << 10))).await.unwrap();
            assert_eq!(below.status, 200, "below {limit} KiB: {named}");
            let size = if limit >= 1024 { format!("{} MiB", limit >> 10) } else { format!("{limit} KiB") };
            assert!(named.contains(&format!("bodies of more than about {size}")), "{size}: {named}");
            if (limit << 10) < 16 * MIB {
                // Envoy answers while the client is still sending: it may not get to read that.
                let above = client.chat(&of_size((limit << 10) + MIB)).await.map(|answer| answer.status);
                assert!(above.as_ref().is_err() || matches!(above, Ok(503 | 413)), "above {limit} KiB: {above:?}");
            }
        }
        let stats = envoy.stats().await.unwrap();
        assert!(stats.value("http.attache.ext_proc.message_timeouts") > 0, "they stalled");
    }
}

#[tokio::test]
async fn under_envoy_gateway_the_window_of_http2_bounds_bodies_whatever_the_buffer_limit_is() {
    let stack = Stack::builder(pool() + &route("r", "m", "{name: pool}")).models(1).start().await.unwrap();
    let window = ("initial_stream_window_size: 34603008", "initial_stream_window_size: 65536");
    let envoy = as_envoy_gateway(&stack, "window", &[window]).await;
    let (status, _, proxy) = diagnose(&envoy, None).await;
    let expected =
        "bodies of more than about 64 KiB over HTTP/2 are refused by Envoy with 413; the sidecar takes up to 32 MiB";
    assert_eq!((status, what(&proxy, "buffer-too-small").as_str()), (Some(1), expected));
    let over_http2 = Client::over_http2(envoy.url()).unwrap();
    assert_eq!(envoy.client().unwrap().chat(&of_size(MIB)).await.unwrap().status, 200);
    assert_eq!(over_http2.chat(&of_size(32 << 10)).await.unwrap().status, 200);
    let refused = over_http2.chat(&of_size(100 << 10)).await.map(|answer| answer.status);
    assert!(refused.as_ref().is_err() || matches!(refused, Ok(413)), "{refused:?}");
}
