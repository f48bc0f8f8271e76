//! What the objects say, part by part; what is refused, in `refusals`. That they keep to the schemas is tested in `tests/manifests`.

mod refusals;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use attache_gate::{UnattachedStatus, UnknownKeys};
use attache_proto::headers::{EXTERNAL_ADDRESS, OWNED, STRIPPED_EARLY};
use serde_json::json;

use super::*;
use crate::affinity::{PlacementMode, Scraping};
use crate::config::model::{EndpointAddress, ObjectName, Rule};
use crate::config::tls::{ServerName, Subject, Trust, UpstreamTls};
use crate::render::tests::{backend, config, fqdn, ip};

fn options() -> GatewayOptions {
    GatewayOptions {
        gateway: "gateways/llm".parse::<GatewayName>().unwrap().0,
        namespace: None,
        proxy_namespace: "envoy-gateway-system".to_owned(),
        monitoring_namespace: "monitoring".to_owned(),
        hostnames: Vec::new(),
        unknown_keys: UnknownKeys::Ask,
        wasm: None,
        sidecar: SidecarForm::Container,
        image: "attache:1".to_owned(),
        redis: None,
        ledgers: Ledgers::Separate,
    }
}

fn deployment() -> SidecarForm {
    SidecarForm::Deployment { replicas: NonZeroU32::new(2).unwrap() }
}

fn redis(url: &str) -> Option<GatewayRedis> {
    Some(GatewayRedis { url: url.to_owned(), target: url.parse().unwrap(), secret: None })
}

fn replicas(name: &str, mode: PlacementMode, count: u16) -> Config {
    config(vec![backend(
        name,
        mode,
        (1..=count).map(|n| ip(&format!("10.0.{}.{}:80", n / 250, n % 250 + 1))).collect(),
    )])
}

/// The objects, as a reader of the YAML has them.
fn objects(config: &Config, options: &GatewayOptions) -> Vec<Value> {
    let text = manifests(config, &[], options).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

fn of_kind<'o>(objects: &'o [Value], kind: &str) -> Vec<&'o Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn errors(config: &Config, options: &GatewayOptions) -> Vec<GatewayError> {
    manifests(config, &[], options).unwrap_err()
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let config = replicas("vllm", PlacementMode::Endpoint, 3);
    assert_eq!(manifests(&config, &[], &options()), manifests(&config, &[], &options()));
}

#[test]
fn every_route_to_a_model_server_needs_the_header_and_leads_to_its_endpoints() {
    let objects = objects(&replicas("vllm", PlacementMode::Endpoint, 2), &options());
    let routes = of_kind(&objects, "HTTPRoute");
    let rule = &routes[1]["spec"]["rules"][0];
    assert_eq!(rule["matches"][0]["headers"], json!([{"name": "x-attache-cluster", "value": "default/vllm"}]));
    let backend = of_kind(&objects, "Backend")[0];
    assert_eq!(rule["backendRefs"][0]["name"], backend["metadata"]["name"]);
    assert_eq!(backend["spec"]["endpoints"].as_array().unwrap().len(), 2);
    // No bound, where Envoy's default would be 15 s.
    assert_eq!(rule["timeouts"]["request"], "0s");
}

#[test]
fn the_way_in_answers_503_and_has_the_filters() {
    let objects = objects(&replicas("vllm", PlacementMode::Endpoint, 2), &options());
    let way_in = of_kind(&objects, "HTTPRoute")[0];
    let rule = &way_in["spec"]["rules"][0];
    assert_eq!(rule.get("backendRefs"), None);
    assert_eq!(rule["filters"][1]["extensionRef"]["name"], "attache-llm-unprocessed");
    let response = &of_kind(&objects, "HTTPRouteFilter")[0]["spec"]["directResponse"];
    assert_eq!(response["statusCode"], 503);
    let body: Value = serde_json::from_str(response["body"]["inline"].as_str().unwrap()).unwrap();
    assert_eq!(body["error"]["type"], "server_error");
    let policy = &of_kind(&objects, "EnvoyExtensionPolicy")[0]["spec"];
    let targets: Vec<&Value> = policy["targetRefs"].as_array().unwrap().iter().map(|target| &target["name"]).collect();
    assert_eq!(targets, [&way_in["metadata"]["name"], &json!("attache-llm-targets-1")]);
    assert_eq!(policy["extProc"][0]["processingMode"]["request"]["body"], "Buffered");
}

