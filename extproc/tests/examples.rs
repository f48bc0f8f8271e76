//! The route examples in `envoy-config/examples`: each is sound, and what stands rendered beside it is what it renders to.
//!
//! When a rendering was meant to change, write the files anew and look at the difference:
//!
//! ```text
//! UPDATE_EXPECT=1 cargo test -p attache --test examples && git diff envoy-config/examples
//! ```

#![cfg(test)]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::{env, fs};

use attache::config::model::Settings;
use attache::config::{self, Config, DocumentText, Outcome};
use attache::render::envoy_gateway::{
    self, GatewayName, GatewayOptions, GatewayRedis, Ledgers, SidecarForm, WasmSource,
};
use attache::render::{self, ExtprocAddress, StaticOptions};
use attache_gate::UnknownKeys;

/// The examples that are rendered with the Wasm filter. The others show how a rendering looks without it.
const WITH_WASM: [&str; 2] = ["combined", "keys-and-tenants"];

/// The examples whose manifests have the sidecar in pods of its own; in the others it is in those of the proxies.
const IN_PODS_OF_ITS_OWN: [&str; 3] = ["combined", "budgets", "cache-affinity"];

/// The examples whose sidecar runs already.
const RUNS_ALREADY: [&str; 1] = ["keys-and-tenants"];

const HOW_TO_UPDATE: &str =
    "if that is as it should be: UPDATE_EXPECT=1 cargo test -p attache --test examples, and look at what git shows";

#[test]
fn every_example_is_without_errors_and_warnings() {
    for name in names() {
        compile(&name);
    }
}

#[test]
fn every_example_renders_to_the_bootstrap_beside_it() {
    for name in names() {
        hold(&name, BOOTSTRAP, &render::bootstrap(&compile(&name).0, &options(&name)).unwrap());
    }
}

#[test]
fn every_example_renders_to_the_manifests_beside_it() {
    for name in names() {
        let (config, texts) = compile(&name);
        let rendered = envoy_gateway::manifests(&config, &texts, &gateway_options(&name));
        hold(&name, MANIFESTS, &rendered.unwrap_or_else(|errors| panic!("{name}: {errors:?}")));
    }
}

/// Compares what was rendered with the file, or writes that.
fn hold(name: &str, ending: &str, rendered: &str) {
    let path = path(&format!("{name}{ending}"));
    if env::var_os("UPDATE_EXPECT").is_some_and(|value| !value.is_empty()) {
        return fs::write(&path, rendered).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    if let Some((line, expected, rendered)) = first_difference(&expected, rendered) {
        panic!(
            "{name}.yaml renders to something else than {name}{ending} from line {line} on:\n  \
             file:     {expected}\n  rendered: {rendered}\n{HOW_TO_UPDATE}"
        );
    }
}

#[test]
fn no_rendering_is_left_without_its_example() {
    let names = names();
    let orphans: Vec<_> = files()
        .into_iter()
        .filter(|file| RENDERED.iter().filter_map(|ending| file.strip_suffix(ending)).any(|name| !names.contains(name)))
        .collect();
    assert!(orphans.is_empty(), "no example renders to {orphans:?}; remove them");
}

/// What a bootstrap's file name ends in.
const BOOTSTRAP: &str = ".envoy.yaml";
/// What the name of a file of manifests ends in.
const MANIFESTS: &str = ".gateway.yaml";
const RENDERED: [&str; 2] = [BOOTSTRAP, MANIFESTS];

/// Every example, without its ending.
fn names() -> BTreeSet<String> {
    let names: BTreeSet<_> = files()
        .iter()
        .filter(|file| !RENDERED.iter().any(|ending| file.ends_with(ending)))
        .filter_map(|file| file.strip_suffix(".yaml"))
        .map(str::to_owned)
        .collect();
    assert!(WITH_WASM.iter().all(|name| names.contains(*name)), "the examples are {names:?}");
    names
}

fn files() -> Vec<String> {
    let entries = fs::read_dir(path("")).unwrap();
    entries.filter_map(|entry| entry.unwrap().file_name().to_str().map(str::to_owned)).collect()
}

fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config/examples").join(file)
}

