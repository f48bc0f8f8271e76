//! What a bootstrap says, as golden files and part by part. That Envoy takes it is tested with Envoy itself.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use attache_gate::{Access, AnswerTime, Gate, GateConfig, UnknownKeys};
use attache_proto::headers::{CLUSTER, DESTINATION_ENDPOINT, EXTERNAL_ADDRESS, MODEL, OWNED, PROTOCOL, STRIPPED_EARLY};
use serde_json::{Value, json};

use super::*;
use crate::affinity::{AffinityPolicy, PlacementMode};
use crate::config::model::{
    Backend, Endpoint, EndpointAddress, LimitsKnown, ObjectName, Retries, Route, Rule, RuleMatch, Settings, Target,
    ValueMatch,
};
use crate::config::upstream::{AnswerBound, Api, Credentials};

fn object(name: &str) -> ObjectName {
    ObjectName { namespace: Arc::from("default"), name: Arc::from(name) }
}

pub(super) fn ip(text: &str) -> EndpointAddress {
    EndpointAddress::Ip(text.parse().unwrap())
}

pub(super) fn fqdn(hostname: &str, port: u16) -> EndpointAddress {
    EndpointAddress::Fqdn { hostname: Arc::from(hostname), port }
}

pub(super) fn backend(name: &str, mode: PlacementMode, addresses: Vec<EndpointAddress>) -> Backend {
    let cluster: Arc<str> = Arc::from(format!("default/{name}"));
    let endpoints = addresses.into_iter().map(|address| {
        let id = match &address {
            EndpointAddress::Ip(address) => address.to_string(),
            EndpointAddress::Fqdn { hostname, port } => format!("{hostname}:{port}"),
            EndpointAddress::Unix(path) => format!("unix:{path}"),
        };
        Endpoint { cluster: Arc::from(format!("{cluster}/{id}")), id: Arc::from(id), address }
    });
    Backend {
        name: object(name),
        endpoints: endpoints.collect(),
        cluster,
        tls: None,
        api: Api::default(),
        answer_bound: AnswerBound::Fitting,
        credentials: Credentials::NotNeeded,
        affinity: Arc::new(AffinityPolicy { mode, ..AffinityPolicy::default() }),
        retries: Retries { attempts: 2 },
        model_class: None,
        limits: Vec::new(),
        limits_known: LimitsKnown::All,
    }
}

pub(super) fn config(backends: Vec<Backend>) -> Config {
    let target = |backend| Target { backend, weight: 1, priority: 0, model_override: None, mutation: Arc::default() };
    let targets = (0..backends.len()).map(target);
    let rule = Rule {
        label: "default/r/0".into(),
        is_listed: true,
        name: None,
        matches: vec![RuleMatch { model: Some(ValueMatch::Exact("llama".into())), headers: Vec::new() }],
        targets: targets.collect(),
        limits: Vec::new(),
        limits_known: LimitsKnown::All,
        models_owned_by: Arc::from("attache"),
        models_created_at: 0,
        request_timeout: None,
    };
    let route = Route {
        hosts: Vec::new(),
        name: object("unified"),
        id: Arc::from("default/unified"),
        rules: vec![rule],
        limits: Vec::new(),
        limits_known: LimitsKnown::All,
        costs: Vec::new(),
        model_class: None,
        pass_through: Vec::new(),
    };
    let gate_config = GateConfig::new(Access::Open);
    Config {
        generation: 1,
        settings: Settings::default(),
        gate: Gate::new(gate_config.clone()).unwrap(),
        gate_config,
        filter: Default::default(),
        routes: vec![route],
        backends,
        secrets: BTreeSet::new(),
        rules_by_model: HashMap::new(),
        open_matches: Vec::new(),
    }
}

fn two_replicas() -> Config {
    config(vec![backend("vllm", PlacementMode::Endpoint, vec![ip("10.0.0.1:8000"), ip("[fd00::2]:8000")])])
}

fn options() -> StaticOptions {
    StaticOptions {
        listen: SocketAddr::from(([0, 0, 0, 0], 10000)),
        extproc: ExtprocAddress::Unix(PathBuf::from("/run/attache/extproc.sock")),
        unknown_keys: UnknownKeys::Ask,
        wasm: None,
        admin: None,
        stats: None,
        tls: None,
        cors: None,
    }
}