#[test]
fn our_headers_are_removed_from_what_comes_in_and_from_what_leaves() {
    let objects = objects(&replicas("vllm", PlacementMode::Endpoint, 2), &options());
    let policy = &of_kind(&objects, "ClientTrafficPolicy")[0]["spec"];
    assert_eq!(policy["headers"]["earlyRequestHeaders"]["remove"], json!(STRIPPED_EARLY));
    assert_eq!(policy["targetRefs"][0]["name"], "llm");
    let filters = &of_kind(&objects, "HTTPRoute")[1]["spec"]["rules"][0]["filters"];
    assert_eq!(filters[1]["responseHeaderModifier"]["remove"], json!(OWNED));
    let upstream = filters[0]["requestHeaderModifier"]["remove"].as_array().unwrap();
    assert!(!upstream.contains(&json!("x-gateway-destination-endpoint")));
    assert!(upstream.contains(&json!(EXTERNAL_ADDRESS)));
    assert_eq!(upstream.len(), OWNED.len());
}

#[test]
fn placement_by_endpoint_overrides_the_host_and_placement_by_cluster_has_a_rule_for_each_replica() {
    let endpoint = objects(&replicas("vllm", PlacementMode::Endpoint, 2), &options());
    let policy = &of_kind(&endpoint, "BackendTrafficPolicy")[0]["spec"];
    let header = json!([{"header": "x-gateway-destination-endpoint"}]);
    assert_eq!(policy["loadBalancer"]["endpointOverride"]["extractFrom"], header);
    assert_eq!(policy["retry"]["numRetries"], 2);

    let cluster = objects(&replicas("vllm", PlacementMode::Cluster, 2), &options());
    let rules = of_kind(&cluster, "HTTPRoute")[1]["spec"]["rules"].as_array().unwrap();
    let values: Vec<&Value> = rules.iter().map(|rule| &rule["matches"][0]["headers"][0]["value"]).collect();
    assert_eq!(values, ["default/vllm", "default/vllm/10.0.0.2:80", "default/vllm/10.0.0.3:80"]);
    assert_eq!(of_kind(&cluster, "BackendTrafficPolicy")[0]["spec"]["loadBalancer"].get("endpointOverride"), None);
}

#[test]
fn more_rules_than_an_http_route_holds_go_into_several() {
    let objects = objects(&replicas("vllm", PlacementMode::Cluster, 40), &options());
    let routes = of_kind(&objects, "HTTPRoute");
    let rules: Vec<usize> = routes.iter().map(|route| route["spec"]["rules"].as_array().unwrap().len()).collect();
    assert_eq!(rules, [1, 16, 16, 9]);
    let policy = &of_kind(&objects, "BackendTrafficPolicy")[0]["spec"];
    assert_eq!(policy["targetRefs"].as_array().unwrap().len(), 3);
    assert_eq!(of_kind(&objects, "EnvoyExtensionPolicy")[0]["spec"]["targetRefs"].as_array().unwrap().len(), 4);
}

#[test]
fn more_endpoints_than_a_backend_holds_go_into_several_with_their_weights() {
    let objects = objects(&replicas("vllm", PlacementMode::Endpoint, 130), &options());
    let refs = of_kind(&objects, "HTTPRoute")[1]["spec"]["rules"][0]["backendRefs"].as_array().unwrap();
    let weights: Vec<&Value> = refs.iter().map(|reference| &reference["weight"]).collect();
    assert_eq!(weights, [64, 64, 2]);
    assert_eq!(refs[2]["name"], "attache-llm-default-vllm-3");
    let most = errors(&replicas("vllm", PlacementMode::Endpoint, 1025), &options());
    assert!(matches!(most[..], [GatewayError::TooManyEndpoints { count: 1025, most: 1024, .. }]), "{most:?}");
    let most = errors(&replicas("vllm", PlacementMode::Cluster, 1024), &options());
    assert!(matches!(most[..], [GatewayError::TooManyTargets { count: 1025, most: 1024 }]), "{most:?}");
}

