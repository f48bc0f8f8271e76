//! How requests ended, for clients and in the sidecar's counters.

use attache_tests::{Answer, Stack, until};

/// An error in OpenAI's form: status, type and code.
pub(crate) fn error(answer: &Answer) -> (u16, String, Option<String>) {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{}", answer.text());
    error_in(answer.status, &answer.text())
}

/// The same of an answer's status and body.
pub(crate) fn error_in(status: u16, body: &str) -> (u16, String, Option<String>) {
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{status}: no JSON: {body}"));
    let text = |name: &str| json["error"][name].as_str().map(str::to_owned);
    assert!(text("message").is_some_and(|message| !message.is_empty()), "{body}");
    (status, text("type").unwrap_or_default(), text("code"))
}

/// What [`error`] gives for these.
pub(crate) fn is(status: u16, kind: &str, code: impl Into<Option<&'static str>>) -> (u16, String, Option<String>) {
    (status, kind.to_owned(), code.into().map(str::to_owned))
}

/// Waits until the first gateway's sidecar has counted so many requests with this outcome: it does so when the stream is
/// over, which is a moment after the client has its answer.
pub(crate) async fn counted(stack: &Stack, outcome: &str, requests: usize) {
    let mut found = 0.0;
    let waited = until("the requests were counted", async || {
        let metrics = stack.sidecar_metrics().await.unwrap();
        found = metrics.sum("attache_requests_total", &[("outcome", outcome)]);
        found == requests as f64
    });
    if let Err(error) = waited.await {
        let metrics = stack.sidecar_metrics().await.unwrap();
        let all: Vec<_> =
            metrics.samples("attache_requests_total").map(|s| (s.labels.get("outcome").cloned(), s.value)).collect();
        panic!("{error}: {found} of {requests} `{outcome}` among {all:?}");
    }
}

/// How many requests the sidecar was asked about.
pub(crate) async fn asked(stack: &Stack) -> f64 {
    stack.sidecar_metrics().await.unwrap().sum("attache_streams_total", &[])
}

/// How many requests all model servers have seen.
pub(crate) fn served(stack: &Stack) -> u64 {
    stack.models.iter().map(attache_model_server::ModelServer::requests_total).sum()
}
