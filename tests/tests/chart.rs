//! The Helm chart and the kustomize base: rendered by Helm's own engine, and held to what the sidecar and a cluster demand.

#![cfg(test)]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use attache_tests::tools;
use serde_json::{Value, json};

const NAMESPACE: &str = "gateways";

fn place(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// What the chart makes of these values, by template. Or why it refuses them.
fn templates(values: &Value) -> Result<BTreeMap<String, String>, String> {
    templates_of("attache", values)
}

fn templates_of(release: &str, values: &Value) -> Result<BTreeMap<String, String>, String> {
    let mut helm = Command::new(tools::helm().unwrap());
    helm.arg(place("tests/tests/python/chart.py")).arg(place("envoy-config/helm/attache"));
    let mut helm = helm.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let asked = json!({"values": values, "name": release, "namespace": NAMESPACE});
    helm.stdin.take().unwrap().write_all(asked.to_string().as_bytes()).unwrap();
    let output = helm.wait_with_output().unwrap();
    assert!(output.status.success());
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    if let Some(error) = said["error"].as_str() {
        return Err(error.to_owned());
    }
    assert_eq!(said["lint"], json!([]));
    Ok(serde_json::from_value(said["manifests"].clone()).unwrap())
}

/// Its objects by kind.
fn rendered(values: &Value) -> Result<BTreeMap<String, Value>, String> {
    templates(values).map(|templates| objects(&templates))
}

fn objects(templates: &BTreeMap<String, String>) -> BTreeMap<String, Value> {
    let mut objects = BTreeMap::new();
    for (template, text) in templates {
        if template.ends_with("NOTES.txt") || text.trim().is_empty() {
            continue;
        }
        let object: Value = serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{template}: {error}\n{text}"));
        let kind = object["kind"].as_str().unwrap().to_owned();
        assert!(objects.insert(kind, object).is_none(), "{template}: two of a kind");
    }
    objects
}

/// The least that the chart asks for.
fn least() -> Value {
    json!({"config": {"files": {"routes.yaml": "kind: AIGatewayRoute\n"}}, "replicas": 1})
}

/// These, and documents; without a Redis, one replica.
fn with(mut values: Value) -> Value {
    values["config"] = json!({"existingConfigMap": "documents"});
    if values["redis"].is_null() {
        values["replicas"] = json!(1);
    }
    values
}

/// Everything that it knows.
fn everything() -> Value {
    json!({
        "image": {"repository": "registry.example/attache", "digest": format!("sha256:{}", "a5".repeat(32))},
        "replicas": 3,
        "config": {"existingConfigMap": "documents"},
        "secrets": [{"name": "openai"}, {"name": "openai", "namespace": "models", "secretName": "models-openai"}],
        "redis": {
            "url": "rediss://redis.data:6380", "passwordSecret": "redis", "caSecret": "redis-ca", "tlsSecret": "redis-tls",
            "ports": [6381],
        },
        "extraArgs": ["--path-prefix=/llm"],
        "extraEnv": [{"name": "RUST_BACKTRACE", "value": "1"}],
        "podAnnotations": {"note": "x"},
        "podLabels": {"team": "platform"},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "high",
        "networkPolicy": {"proxyPodLabels": {"a": "b"}, "modelNamespaces": ["models"], "modelCidrs": ["10.1.0.0/16"], "modelPorts": [8000]},
        "podMonitor": {"enabled": true, "labels": {"release": "prometheus"}},
    })
}

fn container(objects: &BTreeMap<String, Value>) -> &Value {
    &objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]
}