fn parsed(config: &Config, options: &StaticOptions) -> Value {
    serde_saphyr::from_str(&bootstrap(config, options).unwrap()).unwrap()
}

fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or_else(|| panic!("nothing at {pointer} in {value:#}"))
}

const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
const HOST: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0";

#[test]
fn a_small_bootstrap_reads_like_this() {
    insta::assert_snapshot!(bootstrap(&two_replicas(), &options()).unwrap());
}

#[test]
fn a_full_bootstrap_reads_like_this() {
    let mut config = config(vec![
        backend("vllm", PlacementMode::Endpoint, vec![ip("10.0.0.1:8000"), ip("10.0.0.2:8000")]),
        backend("sglang", PlacementMode::Cluster, vec![fqdn("a.example", 80), fqdn("b.example", 80)]),
        backend("local", PlacementMode::Cluster, vec![EndpointAddress::Unix(Arc::from("/run/model.sock"))]),
    ]);
    config.settings.path_prefix = "/enterpriseai/gateway".to_owned();
    let options = StaticOptions {
        listen: SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 0], 10000)),
        extproc: ExtprocAddress::Tcp { host: "attache.example".to_owned(), port: 9002 },
        unknown_keys: UnknownKeys::Ask,
        wasm: Some(PathBuf::from("/etc/envoy/attache_wasm_filter.wasm")),
        admin: Some(SocketAddr::from(([127, 0, 0, 1], 9901))),
        stats: None,
        tls: Some(ListenTls {
            certificate: PathBuf::from("/etc/envoy/tls/tls.crt"),
            key: PathBuf::from("/etc/envoy/tls/tls.key"),
            sds: PathBuf::from("/etc/envoy/sds.yaml"),
        }),
        cors: Some(Cors {
            origins: vec!["https://app.example".parse().unwrap(), "https://*.example.com".parse().unwrap()],
            credentials: false,
        }),
    };
    insta::assert_snapshot!(bootstrap(&config, &options).unwrap());
}

#[test]
fn counters_are_reached_apart_from_the_rest_of_the_admin_interface() {
    let stats = Some(SocketAddr::from(([0, 0, 0, 0], 9902)));
    for (admin, reached) in [("127.0.0.1:9901", "127.0.0.1"), ("0.0.0.0:9901", "127.0.0.1"), ("[::]:9901", "::1")] {
        let options = StaticOptions { admin: Some(admin.parse().unwrap()), stats, ..options() };
        let bootstrap = parsed(&two_replicas(), &options);
        let listener = at(&bootstrap, "/static_resources/listeners/1");
        assert_eq!(at(listener, "/address/socket_address/port_value"), 9902);
        let manager = at(listener, "/filter_chains/0/filters/0/typed_config");
        let hosts = at(manager, "/route_config/virtual_hosts").as_array().unwrap();
        let routes: Vec<_> = hosts.iter().flat_map(|host| host["routes"].as_array().unwrap()).collect();
        let [route] = routes.try_into().unwrap();
        // One path, exactly, and nothing that changes something.
        assert_eq!(route["match"]["path"], "/stats/prometheus");
        assert_eq!(at(route, "/match/headers/0"), &json!({"name": ":method", "string_match": {"exact": "GET"}}));
        let clusters = at(&bootstrap, "/static_resources/clusters").as_array().unwrap();
        let cluster = clusters.iter().find(|cluster| cluster["name"] == route["route"]["cluster"]).unwrap();
        let address = at(cluster, "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address");
        assert_eq!(address, &json!({"address": reached, "port_value": 9901}));
    }
    // Without an admin interface there are none.
    let bootstrap = parsed(&two_replicas(), &StaticOptions { stats, ..options() });
    assert_eq!(at(&bootstrap, "/static_resources/listeners").as_array().unwrap().len(), 1);
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    assert_eq!(bootstrap(&two_replicas(), &options()).unwrap(), bootstrap(&two_replicas(), &options()).unwrap());
}