fn compile(name: &str) -> (Config, Vec<DocumentText>) {
    let file = path(&format!("{name}.yaml"));
    let documents = config::load(&[file]);
    // As when it is rendered from the directory above: no path of a machine.
    let texts: Vec<DocumentText> =
        documents.texts().into_iter().map(|text| DocumentText { name: format!("{name}.yaml"), ..text }).collect();
    let Outcome { config, diagnostics, .. } = config::compile(documents, Settings::default(), 1, None).unwrap();
    let found: Vec<_> = diagnostics.iter().map(|diagnostic| diagnostic.plain().to_string()).collect();
    assert!(found.is_empty(), "{name}.yaml has\n{}", found.join("\n"));
    (config, texts)
}

/// As `attache render static --listen 0.0.0.0:10000 --extproc unix:/run/attache/extproc.sock --admin 127.0.0.1:9901
/// [--wasm /etc/attache/attache_wasm_filter.wasm]` has them.
fn options(name: &str) -> StaticOptions {
    StaticOptions {
        listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10000)),
        extproc: ExtprocAddress::Unix(PathBuf::from("/run/attache/extproc.sock")),
        unknown_keys: UnknownKeys::Ask,
        wasm: WITH_WASM.contains(&name).then(|| PathBuf::from("/etc/attache/attache_wasm_filter.wasm")),
        admin: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9901))),
        stats: None,
        tls: None,
        cors: None,
    }
}

/// As `attache render envoy-gateway --gateway gateways/llm --hostname llm.example.com --image registry.example.com/attache:1
/// --redis redis://redis.attache.svc.cluster.local:6379 --redis-secret redis [--wasm-url ... --wasm-sha256 ...]
/// [--sidecar deployment --namespace attache | --sidecar external --service attache/attache]` has them.
fn gateway_options(name: &str) -> GatewayOptions {
    let is_apart = IN_PODS_OF_ITS_OWN.contains(&name);
    let redis = "redis://redis.attache.svc.cluster.local:6379";
    GatewayOptions {
        gateway: "gateways/llm".parse::<GatewayName>().unwrap().0,
        namespace: is_apart.then(|| "attache".to_owned()),
        proxy_namespace: "envoy-gateway-system".to_owned(),
        monitoring_namespace: "monitoring".to_owned(),
        hostnames: vec!["llm.example.com".to_owned()],
        unknown_keys: UnknownKeys::Ask,
        wasm: WITH_WASM.contains(&name).then(|| WasmSource {
            url: "https://files.example.com/attache_wasm_filter.wasm".to_owned(),
            sha256: "0123456789abcdef".repeat(4),
        }),
        sidecar: match is_apart {
            _ if RUNS_ALREADY.contains(&name) => SidecarForm::External("attache/attache".parse().unwrap()),
            true => SidecarForm::Deployment { replicas: NonZeroU32::new(2).unwrap() },
            false => SidecarForm::Container,
        },
        image: "registry.example.com/attache:1".to_owned(),
        redis: Some(GatewayRedis {
            url: redis.to_owned(),
            target: redis.parse().unwrap(),
            secret: Some("redis".to_owned()),
        }),
        ledgers: Ledgers::Shared,
    }
}

/// The number of the first line that differs, and both lines.
fn first_difference<'a>(expected: &'a str, rendered: &'a str) -> Option<(usize, &'a str, &'a str)> {
    if expected == rendered {
        return None;
    }
    const NOTHING: &str = "(nothing)";
    let longest = expected.lines().count().max(rendered.lines().count());
    let mut expected = expected.lines();
    let mut rendered = rendered.lines();
    let mut differing = (1..=longest).filter_map(|number| {
        let pair = (expected.next().unwrap_or(NOTHING), rendered.next().unwrap_or(NOTHING));
        (pair.0 != pair.1).then_some((number, pair.0, pair.1))
    });
    // Without one, they differ in their line ends.
    Some(differing.next().unwrap_or((longest, "other line ends", "other line ends")))
}