fn arguments(objects: &BTreeMap<String, Value>) -> Vec<String> {
    container(objects)["args"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_sidecar_is_started_with_options_that_it_has() {
    for values in [least(), everything()] {
        let arguments = arguments(&rendered(&values).unwrap());
        // Everything before `--help` is read and judged, and then nothing is run.
        let output = tools::attache().unwrap().args(&arguments).arg("--help").output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn the_notes_say_a_command_that_names_the_charts_service() {
    let templates = templates(&least()).unwrap();
    let notes = templates.iter().find_map(|(name, text)| name.ends_with("NOTES.txt").then_some(text)).unwrap();
    let command = notes.split_once("attache render").unwrap().1.split_once('|').unwrap().0.replace("\\\n", " ");
    let example = place("envoy-config/examples/unified-endpoint.yaml");
    let given = |word: &str| match word {
        "DOCUMENTS" => example.display().to_string(),
        "NAMESPACE/NAME" => "proxies/llm".to_owned(),
        word => word.to_owned(),
    };
    let output = tools::attache().unwrap().arg("render").args(command.split_whitespace().map(given)).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let policy = objects.iter().find(|object| object["kind"] == "EnvoyExtensionPolicy").unwrap();
    let service = &rendered(&least()).unwrap()["Service"];
    let port = &service["spec"]["ports"][0]["port"];
    let named = json!({"name": service["metadata"]["name"], "namespace": NAMESPACE, "port": port});
    assert_eq!(policy["spec"]["extProc"][0]["backendRefs"], json!([named]));
}

#[test]
fn what_is_mounted_is_there_and_what_is_read_is_mounted() {
    let objects = rendered(&everything()).unwrap();
    let (container, pod) = (container(&objects), &objects["Deployment"]["spec"]["template"]["spec"]);
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&container["volumeMounts"]), names(&pod["volumes"]));
    let mounts: Vec<_> =
        container["volumeMounts"].as_array().unwrap().iter().map(|it| it["mountPath"].as_str().unwrap()).collect();
    for argument in arguments(&objects) {
        if let Some((_, path)) = argument.split_once("=/etc/") {
            let path = format!("/etc/{path}");
            assert!(mounts.iter().any(|mount| path.starts_with(mount) || mount.starts_with(&path)), "{path}");
        }
    }
    assert!(mounts.contains(&"/etc/attache-secrets/gateways/openai"), "{mounts:?}");
    assert!(mounts.contains(&"/etc/attache-secrets/models/openai"), "{mounts:?}");
    let secrets: Vec<_> = pod["volumes"].as_array().unwrap().iter().map(|it| &it["secret"]["secretName"]).collect();
    assert!(secrets.contains(&&json!("openai")) && secrets.contains(&&json!("models-openai")), "{secrets:?}");
    assert!(!objects.contains_key("ConfigMap"), "the operator keeps it");
}

#[test]
fn the_pod_may_do_no_more_than_it_must() {
    for values in [least(), everything()] {
        let objects = rendered(&values).unwrap();
        let (container, pod) = (container(&objects), &objects["Deployment"]["spec"]["template"]["spec"]);
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        let security = &container["securityContext"];
        assert_eq!(security["readOnlyRootFilesystem"], true);
        assert_eq!(security["allowPrivilegeEscalation"], false);
        assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(security["seccompProfile"], json!({"type": "RuntimeDefault"}));
        assert_eq!(container["resources"]["requests"], json!({"cpu": "50m", "memory": "64Mi"}));
        let policy = &objects["NetworkPolicy"]["spec"];
        assert_eq!(policy["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(policy["ingress"][0]["ports"], json!([{"protocol": "TCP", "port": "grpc"}]));
        let labels = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"].as_object().unwrap();
        assert_eq!(labels["app.kubernetes.io/component"], "proxy", "and not Envoy Gateway itself");
        for rule in policy["ingress"].as_array().unwrap() {
            assert!(rule["from"][0]["namespaceSelector"]["matchLabels"].is_object(), "{rule}");
        }
    }
}

#[test]
fn probes_ports_and_selectors_name_what_is_there() {
    let objects = rendered(&everything()).unwrap();
    let container = container(&objects);
    let ports: Vec<_> = container["ports"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert!(ports.contains(&container[probe]["httpGet"]["port"].as_str().unwrap()), "{probe}");
    }
    assert!(ports.contains(&objects["Service"]["spec"]["ports"][0]["targetPort"].as_str().unwrap()));
    assert!(ports.contains(&objects["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"].as_str().unwrap()));
    let labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"].as_object().unwrap();
    for selector in [
        &objects["Deployment"]["spec"]["selector"]["matchLabels"],
        &objects["Service"]["spec"]["selector"],
        &objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        &objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
        &objects["PodMonitor"]["spec"]["selector"]["matchLabels"],
    ] {
        let selector = selector.as_object().unwrap();
        assert!(!selector.is_empty() && selector.iter().all(|(name, value)| labels.get(name) == Some(value)));
    }
}

/// Monitoring is let in where there are metrics and nothing else; the admin pages are the pod's own unless somebody is named.
#[test]
fn the_admin_port_is_open_to_nobody_but_the_namespace_that_is_named() {
    let doors = |values: Value| {
        let objects = rendered(&with(values)).unwrap();
        let ingress = &objects["NetworkPolicy"]["spec"]["ingress"];
        let opened: Vec<_> = ingress
            .as_array()
            .unwrap()
            .iter()
            .map(|rule| {
                let from = &rule["from"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"];
                (from.as_str().unwrap().to_owned(), rule["ports"][0]["port"].as_str().unwrap().to_owned())
            })
            .collect();
        let arguments = arguments(&objects);
        let listens = |option: &str| arguments.iter().find_map(|it| it.strip_prefix(option)).unwrap().to_owned();
        let ports: BTreeMap<_, _> = container(&objects)["ports"]
            .as_array()
            .unwrap()
            .iter()
            .map(|port| (port["name"].as_str().unwrap().to_owned(), port["containerPort"].as_u64().unwrap()))
            .collect();
        for (_, port) in &opened {
            assert!(ports.contains_key(port), "{port}");
        }
        (opened, listens("--admin-listen="), listens("--metrics-listen="), ports)
    };
    let own = |(from, port): (&str, &str)| (from.to_owned(), port.to_owned());
    let (proxies, monitoring) = (own(("envoy-gateway-system", "grpc")), own(("monitoring", "metrics")));

    let (opened, admin, metrics, ports) = doors(json!({}));
    assert_eq!(opened, [proxies.clone(), monitoring.clone()]);
    assert_eq!((&*admin, &*metrics), ("127.0.0.1:10002", "0.0.0.0:10003"));
    assert_eq!(ports, [("grpc".to_owned(), 10001), ("metrics".to_owned(), 10003)].into());

    let (opened, admin, _, ports) = doors(json!({"networkPolicy": {"adminNamespace": "operators"}}));
    assert_eq!(opened, [proxies.clone(), monitoring, own(("operators", "admin"))]);
    assert_eq!((&*admin, ports["admin"]), ("0.0.0.0:10002", 10002));

    let (opened, ..) = doors(json!({"networkPolicy": {"monitoringNamespace": ""}}));
    assert_eq!(opened, [proxies]);
}

#[test]
fn what_the_pod_is_given_to_end_is_longer_than_what_answers_are_given() {
    let objects = rendered(&least()).unwrap();
    let pod = &objects["Deployment"]["spec"]["template"]["spec"];
    let pause = container(&objects)["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
    let drain =
        arguments(&objects).iter().find_map(|it| it.strip_prefix("--drain-timeout=")?.strip_suffix('s')?.parse().ok());
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > pause + drain.unwrap_or(u64::MAX));
}

#[test]
fn wrong_values_are_refused_with_what_is_wrong() {
    for (values, reason) in [
        (json!({"replicas": 1}), "nothing to serve"),
        (json!({"config": {"files": {"a.yaml": "x"}, "existingConfigMap": "y"}, "replicas": 1}), "exclude each other"),
        (json!({"config": {"files": {"a.txt": "x"}}}), "a.txt"),
        (json!({"replica": 2}), "replica"),
        (json!({"replicas": 0}), "replicas"),
        (json!({"image": {"digest": "sha256:1"}}), "digest"),
        (json!({"redis": {"url": "redis.data:6379"}}), "url"),
        (json!({"secrets": [{"name": "a", "namespace": "no/path"}]}), "namespace"),
        (json!({"secrets": [{"name": "../a"}]}), "name"),
        (with(json!({"secrets": [{"name": "a"}, {"name": "a", "namespace": NAMESPACE}]})), "gateways/a is there twice"),
        (
            with(json!({"secrets": [{"name": "a", "namespace": "x"}, {"name": "a", "namespace": "y"}]})),
            "the same Secret for x and for y",
        ),
        (
            with(json!({"secrets": [{"name": "a"}, {"name": "b", "namespace": "y", "secretName": "a"}]})),
            "the same Secret for gateways and for y",
        ),
        (with(json!({"redis": {"url": "redis://h", "caSecret": "ca"}})), "write rediss://"),
        (json!({"networkPolicy": {"modelCidrs": ["models"]}}), "modelCidrs"),
        (json!({"networkPolicy": {"proxyNamespace": ""}}), "proxyNamespace"),
    ] {
        let error = rendered(&values).unwrap_err();
        assert!(error.contains(reason), "{values}: {error}");
    }
}

#[test]
fn several_replicas_without_a_redis_are_refused_unless_that_is_said_to_be_meant() {
    let of = |mut values: Value| {
        values["config"] = json!({"existingConfigMap": "documents"});
        rendered(&values)
    };
    for (values, count) in [(json!({}), "2"), (json!({"replicas": 3, "redis": {"separateLedgers": false}}), "3")] {
        let error = of(values).unwrap_err();
        assert!(error.contains(&format!("a limit would hold {count} times over")), "{error}");
        assert!(error.contains("redis.url") && error.contains("redis.separateLedgers"), "{error}");
    }
    for values in [
        json!({"replicas": 1}),
        json!({"redis": {"separateLedgers": true}}),
        json!({"redis": {"url": "redis://redis.data"}}),
        json!({"extraArgs": ["--redis=redis://redis.data"]}),
        json!({"extraEnv": [{"name": "ATTACHE_REDIS", "value": "redis://redis.data"}]}),
    ] {
        assert!(of(values.clone()).is_ok(), "{values}");
    }
}

/// What the words of a `helm` command, as a shell hands them over, make of the chart's values.
fn set_file(command: &str) -> Value {
    let words = Command::new("sh").arg("-c").arg(format!("printf '%s\\n' {command}")).output().unwrap();
    let words = String::from_utf8(words.stdout).unwrap();
    let mut words = words.lines().skip_while(|word| *word != "--set-file");
    let (name, _file) = words.nth(1).and_then(|word| word.split_once('=')).unwrap_or_else(|| panic!("{command}"));
    // As Helm reads it: a dot is the next level, but for one behind a backslash.
    let levels = name.replace("\\.", "\u{0}");
    let mut value = json!("kind: AIGatewayRoute\n");
    for level in levels.rsplit('.') {
        value = json!({level.replace('\u{0}', "."): value});
    }
    value
}

#[test]
fn the_commands_that_are_told_give_the_chart_a_file() {
    let values = std::fs::read_to_string(place("envoy-config/helm/attache/values.yaml")).unwrap();
    let operations = std::fs::read_to_string(place("docs/operations.md")).unwrap();
    let told = rendered(&json!({"replicas": 1})).unwrap_err();
    for text in [&values, &operations, &told] {
        let (_, command) = text.split_once("--set-file ").unwrap();
        let command = command.lines().next().unwrap().split('`').next().unwrap().trim_end_matches('\\');
        let mut values = set_file(&format!("--set-file {command}"));
        values["replicas"] = json!(1);
        let objects = rendered(&values).unwrap_or_else(|error| panic!("{command}: {error}"));
        assert_eq!(objects["ConfigMap"]["data"]["routes.yaml"], "kind: AIGatewayRoute\n", "{command}");
    }
}

#[test]
fn a_secret_reaches_no_config_map_however_it_is_written() {
    for text in [
        "a: 1\n---\nkind: Secret\n",
        "kind: Secret # mine\n",
        "{apiVersion: v1, kind: Secret, stringData: {a: b}}",
        "--- {kind: Secret}\n",
        "--- # first\nkind: Secret\n",
        "a: 1\r\n---\r\nkind: Secret\r\ndata: {}\r\n",
        "a: 1\r---\rkind: Secret\r",
        "a: 1\n...\nkind: Secret\n",
        "%YAML 1.2\n---\nkind: Secret\n",
        "\u{feff}kind: Secret\n",
        "? kind\n: Secret\n",
        "kind: &kind !!str \"Secr\\u0065t\"\n",
        "kind: >-\n  Secret\n",
        "apiVersion: v1\nkind: List\nitems:\n- kind: ConfigMap\n- kind: Secret\n",
        "kind: List\nitems: [{kind: List, items: [{kind: Secret}]}]\n",
        "kind: Secret\ndata: {a: b}\napiVersion: v1\nkind: AIGatewayRoute\n",
        "kind: AIGatewayRoute\n---kind: Secret\ndata: {a: b}\n",
        "kind: SecretList\nitems: [{data: {a: b}}]\n",
    ] {
        let error = rendered(&json!({"config": {"files": {"a.yaml": text}}, "replicas": 1})).unwrap_err();
        assert!(error.contains("a.yaml has a Secret"), "{text}: {error}");
    }
    for text in ["Secret", "- kind: Secret\n", "kind: A\n---\nkind: [\n"] {
        let error = rendered(&json!({"config": {"files": {"a.yaml": text}}, "replicas": 1})).unwrap_err();
        assert!(error.contains("no YAML mapping, which may be a Secret"), "{text}: {error}");
    }
}

#[test]
fn documents_without_a_secret_arrive_as_they_are_but_for_the_ends_of_lines() {
    let combined = std::fs::read_to_string(place("envoy-config/examples/combined.yaml")).unwrap();
    let documents = [
        &*combined,
        "# kind: Secret\n---\nkind: A\n---\n",
        "%YAML 1.2\n---\nkind: A",
        "kind: A\r\nspec: {secretRef: {kind: Secret}}\r\n",
        "kind: ConfigMap\ndata:\n  a: |\n    ---\n    kind: Secret\n",
    ];
    for text in documents {
        let objects = rendered(&json!({"config": {"files": {"a.yaml": text}}, "replicas": 1})).unwrap();
        let kept = objects["ConfigMap"]["data"]["a.yaml"].as_str().unwrap();
        assert_eq!(kept.trim_end(), text.replace("\r\n", "\n").trim_end());
    }
}

#[test]
fn redis_is_reached_at_the_ports_of_its_url_and_its_password_is_not_in_it() {
    for (url, expected) in [
        ("redis://redis.data", json!([6379])),
        ("redis://redis.data:7000/3", json!([7000])),
        ("rediss://user@redis.data:6380", json!([6380])),
        ("redis+sentinel://a,b:5/main", json!([26379, 5])),
        ("rediss+cluster://a:7000,[::1]:7001,[::2]", json!([7000, 7001, 6379])),
    ] {
        let objects = rendered(&with(json!({"redis": {"url": url}}))).unwrap();
        let ports = objects["NetworkPolicy"]["spec"]["egress"][1]["ports"].as_array().unwrap();
        assert_eq!(ports.iter().map(|it| it["port"].clone()).collect::<Value>(), expected, "{url}");
        assert!(arguments(&objects).contains(&format!("--redis={url}")), "{url}");
    }
    for url in [
        "redis://:secret@redis.data",
        "rediss://user:secret@redis.data:6380/1",
        "redis://:sec@ret@redis.data",
        "redis://:sec/ret@redis.data",
        "redis+unix:///run/redis.sock?db=1&pass=secret",
        "redis+sentinel://a/main?sentinel_password=secret",
    ] {
        let error = rendered(&with(json!({"redis": {"url": url}}))).unwrap_err();
        assert!(error.contains("redis.passwordSecret"), "{url}: {error}");
        assert!(!error.contains("sec"), "{error}");
    }
}

#[test]
fn redis_may_be_trusted_by_an_authority_without_a_certificate_of_ours() {
    let url = "rediss://redis.data:6380";
    let files = |redis: Value| -> Vec<String> {
        let objects = rendered(&with(json!({"redis": redis}))).unwrap();
        arguments(&objects).iter().filter(|it| it.contains("/etc/attache-redis")).cloned().collect()
    };
    assert_eq!(files(json!({"url": url})), Vec::<String>::new());
    assert_eq!(files(json!({"url": url, "caSecret": "ca"})), ["--redis-ca=/etc/attache-redis-ca/ca.crt"]);
    let own = ["--redis-cert=/etc/attache-redis-tls/tls.crt", "--redis-key=/etc/attache-redis-tls/tls.key"];
    let both = files(json!({"url": url, "caSecret": "ca", "tlsSecret": "tls"}));
    assert_eq!(both, ["--redis-ca=/etc/attache-redis-ca/ca.crt", own[0], own[1]]);
    let one = files(json!({"url": url, "tlsSecret": "tls"}));
    assert_eq!(one, ["--redis-ca=/etc/attache-redis-tls/ca.crt", own[0], own[1]]);
}

#[test]
fn the_network_policy_lets_out_to_where_the_values_say() {
    let egress = |policy: Value| -> Vec<Value> {
        let objects = rendered(&with(json!({"networkPolicy": policy}))).unwrap();
        objects["NetworkPolicy"]["spec"]["egress"].as_array().unwrap().clone()
    };
    let names = json!({"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]});
    let port = json!([{"protocol": "TCP", "port": 8000}]);
    let models = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "models"}}});
    let outside = json!({"ipBlock": {"cidr": "10.1.0.0/16"}});
    for (policy, expected) in [
        (json!({}), json!({"to": [{"namespaceSelector": {}}]})),
        (json!({"modelPorts": [8000]}), json!({"ports": port})),
        (json!({"modelCidrs": ["10.1.0.0/16"], "modelPorts": [8000]}), json!({"to": [outside], "ports": port})),
        (json!({"modelNamespaces": ["models"], "modelCidrs": ["10.1.0.0/16"]}), json!({"to": [models, outside]})),
    ] {
        assert_eq!(egress(policy), [names.clone(), expected]);
    }
}

#[test]
fn a_release_of_any_name_has_a_service_that_may_be_called_so() {
    for (release, expected) in [
        ("attache", "attache"),
        ("my.release", "my-release-attache"),
        ("attache.eu", "attache-eu"),
        ("2nd", "attache-2nd-attache"),
    ] {
        let objects = objects(&templates_of(release, &least()).unwrap());
        assert_eq!(objects["Service"]["metadata"]["name"], expected);
        assert_eq!(objects["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"], expected);
    }
}

#[test]
fn the_renderers_pods_are_probed_as_the_charts_are() {
    let example = place("envoy-config/examples/unified-endpoint.yaml");
    let mut render = tools::attache().unwrap();
    render.args(["render", "envoy-gateway"]).arg(example).args(["--gateway", "proxies/llm", "--sidecar", "deployment"]);
    render.args(["--replicas", "1"]);
    let output = render.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let theirs = &deployment["spec"]["template"]["spec"]["containers"][0];
    let objects = rendered(&least()).unwrap();
    let ours = container(&objects);
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        // One names its port, the other says it.
        let plain = |container: &Value| {
            let mut probe = container[probe].clone();
            forget(&mut probe, &["port"]);
            probe
        };
        assert_eq!(plain(ours), plain(theirs), "{probe}");
        assert!(ours[probe]["timeoutSeconds"].is_u64(), "{probe}");
    }
}

#[test]
fn the_commands_of_the_operators_guide_name_what_is_rendered() {
    let example = place("envoy-config/examples/unified-endpoint.yaml");
    let mut render = tools::attache().unwrap();
    render.args(["render", "envoy-gateway"]).arg(example).args([
        "--gateway",
        "gateways/llm",
        "--sidecar",
        "deployment",
    ]);
    let output = render.args(["--redis", "redis://redis.data:6379"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let objects: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(output.stdout).unwrap()).unwrap();
    let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    let named = |kind: &str| format!("-n gateways {kind} deploy/{}", deployment["metadata"]["name"].as_str().unwrap());
    let guide = std::fs::read_to_string(place("docs/operations.md")).unwrap();
    assert!(guide.contains(&named("port-forward")) && guide.contains(&named("exec")), "{}", named("exec"));
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    // A port that is forwarded is asked for on the pod's own loopback.
    assert!(container["args"].as_array().unwrap().contains(&json!("--admin-listen=127.0.0.1:10002")), "{container}");
    // The commands that are run in the pod ask where they would without an option.
    let help = tools::attache().unwrap().args(["limits", "show", "--help"]).output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("127.0.0.1:10002"));
}

/// The base is what the chart makes of its own values: one truth, for those who do not use Helm. `UPDATE_EXPECT=1` writes it.
#[test]
fn the_kustomize_base_is_what_the_chart_renders() {
    // One replica: how many share which Redis is for an overlay to say.
    let objects = rendered(&json!({"config": {"existingConfigMap": "attache-config"}, "replicas": 1})).unwrap();
    let base = place("envoy-config/kustomize/base");
    let kustomization: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(base.join("kustomization.yaml")).unwrap()).unwrap();
    let mut files: Vec<_> = objects.keys().map(|kind| format!("{}.yaml", kind.to_lowercase())).collect();
    for (kind, object) in &objects {
        let file = base.join(format!("{}.yaml", kind.to_lowercase()));
        let mut object = object.clone();
        // What only Helm's own bookkeeping needs.
        forget(&mut object, &["app.kubernetes.io/managed-by", "helm.sh/chart"]);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&file, serde_saphyr::to_string(&object).unwrap()).unwrap();
        }
        let kept: Value = serde_saphyr::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(kept, object, "{}: run with UPDATE_EXPECT=1 and read the difference", file.display());
    }
    files.sort();
    let mut listed: Vec<_> =
        kustomization["resources"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect();
    listed.sort();
    assert_eq!(listed, files);
    let generated = &kustomization["configMapGenerator"][0];
    assert_eq!(generated["name"], "attache-config");
    for file in generated["files"].as_array().unwrap() {
        assert!(base.join(file.as_str().unwrap()).is_file(), "{file}");
    }
}

