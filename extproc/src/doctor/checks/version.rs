//! What Envoy's version can do.

use crate::doctor::dump::Proxy;
use crate::doctor::finding::{Findings, Rule, Severity};
use crate::doctor::json::Json;
use crate::doctor::scene::{BodyMode, Scene};

pub(in crate::doctor) static RULES: [&Rule; 2] = [&TOO_OLD, &OLD];

static TOO_OLD: Rule = Rule {
    id: "envoy-too-old",
    severity: Severity::Error,
    envoy: "use Envoy 1.38 or later",
    envoy_gateway: "use Envoy Gateway 1.8 or later",
};
static OLD: Rule = Rule {
    id: "envoy-old",
    severity: Severity::Warning,
    envoy: "use Envoy 1.38 or later: the rendered bootstrap was measured on 1.40",
    envoy_gateway: "use Envoy Gateway 1.8 or later",
};

/// Without `protocol_config`, which came with it, the sidecar cannot know how bodies come.
const OLDEST: (u64, u64) = (1, 33);
/// From which on `request_body_buffer_limit` and the no-wait flag are as we render them.
const OLDEST_RENDERED: (u64, u64) = (1, 38);

/// The version, as `(1, 40)`.
pub(in crate::doctor) fn of(proxy: &Proxy<'_>) -> Option<(u64, u64)> {
    let version = proxy.node?.field("user_agent_build_version.version");
    // Zero is left out.
    Some((version.number("major_number")?, version.number("minor_number").unwrap_or(0)))
}

pub(in crate::doctor) fn proxy(proxy: &Proxy<'_>, scenes: &[Scene<'_>], findings: &mut Findings) {
    let Some(version) = of(proxy) else { return };
    let (major, minor) = version;
    let is_streamed = scenes.iter().any(|scene| scene.request_body(None) == BodyMode::Streamed);
    if version < OLDEST {
        let what = format!("Envoy {major}.{minor} does not tell the sidecar how it sends bodies, so nothing is served");
        findings.add(&TOO_OLD, "", what);
    } else if version < OLDEST_RENDERED && is_streamed {
        findings.add(&OLD, "", format!("Envoy {major}.{minor} is older than what the static profile needs"));
    }
}
