//! What is refused before anything is printed, and what is said of it.

use super::*;

#[test]
fn what_envoy_gateway_would_refuse_is_refused_with_all_of_it_at_once() {
    let unix = EndpointAddress::Unix("/run/model.sock".into());
    let config = config(vec![
        backend("socket", PlacementMode::Cluster, vec![unix]),
        backend("mixed", PlacementMode::Endpoint, vec![ip("10.0.0.1:80"), fqdn("a.example", 80)]),
        backend("near", PlacementMode::Endpoint, vec![ip("127.0.0.1:80"), ip("[::ffff:127.0.0.1]:80")]),
        backend("short", PlacementMode::Endpoint, vec![fqdn("ollama", 80)]),
        backend("good", PlacementMode::Endpoint, vec![fqdn("a.example", 80)]),
    ]);
    let options = GatewayOptions { redis: redis("redis://:pw@redis:6379"), ..options() };
    let found = errors(&config, &options);
    let texts: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(
        matches!(
            found[..],
            [
                GatewayError::UnixModelServer { .. },
                GatewayError::MixedEndpoints { .. },
                GatewayError::Loopback { .. },
                GatewayError::Loopback { .. },
                GatewayError::BadHostname { .. },
                GatewayError::RedisPassword
            ]
        ),
        "{texts:#?}"
    );
    assert!(texts.iter().all(|text| !text.contains("pw@")));
}

#[test]
fn a_redis_that_the_pod_does_not_have_is_refused() {
    let options = GatewayOptions { redis: redis("redis+unix:///run/redis.sock"), ..options() };
    assert_eq!(errors(&replicas("a", PlacementMode::Endpoint, 1), &options), [GatewayError::RedisSocket]);
}

#[test]
fn a_redis_that_would_be_the_pod_itself_is_refused() {
    let config = replicas("a", PlacementMode::Endpoint, 1);
    for host in ["127.0.0.1", "127.9.9.9", "[::1]", "0.0.0.0", "localhost", "LOCALHOST", "redis.localhost"] {
        let options = GatewayOptions { redis: redis(&format!("redis://{host}:6379")), ..options() };
        let found = errors(&config, &options);
        assert!(matches!(found[..], [GatewayError::RedisLoopback { .. }]), "{host}: {found:?}");
    }
    for host in ["10.0.0.1", "localhost.example", "redis"] {
        let options = GatewayOptions { redis: redis(&format!("redis://{host}:6379")), ..options() };
        assert!(manifests(&config, &[], &options).is_ok(), "{host}");
    }
}

#[test]
fn what_an_api_server_would_refuse_is_refused() {
    let config = replicas("a", PlacementMode::Endpoint, 1);
    let hostnames = |count: usize| (0..count).map(|n| format!("{n}.example")).collect();
    assert!(manifests(&config, &[], &GatewayOptions { hostnames: hostnames(16), ..options() }).is_ok());
    let refused = [GatewayError::TooManyHostnames { count: 17, most: 16 }];
    assert_eq!(errors(&config, &GatewayOptions { hostnames: hostnames(17), ..options() }), refused);

    let subjects = |count: usize| -> Config {
        let subjects = (0..count).map(|n| Subject::Uri(Arc::from(format!("spiffe://{n}")))).collect();
        let server_name = ServerName::Fixed(Arc::from("a.example"));
        by_tls(vec![ip("10.0.0.1:443")], UpstreamTls { trust: Trust::System, server_name, subjects })
    };
    assert!(manifests(&subjects(5), &[], &options()).is_ok());
    let refused = [GatewayError::TooManySubjects { cluster: "default/pool".to_owned(), count: 6, most: 5 }];
    assert_eq!(errors(&subjects(6), &options()), refused);
}