#[test]
fn the_overlays_documents_are_sound() {
    let (sound, report) = checked("overlays/example/documents.yaml");
    assert!(sound && report.contains(" 0 errors, 0 warnings"), "{report}");
}

/// The base is there to be overlaid: by itself it is wrong, and for that reason alone.
#[test]
fn the_bases_documents_only_lack_a_route() {
    let (sound, report) = checked("base/documents.yaml");
    assert!(!sound && report.contains("error: nothing was checked") && report.contains(" 1 error,"), "{report}");
}

/// Whether `attache check` accepts a file of `kustomize/`, and what it says.
fn checked(file: &str) -> (bool, String) {
    let documents = place("envoy-config/kustomize").join(file);
    let output = tools::attache().unwrap().arg("check").arg(documents).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

/// Where there is a kubectl, which has kustomize.
#[test]
fn the_example_overlay_builds() {
    let overlay = place("envoy-config/kustomize/overlays/example");
    let output = match Command::new("kubectl").arg("kustomize").arg(&overlay).output() {
        Ok(output) => output,
        Err(error) => {
            println!("not tried: kubectl: {error}");
            return;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let objects = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<Value> = objects.split("\n---\n").map(|text| serde_saphyr::from_str(text).unwrap()).collect();
    let of_kind = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    let environment = &of_kind("Deployment")["spec"]["template"]["spec"]["containers"][0]["env"];
    let names: Vec<_> = environment.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ATTACHE_REPLICAS", "ATTACHE_REDIS"]);
    assert!(of_kind("ConfigMap")["data"]["documents.yaml"].as_str().unwrap().contains("AIGatewayRoute"));
}

fn forget(value: &mut Value, names: &[&str]) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !names.contains(&name.as_str()));
            fields.values_mut().for_each(|value| forget(value, names));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| forget(value, names)),
        _ => {}
    }
}
