//! Whether the sidecar is attached to an Envoy, and what about that Envoy will hurt: a config dump in, findings out.
//!
//! Pure: whoever asks has fetched the dump. Nothing in it is trusted: what is missing or strange is passed over, and what is
//! printed is names and numbers, never a configuration value that could be a secret.

mod checks;
mod dump;
mod finding;
mod gateway;
mod json;
mod matching;
mod report;
mod route;
mod scene;
mod summary;

use serde::Serialize;
use serde_json::Value;

use checks::run_time::Counters;
use dump::Proxy;
use finding::Findings;
use gateway::gateways;
use scene::Scene;

pub use finding::{Finding, Fix, Rule, Severity};
pub use report::draw;
pub use summary::Attachment;

/// What is known of an Envoy.
#[derive(Debug, Default)]
pub struct Evidence {
    /// What `/config_dump` says, or what `egctl` makes of it.
    pub dump: Value,
    /// What `/stats?format=json` says, of the same Envoy; null if nobody asked.
    pub stats: Value,
    /// What `/clusters?format=json` says, of the same Envoy; null if nobody asked.
    pub clusters: Value,
    /// What `/server_info` says, of the same Envoy; null if nobody asked.
    pub server_info: Value,
    /// What the admin page `/config` of the sidecar says; null if nobody asked.
    pub sidecar: Value,
    /// What the admin page `/attached` of the sidecar says; null if nobody asked.
    pub attached: Value,
    /// Where the sidecar was asked, and why it did not answer; `None` if it did, or nobody asked.
    pub silence: Option<String>,
    /// What was asked for besides, and did not come.
    pub unread: Vec<String>,
}

/// What the answer depends on besides.
#[derive(Debug)]
pub struct Question {
    /// A part of the name of the sidecar's filter, or of the cluster that it asks; in any case of letters.
    pub mark: String,
    /// The largest body that the sidecar takes, in bytes.
    pub max_body_bytes: u64,
}

impl Default for Question {
    fn default() -> Self {
        Self { mark: "attache".to_owned(), max_body_bytes: 32 * 1024 * 1024 }
    }
}

/// Who has said what an examination rests on, besides the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Nobody: what is configured may never have worked.
    Configuration,
    /// Envoy's counters: what has happened to requests, and not what will happen to the next one.
    Counters,
    /// The counters, and the sidecar itself.
    Sidecar,
}

/// What was found of one Envoy.
#[derive(Debug, Serialize)]
pub struct Examination {
    /// `namespace/pod` where the dump says so, else empty.
    pub proxy: String,
    /// Its version, such as `1.40`; empty where the dump does not say.
    pub envoy: String,
    /// Who was asked.
    pub basis: Basis,
    /// Where the sidecar is attached, and with which limits.
    pub attachments: Vec<Attachment>,
    /// What is to be known, the worst first.
    pub findings: Vec<Finding>,
}

/// There is no Envoy in what was given.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no config dump of an Envoy; take one with curl http://ENVOY-ADMIN/config_dump?include_eds")]
pub struct NoDump;

/// Examines every Envoy in a dump.
///
/// # Errors
/// [`NoDump`] for JSON that is something else.
pub fn examine(evidence: &Evidence, question: &Question) -> Result<Vec<Examination>, NoDump> {
    let proxies = dump::proxies(&evidence.dump);
    if proxies.is_empty() {
        return Err(NoDump);
    }
    Ok(proxies.iter().map(|proxy| examine_one(proxy, evidence, question)).collect())
}

/// Every rule by which something may be found.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    checks::rules()
}

fn examine_one(proxy: &Proxy<'_>, evidence: &Evidence, question: &Question) -> Examination {
    let gateways = gateways(proxy);
    let scene = |gateway| Scene::of(proxy, gateway, &question.mark, question.max_body_bytes);
    let scenes: Vec<Scene<'_>> = gateways.iter().filter_map(scene).collect();
    let mut findings = Findings::default();
    checks::version::proxy(proxy, &scenes, &mut findings);
    checks::attachment::unread(&evidence.unread, &mut findings);
    if let Some(silence) = &evidence.silence {
        checks::reach::silent(silence, &mut findings);
    }
    checks::attachment::proxy(proxy, &gateways, &scenes, &mut findings);
    for scene in &scenes {
        checks::attachment::gateway(scene, &mut findings);
        checks::headers::gateway(scene, &mut findings);
        checks::processing::gateway(scene, &mut findings);
        checks::limits::gateway(scene, &mut findings);
        checks::clusters::gateway(scene, &mut findings);
        checks::wasm::gateway(scene, &mut findings);
        if !evidence.sidecar.is_null() {
            checks::sidecar::gateway(scene, &evidence.sidecar, &mut findings);
            checks::stale::gateway(scene, &evidence.sidecar, &mut findings);
        }
        if !evidence.stats.is_null() {
            let counters = Counters::of(&evidence.stats);
            checks::reach::envoy(scene, evidence, &counters, &mut findings);
            checks::run_time::gateway(scene, &counters, &mut findings);
            if !evidence.attached.is_null() {
                checks::reach::sidecar(scene, evidence, &counters, &mut findings);
            }
        }
    }
    let version = checks::version::of(proxy);
    Examination {
        proxy: proxy.name.clone(),
        envoy: version.map(|(major, minor)| format!("{major}.{minor}")).unwrap_or_default(),
        basis: match (&evidence.stats, &evidence.attached) {
            (Value::Null, _) => Basis::Configuration,
            (_, Value::Null) => Basis::Counters,
            _ => Basis::Sidecar,
        },
        attachments: scenes.iter().map(Attachment::of).collect(),
        findings: findings.into_list(),
    }
}

#[cfg(test)]
mod tests;