#[test]
fn two_backends_whose_names_would_be_one_are_told_apart() {
    let mut one = backend("c", PlacementMode::Endpoint, vec![ip("10.0.0.1:80")]);
    one.cluster = "a-b/c".into();
    let mut other = backend("b-c", PlacementMode::Endpoint, vec![ip("10.0.0.2:80")]);
    other.cluster = "a/b-c".into();
    let objects = objects(&config(vec![one, other]), &options());
    let names: Vec<&str> =
        of_kind(&objects, "Backend").iter().map(|backend| backend["metadata"]["name"].as_str().unwrap()).collect();
    assert!(names[0].starts_with("attache-llm-a-b-c-") && names[1].starts_with("attache-llm-a-b-c-"), "{names:?}");
    assert_ne!(names[0], names[1]);
}

/// What an object is to the API servers.
fn identities(objects: &[Value]) -> Vec<String> {
    let identity = |object: &Value| {
        let metadata = &object["metadata"];
        format!("{} {}/{}", object["kind"], metadata["namespace"], metadata["name"])
    };
    objects.iter().map(identity).collect()
}

fn of(gateway: &str, sidecar: SidecarForm) -> GatewayOptions {
    let gateway = gateway.parse::<GatewayName>().unwrap().0;
    GatewayOptions { gateway, sidecar, namespace: Some("data".to_owned()), ..options() }
}

#[test]
fn no_object_of_one_gateway_is_another_gateways() {
    let mut config = config(vec![
        backend("a", PlacementMode::Cluster, vec![ip("10.0.0.1:80"), ip("10.0.0.2:80")]),
        backend("b", PlacementMode::Endpoint, vec![fqdn("b.example", 80)]),
        backend("c-d", PlacementMode::Endpoint, vec![ip("10.0.0.3:80")]),
        backend("sidecar", PlacementMode::Endpoint, vec![ip("10.0.0.4:80")]),
    ]);
    let trust = Trust::Authorities(Arc::from("PEM\n"));
    let server_name = ServerName::Fixed(Arc::from("a.example"));
    config.backends[0].tls = Some(Arc::new(UpstreamTls { trust, server_name, subjects: vec![] }));
    // Equal in name, and equal in what the two parts are together.
    let mut gateways: Vec<String> =
        ["team-a/llm", "team-b/llm", "team/a-llm", "llm/a", "data/llm-a", "data/team-a-llm"].map(str::to_owned).into();
    // And whatever is printed for `llm`, as the name of a Gateway beside it.
    for sidecar in [SidecarForm::Container, deployment()] {
        for object in objects(&config, &of("team-a/llm", sidecar)) {
            let name = object["metadata"]["name"].as_str().unwrap().strip_prefix("attache-").unwrap();
            gateways.push(format!("team-a/{name}"));
            gateways.push(format!("team-a/{}", name.rsplit_once('-').map_or(name, |(name, _)| name)));
        }
    }
    gateways.sort_unstable();
    gateways.dedup();
    for sidecar in [SidecarForm::Container, deployment()] {
        let mut seen = std::collections::HashMap::new();
        let mut instances = std::collections::HashSet::new();
        for gateway in &gateways {
            let objects = objects(&config, &of(gateway, sidecar.clone()));
            assert!(
                instances.insert(objects[0]["metadata"]["labels"]["app.kubernetes.io/instance"].clone()),
                "{gateway}"
            );
            for identity in identities(&objects) {
                let other = seen.insert(identity.clone(), gateway);
                assert_eq!(other, None, "{identity} of {gateway}");
            }
        }
    }
}

#[test]
fn in_the_proxies_pod_the_sidecar_is_a_socket_and_outlives_envoy() {
    let objects = objects(&replicas("vllm", PlacementMode::Endpoint, 2), &options());
    let proxy = &of_kind(&objects, "EnvoyProxy")[0]["spec"]["provider"]["kubernetes"]["envoyDeployment"];
    let container = &proxy["initContainers"][0];
    assert_eq!(container["restartPolicy"], "Always");
    assert!(container["args"].as_array().unwrap().contains(&json!("--extproc-listen=unix:/run/attache/extproc.sock")));
    // Of what Envoy's pod opens by it, anybody may know: no NetworkPolicy is there.
    assert_eq!(container["ports"], json!([{"name": "attache-metrics", "containerPort": 10003}]));
    assert!(container["args"].as_array().unwrap().contains(&json!("--admin-listen=127.0.0.1:10002")));
    let sidecar = of_kind(&objects, "Backend").into_iter().last().unwrap();
    assert_eq!(sidecar["spec"]["endpoints"], json!([{"unix": {"path": "/run/attache/extproc.sock"}}]));
    let policy = &of_kind(&objects, "EnvoyExtensionPolicy")[0]["spec"]["extProc"][0];
    assert_eq!(policy["backendRefs"][0]["name"], sidecar["metadata"]["name"]);
    // Where the pods are that mount it.
    assert_eq!(of_kind(&objects, "ConfigMap")[0]["metadata"]["namespace"], "envoy-gateway-system");
    for mount in container["volumeMounts"].as_array().unwrap() {
        let volumes = proxy["pod"]["volumes"].as_array().unwrap();
        assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
    }
    assert!(of_kind(&objects, "Deployment").is_empty() && of_kind(&objects, "NetworkPolicy").is_empty());
}