#[test]
fn our_headers_are_stripped_before_any_filter_but_for_the_hint() {
    let bootstrap = parsed(&two_replicas(), &options());
    let mutations = at(&bootstrap, MANAGER)
        .pointer("/early_header_mutation_extensions/0/typed_config/mutations")
        .and_then(Value::as_array)
        .unwrap();
    let (protocol, mutations) = mutations.split_first().unwrap();
    assert_eq!(protocol["append"]["header"], json!({"key": PROTOCOL, "value": "%PROTOCOL%"}));
    assert_eq!(protocol["append"]["append_action"], "OVERWRITE_IF_EXISTS_OR_ADD");
    let (envoys, ours) = mutations.split_last().unwrap();
    let removed: Vec<&str> = ours.iter().map(|mutation| mutation["remove"].as_str().unwrap()).collect();
    assert_eq!(removed, STRIPPED_EARLY);
    assert!(!removed.contains(&MODEL));
    assert_eq!(envoys["remove_on_match"]["key_matcher"], json!({"prefix": "x-envoy-"}));
}

#[test]
fn every_route_but_the_refusal_demands_a_cluster_from_the_sidecar() {
    let config = config(vec![
        backend("a", PlacementMode::Endpoint, vec![ip("10.0.0.1:80")]),
        backend("b", PlacementMode::Cluster, vec![fqdn("b.example", 80)]),
    ]);
    let bootstrap = parsed(&config, &options());
    let routes = at(&bootstrap, HOST)["routes"].as_array().unwrap();
    let (refusal, served) = routes.split_last().unwrap();
    let matches: Vec<&Value> = served.iter().map(|route| &route["match"]["headers"]).collect();
    assert_eq!(
        matches,
        [
            &json!([{"name": CLUSTER, "string_match": {"exact": "default/a"}}]),
            &json!([{"name": CLUSTER, "string_match": {"exact": "default/b"}}]),
            &json!([{"name": CLUSTER, "string_match": {"prefix": "default/b/"}}]),
        ]
    );
    assert_eq!(refusal["match"], json!({"prefix": "/"}));
    assert_eq!(refusal["route"]["cluster"], "unprocessed");
    assert_eq!(refusal["route"]["cluster_header"], Value::Null);
}

#[test]
fn what_the_sidecar_did_not_see_ends_where_there_is_no_host() {
    let bootstrap = parsed(&two_replicas(), &options());
    let clusters = at(&bootstrap, "/static_resources/clusters").as_array().unwrap();
    assert_eq!(clusters[1], json!({"name": "unprocessed", "type": "STATIC"}));
    // UH is Envoy's flag for a cluster without a host.
    let mappers = at(&bootstrap, MANAGER).pointer("/local_reply_config/mappers").and_then(Value::as_array).unwrap();
    let of_no_host = |mapper: &&Value| mapper["filter"]["response_flag_filter"]["flags"] == json!(["UH"]);
    let mapper = mappers.iter().find(of_no_host).unwrap();
    assert_eq!(mapper["body_format_override"]["json_format"]["error"]["type"], "server_error");
}

#[test]
fn a_request_may_be_silent_for_seconds_and_an_answer_for_as_long_as_the_listener_says() {
    let bootstrap = parsed(&two_replicas(), &options());
    let routes = at(&bootstrap, HOST)["routes"].as_array().unwrap();
    let (way_in, served) = routes.split_last().unwrap();
    assert_eq!(way_in["route"]["idle_timeout"], "15s");
    // Envoy keeps the timeout of the way in where the next route has none of its own.
    let of_listener = &at(&bootstrap, MANAGER)["stream_idle_timeout"];
    assert!(!served.is_empty() && served.iter().all(|route| route["route"]["idle_timeout"] == *of_listener));
}

#[test]
fn a_body_at_the_cap_fits_into_the_buffer() {
    let mut config = two_replicas();
    config.settings.max_body_bytes = 1_000_000;
    assert_eq!(at(&parsed(&config, &options()), HOST)["request_body_buffer_limit"], 1_000_000 + 65_536);
}