#[test]
fn an_object_too_large_for_etcd_is_refused_with_what_to_do() {
    let mut config = replicas("a", PlacementMode::Endpoint, 1);
    config.gate_config.models = (0..20_000).map(|n| (format!("{n:064}"), vec!["default/a".to_owned()])).collect();
    let wasm = WasmSource { url: "https://files.example/a.wasm".to_owned(), sha256: "a5".repeat(32) };
    let found = errors(&config, &GatewayOptions { wasm: Some(wasm), ..options() });
    let [error @ GatewayError::ObjectTooLarge { kind, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!(kind, "EnvoyExtensionPolicy");
    assert!(error.to_string().contains("leave --wasm-url out"), "{error}");
    // Without the filter all that is the sidecar's alone.
    assert!(manifests(&config, &[], &options()).is_ok());
}

#[test]
fn two_secrets_of_one_name_are_refused_since_a_pod_would_mount_one_for_both() {
    let secret = |namespace: &str, name: &str| ObjectName { namespace: namespace.into(), name: name.into() };
    let mut config = replicas("vllm", PlacementMode::Endpoint, 1);
    config.secrets.extend([secret("team-a", "openai-key"), secret("team-b", "openai-key"), secret("team-b", "other")]);
    let namespaces = vec!["team-a".to_owned(), "team-b".to_owned()];
    let refused = [GatewayError::SecretsOfOneName { name: "openai-key".to_owned(), namespaces }];
    for sidecar in [SidecarForm::Container, deployment()] {
        assert_eq!(errors(&config, &GatewayOptions { sidecar, ..options() }), refused);
    }
    assert!(refused[0].to_string().starts_with("Secrets team-a/openai-key and team-b/openai-key are to be mounted"));
    // Whoever runs the sidecar elsewhere mounts them there.
    assert!(manifests(&config, &[], &external("data/attache")).is_ok());

    config.secrets.remove(&secret("team-b", "openai-key"));
    let yaml = manifests(&config, &[], &options()).unwrap();
    let comments: Vec<&str> = yaml.split_whitespace().filter(|word| *word != "#").collect();
    assert!(comments.join(" ").contains("apply it in namespace envoy-gateway-system, by this name"), "{yaml}");
}

#[test]
fn servers_without_one_name_are_refused_where_a_policy_needs_it() {
    let address = Subject::Ip("10.0.0.1".parse().unwrap());
    let unsaid = UpstreamTls { trust: Trust::System, server_name: ServerName::Unsaid, subjects: vec![address] };
    let of_endpoint = UpstreamTls { trust: Trust::System, server_name: ServerName::OfEndpoint, subjects: vec![] };
    let several = vec![fqdn("a.example", 443), fqdn("b.example", 443)];
    let refused = [GatewayError::NoServerName { cluster: "default/pool".to_owned() }];
    assert_eq!(errors(&by_tls(vec![ip("10.0.0.1:443")], unsaid), &options()), refused);
    assert_eq!(errors(&by_tls(several, of_endpoint), &options()), refused);
}

#[test]
fn several_sidecars_without_a_redis_are_refused_unless_that_is_said_to_be_meant() {
    let config = config(vec![backend("pool", PlacementMode::Endpoint, vec![ip("10.0.0.1:80")])]);
    let of = |count: u32| SidecarForm::Deployment { replicas: NonZeroU32::new(count).unwrap() };
    let options = |sidecar, redis, ledgers| GatewayOptions { sidecar, redis, ledgers, ..options() };
    let error = errors(&config, &options(of(2), None, Ledgers::Shared))[0].to_string();
    assert!(error.contains("a limit would hold 2 times over") && error.contains("--separate-ledgers"), "{error}");
    for options in [
        options(of(2), None, Ledgers::Separate),
        options(of(1), None, Ledgers::Shared),
        options(of(2), redis("redis://redis.data:6379"), Ledgers::Shared),
        options(SidecarForm::Container, None, Ledgers::Shared),
        options(SidecarForm::External("a/b".parse().unwrap()), None, Ledgers::Shared),
    ] {
        assert!(manifests(&config, &[], &options).is_ok(), "{options:?}");
    }
}