#[test]
fn in_pods_of_its_own_the_sidecar_is_a_service_that_only_the_gateways_proxies_reach() {
    let options = GatewayOptions {
        sidecar: deployment(),
        namespace: Some("attache".to_owned()),
        redis: redis("redis://10.1.0.1:6380"),
        ..options()
    };
    let objects = objects(&replicas("vllm", PlacementMode::Endpoint, 2), &options);
    let service = of_kind(&objects, "Service")[0];
    let pods = &of_kind(&objects, "Deployment")[0]["spec"]["template"];
    for (key, value) in service["spec"]["selector"].as_object().unwrap() {
        assert_eq!(pods["metadata"]["labels"][key], *value);
    }
    assert_eq!(pods["spec"]["automountServiceAccountToken"], false);
    let reference = &of_kind(&objects, "EnvoyExtensionPolicy")[0]["spec"]["extProc"][0]["backendRefs"][0];
    assert_eq!(*reference, json!({"name": "attache-gateways-llm-sidecar", "namespace": "attache", "port": 10001}));
    let grant = of_kind(&objects, "ReferenceGrant")[0];
    assert_eq!(grant["metadata"]["namespace"], "attache");
    assert_eq!(grant["spec"]["from"][0]["namespace"], "gateways");
    let policy = &of_kind(&objects, "NetworkPolicy")[0]["spec"];
    let labels = &policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"];
    assert_eq!(labels["gateway.envoyproxy.io/owning-gateway-name"], "llm");
    let opened: Vec<_> = policy["ingress"].as_array().unwrap().iter().map(|rule| &rule["ports"][0]["port"]).collect();
    assert_eq!(opened, [&json!(10001), &json!(10003)]);
    let container = &pods["spec"]["containers"][0];
    let ports: Vec<_> = container["ports"].as_array().unwrap().iter().map(|port| &port["containerPort"]).collect();
    assert_eq!(ports, opened);
    let arguments = container["args"].as_array().unwrap();
    for listens in ["--admin-listen=127.0.0.1:10002", "--metrics-listen=0.0.0.0:10003"] {
        assert!(arguments.contains(&json!(listens)), "{listens}");
    }
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], 10003, "{probe}");
    }
    assert_eq!(policy["egress"][1]["to"], json!([{"ipBlock": {"cidr": "10.1.0.1/32"}}]));
    assert_eq!(policy["egress"][1]["ports"], json!([{"protocol": "TCP", "port": 6380}]));
    assert!(of_kind(&objects, "EnvoyProxy").is_empty());
}

#[test]
fn the_sidecar_may_reach_metrics_pages_where_they_are() {
    let mut all = vec![
        backend("own", PlacementMode::Endpoint, vec![ip("10.0.0.1:8000")]),
        backend("apart", PlacementMode::Endpoint, vec![ip("10.0.0.2:8000")]),
        backend("named", PlacementMode::Endpoint, vec![fqdn("triton.example", 8000)]),
        backend("unread", PlacementMode::Endpoint, vec![ip("10.0.0.4:8000")]),
    ];
    for (backend, port) in all.iter_mut().zip([None, Some(9100), Some(8002)]) {
        Arc::make_mut(&mut backend.affinity).scraping = Some(Scraping { port, ..Scraping::default() });
    }
    Arc::make_mut(&mut all[3].affinity).scraping = None;
    let objects = objects(&config(all), &GatewayOptions { sidecar: deployment(), ..options() });
    let egress = of_kind(&objects, "NetworkPolicy")[0]["spec"]["egress"].as_array().unwrap();
    let at = |ip: &str, port: u16| json!({"to": [{"ipBlock": {"cidr": format!("{ip}/32")}}], "ports": [{"protocol": "TCP", "port": port}]});
    let anywhere = json!({"ports": [{"protocol": "TCP", "port": 8002}]});
    assert_eq!(egress[1..], [at("10.0.0.1", 8000), at("10.0.0.2", 9100), anywhere]);
}