#[test]
fn the_destination_reaches_the_load_balancer_and_nothing_else_of_ours_leaves() {
    let bootstrap = parsed(&two_replicas(), &options());
    let host = at(&bootstrap, HOST);
    let upstream = host["request_headers_to_remove"].as_array().unwrap();
    assert!(!upstream.contains(&json!(DESTINATION_ENDPOINT)));
    assert!(upstream.contains(&json!(EXTERNAL_ADDRESS)) && upstream.contains(&json!(PROTOCOL)));
    assert_eq!(upstream.len(), OWNED.len() + 1);
    let filters = at(&bootstrap, MANAGER)["http_filters"].as_array().unwrap();
    let router = &filters.last().unwrap()["typed_config"];
    let removals = &router["upstream_http_filters"][0]["typed_config"]["mutations"]["request_mutations"];
    assert_eq!(*removals, json!([{"remove": DESTINATION_ENDPOINT}]));
    assert_eq!(host["response_headers_to_remove"], json!(OWNED));
}

#[test]
fn what_ends_in_trailers_comes_buffered_and_so_does_every_version_of_http_that_may_have_them() {
    let bootstrap = parsed(&two_replicas(), &options());
    let filters = at(&bootstrap, MANAGER)["http_filters"].as_array().unwrap();
    let matchers = at(&filters[0], "/typed_config/xds_matcher/matcher_list/matchers").as_array().unwrap();
    let said = |matcher: &Value| {
        let processor = at(matcher, "/on_match/action/typed_config/typed_config/typed_config");
        let mode = &processor["processing_mode"];
        let input = at(matcher, "/predicate/single_predicate/input/typed_config/header_name");
        let value = at(matcher, "/predicate/single_predicate/value_match/prefix");
        let waits = processor.get("send_body_without_waiting_for_header_response").is_none();
        json!([input, value, mode["request_body_mode"], mode["request_trailer_mode"], waits])
    };
    assert_eq!(said(&matchers[0]), json!([PROTOCOL, "HTTP/1", "STREAMED", "SEND", false]));
    assert_eq!(said(&matchers[1]), json!([":path", "/", "BUFFERED", "SEND", true]));
}

#[test]
fn a_name_of_sidecars_is_asked_for_their_health_and_an_address_or_socket_is_not() {
    for (address, is_asked) in
        [("attache.example:10001", true), ("127.0.0.1:10001", false), ("unix:/run/a.sock", false)]
    {
        let options = StaticOptions { extproc: address.parse().unwrap(), ..options() };
        let bootstrap = parsed(&two_replicas(), &options);
        let sidecar = &at(&bootstrap, "/static_resources/clusters")[0];
        let asked = sidecar.pointer("/health_checks/0/grpc_health_check/service_name");
        assert_eq!(asked.is_some(), is_asked, "{address}");
        assert!(asked.is_none_or(|service| service == crate::server::HEALTH_SERVICE));
    }
}

#[test]
fn a_model_servers_own_cors_goes_where_there_is_ours() {
    let removed =
        |options: &StaticOptions| at(&parsed(&two_replicas(), options), HOST)["response_headers_to_remove"].clone();
    assert_eq!(removed(&options()), json!(OWNED));
    let cors = Cors { origins: vec![CorsOrigin::Any], credentials: false };
    let options = StaticOptions { cors: Some(cors), ..options() };
    assert!(removed(&options).as_array().unwrap().contains(&json!("access-control-allow-origin")));
    let filters = at(&parsed(&two_replicas(), &options), MANAGER)["http_filters"].clone();
    assert_eq!(filters[0]["name"], "envoy.filters.http.cors");
}

#[test]
fn a_path_prefix_is_demanded_and_taken_off() {
    let mut config = two_replicas();
    config.settings.path_prefix = "/gateway".to_owned();
    let bootstrap = parsed(&config, &options());
    let route = &at(&bootstrap, HOST)["routes"][0];
    assert_eq!(route["match"]["prefix"], "/gateway/");
    assert_eq!(route["route"]["prefix_rewrite"], "/");
}

#[test]
fn a_backend_without_retries_has_no_retry_policy() {
    let mut config = two_replicas();
    config.backends[0].retries.attempts = 0;
    assert_eq!(at(&parsed(&config, &options()), HOST)["routes"][0]["route"].get("retry_policy"), None);
}

#[test]
fn silence_is_allowed_for_longer_than_the_longest_rule_takes() {
    let mut config = two_replicas();
    let idle = |config: &Config| at(&parsed(config, &options()), MANAGER)["stream_idle_timeout"].clone();
    assert_eq!(idle(&config), "900s");
    config.routes[0].rules[0].request_timeout = Some(Duration::from_secs(3600));
    assert_eq!(idle(&config), "3660s");
}