fn external(service: &str) -> GatewayOptions {
    GatewayOptions { sidecar: SidecarForm::External(service.parse().unwrap()), ..options() }
}

#[test]
fn a_sidecar_that_runs_already_is_named_and_none_of_its_own_objects_is_printed() {
    let wasm = WasmSource { url: "https://files.example/a.wasm".to_owned(), sha256: "a5".repeat(32) };
    // What it is told elsewhere is no reason to refuse here.
    let options = GatewayOptions {
        unknown_keys: UnknownKeys::Ask,
        wasm: Some(wasm),
        redis: redis("redis://:secret@redis:6379"),
        ..external("data/attache:7000")
    };
    let large = DocumentText { name: "a.yaml".to_owned(), text: "# x\n".repeat(300_000) };
    let yaml = manifests(&replicas("vllm", PlacementMode::Endpoint, 2), &[large], &options).unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&yaml).unwrap();
    let mut kinds: Vec<&str> = objects.iter().filter_map(|object| object["kind"].as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let expected = [
        "Backend",
        "BackendTrafficPolicy",
        "ClientTrafficPolicy",
        "EnvoyExtensionPolicy",
        "EnvoyProxy",
        "HTTPRoute",
        "HTTPRouteFilter",
        "ReferenceGrant",
    ];
    assert_eq!(kinds, expected);
    let reference = &of_kind(&objects, "EnvoyExtensionPolicy")[0]["spec"]["extProc"][0]["backendRefs"];
    assert_eq!(*reference, json!([{"name": "attache", "namespace": "data", "port": 7000}]));
    let grant = of_kind(&objects, "ReferenceGrant")[0];
    assert_eq!(grant["metadata"]["namespace"], "data");
    assert_eq!(grant["spec"]["to"], json!([{"group": "", "kind": "Service", "name": "attache"}]));
    assert_eq!(of_kind(&objects, "EnvoyProxy")[0]["spec"].get("provider"), None);
}

#[test]
fn a_sidecar_that_runs_already_in_the_gateways_namespace_needs_no_grant() {
    let objects = objects(&replicas("vllm", PlacementMode::Endpoint, 2), &external("gateways/attache"));
    assert!(of_kind(&objects, "ReferenceGrant").is_empty() && of_kind(&objects, "EnvoyProxy").is_empty());
    let reference = &of_kind(&objects, "EnvoyExtensionPolicy")[0]["spec"]["extProc"][0]["backendRefs"];
    assert_eq!(*reference, json!([{"name": "attache", "port": 10001}]));
}

#[test]
fn the_sidecar_is_told_what_is_not_as_it_is_by_default() {
    let mut config = replicas("vllm", PlacementMode::Endpoint, 1);
    let options = GatewayOptions { sidecar: deployment(), ..options() };
    let container = |config: &Config| {
        let objects = objects(config, &options);
        of_kind(&objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0].clone()
    };
    let told =
        |config: &Config, argument: &str| container(config)["args"].as_array().unwrap().contains(&json!(argument));
    assert!(!told(&config, "--unattached-status=403") && !told(&config, "--secrets-dir=/etc/attache-secrets"));
    config.settings.unattached_status = UnattachedStatus::Forbidden;
    // Named by a policy; it is in the cluster alone.
    config.secrets.insert(ObjectName { namespace: "models".into(), name: "openai".into() });
    assert!(told(&config, "--unattached-status=403") && told(&config, "--secrets-dir=/etc/attache-secrets"));
    let mount = json!({
        "name": "secret-models-openai",
        "mountPath": "/etc/attache-secrets/models/openai",
        "readOnly": true,
    });
    assert!(container(&config)["volumeMounts"].as_array().unwrap().contains(&mount));
}

#[test]
fn nothing_is_granted_within_one_namespace() {
    let options = GatewayOptions { sidecar: deployment(), ..options() };
    let objects = objects(&replicas("vllm", PlacementMode::Endpoint, 2), &options);
    assert!(of_kind(&objects, "ReferenceGrant").is_empty());
    assert_eq!(of_kind(&objects, "Deployment")[0]["metadata"]["namespace"], "gateways");
}

#[test]
fn the_filter_goes_before_the_sidecar_and_has_its_hash_and_its_configuration() {
    let wasm = |url: &str| {
        let wasm = WasmSource { url: url.to_owned(), sha256: "a5".repeat(32) };
        objects(
            &replicas("vllm", PlacementMode::Endpoint, 2),
            &GatewayOptions { wasm: Some(wasm), sidecar: deployment(), ..options() },
        )
    };
    let http = wasm("https://files.example/a.wasm");
    let filter = &of_kind(&http, "EnvoyExtensionPolicy")[0]["spec"]["wasm"][0];
    assert_eq!(filter["code"]["http"], json!({"url": "https://files.example/a.wasm", "sha256": "a5".repeat(32)}));
    assert_eq!(filter["config"]["version"], 1);
    assert_eq!(filter["config"].get("answers"), None);
    let order = &of_kind(&http, "EnvoyProxy")[0]["spec"]["filterOrder"];
    assert_eq!(*order, json!([{"name": "envoy.filters.http.wasm", "before": "envoy.filters.http.ext_proc"}]));
    let image = wasm("oci://registry.example/attache:1");
    let code = &of_kind(&image, "EnvoyExtensionPolicy")[0]["spec"]["wasm"][0]["code"];
    assert_eq!(code["image"]["url"], "registry.example/attache:1");
}