#[test]
fn a_clusters_type_follows_from_its_addresses() {
    let unix = || EndpointAddress::Unix(Arc::from("/run/model.sock"));
    let cases = [
        (vec![ip("10.0.0.1:80")], "STATIC"),
        (vec![unix(), ip("10.0.0.1:80")], "STATIC"),
        (vec![fqdn("a.example", 80), ip("10.0.0.1:80")], "STRICT_DNS"),
    ];
    for (addresses, expected) in cases {
        let config = config(vec![backend("a", PlacementMode::Endpoint, addresses)]);
        assert_eq!(at(&parsed(&config, &options()), "/static_resources/clusters/2/type"), expected);
    }
    let mixed = config(vec![backend("a", PlacementMode::Cluster, vec![unix(), fqdn("a.example", 80)])]);
    let error = bootstrap(&mixed, &options()).unwrap_err();
    assert!(matches!(error, RenderError::MixedEndpoints { cluster } if cluster == "default/a"));
}

#[test]
fn cluster_mode_has_a_cluster_for_each_replica_and_endpoint_mode_has_a_list_of_hosts() {
    let config = config(vec![
        backend("a", PlacementMode::Endpoint, vec![ip("10.0.0.1:80"), ip("10.0.0.2:80")]),
        backend("b", PlacementMode::Cluster, vec![ip("10.0.0.3:80"), ip("10.0.0.4:80")]),
    ]);
    let bootstrap = parsed(&config, &options());
    let clusters = at(&bootstrap, "/static_resources/clusters").as_array().unwrap();
    let names: Vec<&str> = clusters.iter().map(|cluster| cluster["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["attache", "unprocessed", "default/a", "default/b", "default/b/10.0.0.3:80", "default/b/10.0.0.4:80"]
    );
    let policy = "/load_balancing_policy/policies/0/typed_extension_config";
    let override_host = at(&clusters[2], policy);
    assert_eq!(override_host["typed_config"]["override_host_sources"], json!([{"header": DESTINATION_ENDPOINT}]));
    assert_eq!(at(&clusters[3], policy)["name"], "envoy.load_balancing_policies.least_request");
}

#[test]
fn the_filter_gets_the_gates_configuration_as_json_and_may_wait_for_bodies() {
    let config = two_replicas();
    let options = StaticOptions { wasm: Some(PathBuf::from("/a.wasm")), ..options() };
    let bootstrap = parsed(&config, &options);
    let filters = at(&bootstrap, MANAGER)["http_filters"].as_array().unwrap();
    let names: Vec<&str> = filters.iter().map(|filter| filter["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["envoy.filters.http.wasm", "envoy.filters.http.ext_proc", "envoy.filters.http.router"]);
    let value = at(&filters[0], "/typed_config/config/configuration/value").as_str().unwrap();
    let told = GateConfig { answers: AnswerTime::AfterBody, ..config.gate_config.clone() };
    assert_eq!(GateConfig::from_json(value.as_bytes()).unwrap(), told);
    let refusing = parsed(&config, &StaticOptions { unknown_keys: UnknownKeys::Refuse, ..options });
    let value = at(&refusing, MANAGER)["http_filters"][0]["typed_config"]["config"]["configuration"]["value"].clone();
    let refusing = GateConfig::from_json(value.as_str().unwrap().as_bytes()).unwrap();
    assert_eq!(refusing, GateConfig { unknown_keys: UnknownKeys::Refuse, ..told });
    // Without it, a refused request with a body would have no answer.
    assert_eq!(at(&filters[0], "/typed_config/config/allow_on_headers_stop_iteration"), true);
}

#[cfg(unix)]
#[test]
fn a_path_that_yaml_cannot_hold_is_an_error() {
    use std::os::unix::ffi::OsStringExt as _;
    let path = PathBuf::from(std::ffi::OsString::from_vec(vec![b'/', 0xff]));
    let options = StaticOptions { wasm: Some(path.clone()), ..options() };
    let error = bootstrap(&two_replicas(), &options).unwrap_err();
    assert!(matches!(error, RenderError::PathNotUtf8 { path: named } if named == path));
}