#[test]
fn a_path_prefix_is_demanded_and_taken_off_for_addresses_and_for_names() {
    let mut config = config(vec![
        backend("a", PlacementMode::Endpoint, vec![ip("10.0.0.1:80")]),
        backend("b", PlacementMode::Endpoint, vec![fqdn("b.example", 80)]),
    ]);
    config.settings.path_prefix = "/ai/v.1".to_owned();
    let objects = objects(&config, &options());
    let routes = of_kind(&objects, "HTTPRoute");
    let path = json!({"type": "PathPrefix", "value": "/ai/v.1"});
    assert!(routes.iter().all(|route| route["spec"]["rules"][0]["matches"][0]["path"] == path));
    let rewrite = &routes[1]["spec"]["rules"][0]["filters"][2]["urlRewrite"];
    assert_eq!(*rewrite, json!({"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}));
    let named = &routes[2]["spec"]["rules"][0]["filters"][2]["extensionRef"]["name"];
    let filters = of_kind(&objects, "HTTPRouteFilter");
    let filter = filters.iter().find(|filter| filter["metadata"]["name"] == *named).unwrap();
    assert_eq!(filter["spec"]["urlRewrite"]["hostname"]["type"], "Backend");
    assert_eq!(filter["spec"]["urlRewrite"]["path"]["replaceRegexMatch"]["pattern"], "^/ai/v\\.1/*");
}

#[test]
fn a_rules_timeout_is_the_routes_and_of_several_the_longest() {
    let mut config = replicas("vllm", PlacementMode::Endpoint, 1);
    let timeout = |config: &Config| {
        objects(config, &options())
            .iter()
            .find(|object| object["metadata"]["name"] == "attache-llm-targets-1")
            .map(|route| route["spec"]["rules"][0]["timeouts"]["request"].clone())
            .unwrap()
    };
    config.routes[0].rules[0].request_timeout = Some(Duration::from_secs(60));
    assert_eq!(timeout(&config), "60s");
    let Rule { targets, matches, models_owned_by, .. } = &config.routes[0].rules[0];
    let other = Rule {
        label: "default/r/0".into(),
        is_listed: true,
        name: None,
        matches: matches.clone(),
        targets: targets.clone(),
        limits: Vec::new(),
        limits_known: crate::config::model::LimitsKnown::All,
        models_owned_by: models_owned_by.clone(),
        models_created_at: 0,
        request_timeout: Some(Duration::from_secs(90)),
    };
    config.routes[0].rules.push(other);
    assert_eq!(timeout(&config), "90s");
    assert!(manifests(&config, &[], &options()).unwrap().contains("Rules of several timeouts"));
    config.routes[0].rules[0].request_timeout = None;
    assert_eq!(timeout(&config), "0s");
}

#[test]
fn secrets_are_left_out_of_the_config_map_and_mounted() {
    let text = DocumentText {
        name: "/a/routes.yaml".to_owned(),
        text: "kind: ClientKey\n---\nkind: Secret\nmetadata: {name: openai, namespace: m}\nstringData: {k: sk-1}\n"
            .to_owned(),
    };
    let config = replicas("vllm", PlacementMode::Endpoint, 1);
    let yaml = manifests(&config, std::slice::from_ref(&text), &options()).unwrap();
    assert!(!yaml.contains("sk-1"));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&yaml).unwrap();
    assert_eq!(of_kind(&objects, "ConfigMap")[0]["data"], json!({"routes.yaml": "kind: ClientKey\n"}));
    let volumes =
        &of_kind(&objects, "EnvoyProxy")[0]["spec"]["provider"]["kubernetes"]["envoyDeployment"]["pod"]["volumes"];
    assert!(
        volumes.as_array().unwrap().contains(&json!({"name": "secret-m-openai", "secret": {"secretName": "openai"}}))
    );

    let list = DocumentText { text: "kind: List\nitems: [{kind: Secret}]\n".to_owned(), ..text.clone() };
    let large = DocumentText { text: "# x\n".repeat(300_000), ..text };
    let found = manifests(&config, &[list, large], &options()).unwrap_err();
    assert!(
        matches!(found[..], [GatewayError::SecretInList { .. }, GatewayError::ConfigMapTooLarge { .. }]),
        "{found:?}"
    );
}

#[test]
fn a_long_gateways_objects_have_names_that_kubernetes_takes() {
    let mut options = options();
    options.gateway = ObjectName { name: "g".repeat(253).into(), ..options.gateway };
    options.sidecar = deployment();
    for object in objects(&replicas("vllm", PlacementMode::Endpoint, 2), &options) {
        let name = object["metadata"]["name"].as_str().unwrap();
        assert!(is_dns_label(name), "{name}");
        assert!(is_dns_label(object["metadata"]["labels"]["app.kubernetes.io/instance"].as_str().unwrap()));
    }
}

fn by_tls(endpoints: Vec<EndpointAddress>, tls: UpstreamTls) -> Config {
    let mut backend = backend("pool", PlacementMode::Endpoint, endpoints);
    backend.tls = Some(Arc::new(tls));
    config(vec![backend])
}

#[test]
fn our_backends_are_called_by_tls_as_the_operators_are() {
    let tls = |trust, server_name, subjects| UpstreamTls { trust, server_name, subjects };
    let target = json!([{"group": "gateway.envoyproxy.io", "kind": "Backend", "name": "attache-llm-default-pool"}]);
    let named = || vec![fqdn("a.example", 443), fqdn("a.example", 444)];
    let all = objects(&by_tls(named(), tls(Trust::System, ServerName::OfEndpoint, vec![])), &options());
    let [policy] = of_kind(&all, "BackendTLSPolicy")[..] else { panic!() };
    let validation = json!({"wellKnownCACertificates": "System", "hostname": "a.example"});
    assert_eq!(policy["spec"], json!({"targetRefs": target, "validation": validation}));

    let subjects = vec![Subject::Dns(Arc::from("b.example")), Subject::Uri(Arc::from("spiffe://b"))];
    let fixed = || ServerName::Fixed(Arc::from("a.example"));
    let trust = Trust::Authorities(Arc::from("PEM\n"));
    let all = objects(&by_tls(vec![ip("10.0.0.1:443")], tls(trust, fixed(), subjects)), &options());
    let [policy] = of_kind(&all, "BackendTLSPolicy")[..] else { panic!() };
    let authorities = json!([{"group": "", "kind": "ConfigMap", "name": "attache-llm-authorities-1"}]);
    let names = json!([{"type": "Hostname", "hostname": "b.example"}, {"type": "URI", "uri": "spiffe://b"}]);
    assert_eq!(
        policy["spec"]["validation"],
        json!({"caCertificateRefs": authorities, "hostname": "a.example", "subjectAltNames": names})
    );
    let ours = |object: &&&Value| object["metadata"]["name"] == "attache-llm-authorities-1";
    let config_map = of_kind(&all, "ConfigMap").into_iter().find(|object| ours(&object)).unwrap().clone();
    assert_eq!(config_map["data"], json!({"ca.crt": "PEM\n"}));
    assert_eq!(config_map["metadata"]["namespace"], policy["metadata"]["namespace"]);

    let all = objects(&by_tls(vec![ip("10.0.0.1:443")], tls(Trust::Anyone, fixed(), vec![])), &options());
    assert!(of_kind(&all, "BackendTLSPolicy").is_empty());
    assert_eq!(of_kind(&all, "Backend")[0]["spec"]["tls"], json!({"sni": "a.example", "insecureSkipVerify": true}));
}
