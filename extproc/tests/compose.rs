//! `docker-compose.yml`, as far as it can be proved without containers: its files are sound, its commands are commands of
//! ours, and what one service writes is what another expects.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

#[test]
fn its_configuration_is_without_errors_and_warnings() {
    let output = attache().arg("check").arg(configuration()).output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    assert!(report.contains(" 0 errors, 0 warnings"), "{report}");
}

#[test]
fn the_users_own_server_takes_the_place_of_the_simulated_ones() {
    let example = root().join("envoy-config/own-server");
    let output = attache().arg("check").arg(example.join("documents")).output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && report.contains(" 0 errors, 0 warnings"), "{report}");
    let file = read(&example.join("compose.yaml"));
    let overridden = |name: &str| file["services"].get(name).unwrap_or_else(|| panic!("no {name}"));
    for name in ["render", "attache"] {
        assert_eq!(strings(&overridden(name)["volumes"]), ["./envoy-config/own-server/documents:/etc/attache:ro"]);
    }
    for name in ["attache", "envoy"] {
        assert_eq!(strings(&overridden(name)["extra_hosts"]), ["host.docker.internal:host-gateway"], "{name}");
    }
    for name in model_servers() {
        assert_eq!(strings(&overridden(&name)["profiles"]), ["simulated"], "{name}");
    }
    // Nobody needs those that do not start; Envoy is stopped before those that do.
    for (name, service) in services() {
        let needed = service["depends_on"].as_object().into_iter().flatten();
        for (server, how) in needed.filter(|(needed, _)| model_servers().contains(*needed)) {
            assert_eq!(how["required"], false, "{name} needs {server}");
        }
    }
    for server in model_servers() {
        assert!(service("envoy")["depends_on"].get(&server).is_some(), "{server} may be stopped before Envoy");
    }
}

#[test]
fn every_model_server_of_the_configuration_is_a_service() {
    let servers: BTreeSet<_> =
        model_servers().iter().map(|name| format!("{name}:{}", port_of(&option(&service(name), "--listen")))).collect();
    let config = attache::config::compile(
        attache::config::load(&[configuration()]),
        attache::config::model::Settings::default(),
        1,
        None,
    );
    let backends = config.unwrap().config.backends;
    let named: BTreeSet<_> =
        backends.iter().flat_map(|backend| &backend.endpoints).map(|endpoint| endpoint.id.to_string()).collect();
    assert_eq!(named, servers);
}

#[test]
fn the_sidecar_is_started_with_options_that_it_has() {
    // Everything before `--help` is read and judged, and then nothing is run.
    let output = attache().args(strings(&service("attache")["command"])).arg("--help").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What `render` of docker-compose.yml does to `shared`, with the configuration in this directory.
fn render(shared: &Path, configuration: &Path) -> Output {
    let image = shared.join("image");
    fs::create_dir_all(&image).unwrap();
    fs::write(image.join("attache_wasm_filter.wasm"), "a filter").unwrap();
    // The same command, with the places of the container where they are here.
    let places = [("/usr/local/share/attache", image.as_path()), ("/etc/attache", configuration), ("/shared", shared)];
    let here = |argument: String| {
        let place = places.iter().find_map(|(there, here)| Some((argument.strip_prefix(there)?, here)));
        place.map_or(argument.clone(), |(rest, here)| format!("{}{rest}", here.display()))
    };
    attache().args(strings(&service("render")["command"]).into_iter().map(here)).output().unwrap()
}

#[test]
fn the_bootstrap_that_is_rendered_fits_the_other_services() {
    let (sidecar, envoy) = (service("attache"), service("envoy"));
    let directory = tempfile::tempdir().unwrap();
    let shared = directory.path();
    assert_success(&render(shared, &configuration()));

    assert_eq!(fs::read(shared.join("attache_wasm_filter.wasm")).unwrap(), b"a filter");
    let bootstrap = read(&shared.join("envoy.yaml"));
    let resources = &bootstrap["static_resources"];
    let sidecar_address = resources.pointer("/clusters/0/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address");
    assert_eq!(socket(sidecar_address.unwrap()), format!("attache:{}", port_of(&option(&sidecar, "--extproc-listen"))));
    // What Envoy listens on is what Compose publishes, and its admin interface is neither published nor reached from elsewhere.
    let published: Vec<_> = strings(&envoy["ports"]).iter().map(|port| port_of(port).to_owned()).collect();
    assert_eq!([port_of(&socket(&resources["listeners"][0]["address"]))].as_slice(), published);
    let admin = socket(&bootstrap["admin"]["address"]);
    assert!(admin.starts_with("127.0.0.1:"), "{admin}");
    let script = fs::read_to_string(root().join("envoy-config/envoy/envoy.sh")).unwrap();
    assert!(script.contains(&admin.replace(':', "/")), "the script asks the admin interface where it is");
    let doctor = service("doctor");
    assert_eq!(option(&doctor, "--admin"), format!("http://{admin}"));
    assert_eq!(doctor["network_mode"], "service:envoy");
    // And what it reads is what was written.
    let command = strings(&envoy["command"]);
    assert!(command.iter().any(|argument| argument == "/shared/envoy.yaml"), "{command:?}");
    let filters = resources.pointer("/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0");
    let code = filters.unwrap().pointer("/typed_config/config/vm_config/code/local/filename");
    assert_eq!(code.unwrap(), &shared.join("attache_wasm_filter.wasm").to_string_lossy().into_owned());
}

#[test]
fn a_mistake_in_the_configuration_leaves_what_was_rendered_before() {
    let directory = tempfile::tempdir().unwrap();
    let (shared, documents) = (directory.path().join("shared"), directory.path().join("documents"));
    fs::create_dir(&shared).unwrap();
    fs::create_dir(&documents).unwrap();
    let document = documents.join("attache.yaml");
    let right = fs::read_to_string(configuration().join("attache.yaml")).unwrap();
    fs::write(&document, &right).unwrap();
    assert_success(&render(&shared, &documents));
    let before = fs::read(shared.join("envoy.yaml")).unwrap();
    for wrong in [right.replacen("port: 8000", "port: 80000", 1), "kind: [".to_owned(), format!("{right}\n---\n: [")] {
        fs::write(&document, &wrong).unwrap();
        let output = render(&shared, &documents);
        assert!(!output.status.success(), "{wrong}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("nothing was rendered"), "{output:?}");
        assert_eq!(fs::read(shared.join("envoy.yaml")).unwrap(), before);
    }
    let names: BTreeSet<_> = fs::read_dir(&shared).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["attache_wasm_filter.wasm", "envoy.yaml", "image"].map(Into::into).into());
}

#[test]
fn each_image_of_ours_is_built_once_and_tagged_with_the_version() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert!(dockerfile.contains(&format!("ARG VERSION={version}\n")), "the label says the version");
    let mut built = BTreeMap::new();
    for (name, service) in services() {
        let Some(image) = service["image"].as_str() else { panic!("{name} has no image") };
        if let Some(target) = service.pointer("/build/target").and_then(Value::as_str) {
            assert_eq!(built.insert(image.to_owned(), target.to_owned()), None, "{name}: {image} is built twice");
        }
    }
    let expected = [("attache", "attache"), ("attache-model-server", "model-server")];
    assert_eq!(built, expected.map(|(name, target)| (format!("{name}:{version}"), target.to_owned())).into());
    // What is not built here is pulled, by a tag that does not move on.
    for (name, service) in services() {
        let image = service["image"].as_str().unwrap();
        let tag = image.rsplit_once(':').map(|(_, tag)| tag).unwrap_or_default();
        assert!(built.contains_key(image) || tag.contains('.'), "{name}: {image}");
    }
}

#[test]
fn no_build_keeps_what_it_compiled_by_a_path_that_other_checkouts_have() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let mounts: BTreeSet<_> = dockerfile.split_whitespace().filter(|word| word.starts_with("--mount=")).collect();
    assert_eq!(mounts, ["--mount=type=cache,id=attache-crates,target=/usr/local/cargo/registry"].into());
    let commands = |stage: &'_ str, command: &str| -> BTreeSet<String> {
        let lines = stage.lines().filter_map(|line| line.split_once(command)).map(|(_, options)| options);
        lines.map(|options| options.trim_end_matches(['\\', ' ']).to_owned()).collect()
    };
    let (before, after) = dockerfile.split_once(" AS build-attache\n").unwrap();
    let built = commands(stage(before, "dependencies"), "cargo build ");
    // With other features, the dependencies would be compiled once more.
    assert_eq!(built, commands(after, "cargo build "), "they are compiled as they are needed");
    let forgotten = commands(stage(before, "dependencies"), "cargo clean ");
    for options in &built {
        let target = options.split_once("--target ").map(|(_, target)| target);
        let package = options.split_once("-p ").and_then(|(_, rest)| rest.split(' ').next()).unwrap();
        let is_forgotten = forgotten.iter().any(|options| {
            options.split(' ').any(|word| word == package) && target == options.split_once("--target ").map(|it| it.1)
        });
        assert!(is_forgotten, "what was compiled of {package}'s empty sources would be taken for its own");
    }
    assert_eq!(built.len(), 3);
}

#[test]
fn the_context_of_the_build_is_what_is_compiled() {
    let ignored = fs::read_to_string(root().join(".dockerignore")).unwrap();
    let lines: Vec<_> = ignored.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(lines[0], "*", "what is not named is not sent");
    let named: BTreeSet<_> = lines.iter().filter_map(|line| line.strip_prefix('!')).collect();
    for path in &named {
        assert!(root().join(path).exists(), "{path}");
    }
    // Cargo reads the manifest of every member, whatever it compiles.
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = workspace.split_once("members = [").unwrap().1.split(']').next().unwrap();
    for member in members.split(',').map(|member| member.trim().trim_matches('"')) {
        assert!(named.contains(&*format!("{member}/Cargo.toml")), "{member}");
    }
    for path in named {
        assert!(!path.contains("docs") && !path.ends_with(".md") && !path.ends_with(".yaml"), "{path}");
    }
}

#[test]
fn every_service_that_stays_has_no_privilege_and_comes_back() {
    for (name, service) in services() {
        let is_passing = service.get("profiles").is_some() || service["restart"] == "no";
        assert!(is_passing || service["restart"] == "unless-stopped", "{name} does not come back after a crash");
        // Grafana's image is its own business; it is reached from this machine alone.
        if name == "grafana" || service.get("profiles").is_some() {
            continue;
        }
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(strings(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
        // Ours say it in the image; Redis' image begins as root, and gives that up.
        let user = service["user"].as_str();
        let is_number = |id: &str| id.parse::<u32>().is_ok_and(|id| id != 0);
        let is_nobodys_root = user.is_some_and(|user| user.split(':').count() == 2 && user.split(':').all(is_number));
        let is_ours = service["image"].as_str().is_some_and(|image| image.starts_with("attache"));
        assert!(is_ours || is_nobodys_root || name == "redis", "{name}: {user:?}");
        let added = service.get("cap_add").map(strings).unwrap_or_default();
        assert!(added.is_empty() || name == "redis" && added == ["CHOWN", "SETGID", "SETUID"], "{name}: {added:?}");
    }
    // The same numbers and the same tag wherever the image runs.
    for file in ["helm/attache/templates/deployment.yaml", "kustomize/base/deployment.yaml"] {
        let text = fs::read_to_string(root().join("envoy-config").join(file)).unwrap();
        assert!(text.contains("runAsUser: 10001\n") && text.contains("runAsGroup: 10001\n"), "{file}");
    }
    let kustomize = read(&root().join("envoy-config/kustomize/base/deployment.yaml"));
    let image = kustomize.pointer("/spec/template/spec/containers/0/image");
    assert_eq!(image, Some(&service("attache")["image"]));
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    for image in ["attache", "model-server"] {
        let users = [stage(&dockerfile, "base"), stage(&dockerfile, image)].concat();
        let last = users.lines().rfind(|line| line.starts_with("USER "));
        assert_eq!(last, Some("USER 10001:10001"), "{image}");
    }
}

#[test]
fn model_servers_share_no_network_with_redis() {
    let redis = strings(&service("redis")["networks"]);
    for name in model_servers() {
        let networks = strings(&service(&name)["networks"]);
        assert!(networks.iter().all(|network| !redis.contains(network)), "{name} reaches Redis by one of {networks:?}");
    }
    for (name, service) in services() {
        let is_apart = service.get("networks").is_some() || service.get("network_mode").is_some();
        assert!(is_apart, "{name} is in the network that all share");
    }
}

#[test]
fn its_ports_are_this_machines_alone_and_not_those_of_make_demo() {
    let demo = fs::read_to_string(root().join("tests/src/bin/attache-demo/place.rs")).unwrap();
    let mut taken: BTreeSet<u16> =
        demo.split("local(").skip(1).filter_map(|rest| rest.split(')').next()?.parse().ok()).collect();
    assert!(taken.contains(&10000) && taken.len() > 4, "{taken:?}");
    for (name, service) in services() {
        for port in service.get("ports").map(strings).unwrap_or_default() {
            let published = port.strip_prefix("127.0.0.1:").unwrap_or_else(|| panic!("{name}: {port}"));
            // `${NAME:-PORT}:PORT`, or any free one.
            let Some((_, default)) = published.split_once(":-") else { continue };
            let default = default.split('}').next().unwrap().parse().unwrap();
            assert!(taken.insert(default), "{name}: {default} is taken");
            if name == "envoy" {
                for document in ["README.md", "docs/containers.md", "docker-compose.yml"] {
                    let text = fs::read_to_string(root().join(document)).unwrap();
                    assert!(text.contains(&format!("http://127.0.0.1:{default}/v1/chat/completions")), "{document}");
                }
            }
        }
    }
}

#[test]
fn envoy_is_stopped_before_the_sidecars_and_has_the_time_to_drain() {
    let (envoy, sidecar) = (service("envoy"), service("attache"));
    let seconds = |value: &Value| value.as_str().unwrap().trim_end_matches('s').parse::<u32>().unwrap();
    let drain = seconds(&envoy["environment"]["DRAIN_SECONDS"]);
    assert!(seconds(&envoy["stop_grace_period"]) > drain);
    let delay = seconds(&Value::from(option(&sidecar, "--drain-delay")));
    assert!(seconds(&sidecar["stop_grace_period"]) > delay + 30, "--drain-timeout is 30 s");
    // Compose stops in the order in which nothing loses what it needs.
    assert_eq!(envoy.pointer("/depends_on/attache/condition"), Some(&Value::from("service_healthy")));
    assert_eq!(sidecar.pointer("/depends_on/redis/condition"), Some(&Value::from("service_healthy")));
}

#[test]
fn what_waits_for_a_service_waits_for_its_health() {
    for (name, service) in services() {
        for (needed, condition) in service["depends_on"].as_object().into_iter().flatten() {
            let needed = self::service(needed);
            let has_check = needed.pointer("/healthcheck/test").is_some();
            assert_eq!(condition["condition"] == "service_healthy", has_check, "{name}");
        }
    }
    // `up --wait` returns when Envoy takes requests.
    let test = strings(&service("envoy")["healthcheck"]["test"]);
    let [kind, script, argument] = test.as_slice() else { panic!("{test:?}") };
    assert_eq!((kind.as_str(), argument.as_str()), ("CMD", "ready"));
    let entrypoint = strings(&service("envoy")["entrypoint"]);
    assert_eq!(&entrypoint, std::slice::from_ref(script));
    let mounted =
        strings(&service("envoy")["volumes"]).iter().any(|volume| volume.starts_with("./envoy-config/envoy:"));
    assert!(mounted && root().join("envoy-config/envoy/envoy.sh").is_file());
}

/// The instructions of one stage.
fn stage<'d>(dockerfile: &'d str, name: &str) -> &'d str {
    let (_, rest) = dockerfile.split_once(&format!(" AS {name}\n")).unwrap();
    rest.split("\nFROM ").next().unwrap()
}

#[test]
fn the_health_check_tells_a_sidecar_that_is_ready() {
    let service = service("attache");
    let test = strings(&service["healthcheck"]["test"]);
    assert_eq!(test, ["CMD", "attache", "health"]);
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    assert!(dockerfile.contains(r#"CMD ["attache", "health"]"#), "the image says the same");
    // Where it asks unless it is told is where the service listens.
    assert_eq!(option(&service, "--admin-listen"), "0.0.0.0:10002");
    let help = attache().args(["health", "--help"]).output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("default: 127.0.0.1:10002"));
    let (admin, metrics) = (free_port().to_string(), free_port().to_string());
    let check = || attache().args(["health", "--admin", &format!("127.0.0.1:{admin}")]).output().unwrap();
    assert!(!check().status.success(), "nobody is there yet");

    let command = strings(&service["command"]).into_iter().map(|argument| match &*argument {
        "/etc/attache" => configuration().to_string_lossy().into_owned(),
        "0.0.0.0:10001" => format!("127.0.0.1:{}", free_port()),
        "0.0.0.0:10002" => format!("127.0.0.1:{admin}"),
        "0.0.0.0:10003" => format!("127.0.0.1:{metrics}"),
        _ => argument,
    });
    // Its Redis is not here, which is no reason not to start.
    let _sidecar = Running(attache().args(command).stderr(Stdio::null()).spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(20);
    while !check().status.success() {
        assert!(Instant::now() < deadline, "{}", String::from_utf8_lossy(&check().stderr));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn everything_that_is_mounted_from_here_is_here() {
    for (name, service) in services() {
        let volumes = service["volumes"].as_array().cloned().unwrap_or_default();
        for volume in volumes.iter().filter_map(|volume| volume.as_str()?.strip_prefix("./")) {
            let path = root().join(volume.split(':').next().unwrap());
            assert!(path.exists(), "{name}: {}", path.display());
        }
    }
}

#[test]
fn prometheus_asks_services_that_there_are_at_ports_that_they_have() {
    let file = read(&root().join("envoy-config/prometheus/prometheus.yaml"));
    let mut asked = BTreeSet::new();
    for job in file["scrape_configs"].as_array().unwrap() {
        for target in job["static_configs"].as_array().into_iter().flatten().flat_map(|it| strings(&it["targets"])) {
            asked.insert(target);
        }
        for names in job["dns_sd_configs"].as_array().into_iter().flatten() {
            asked.extend(strings(&names["names"]).iter().map(|name| format!("{name}:{}", names["port"])));
        }
    }
    let sidecar = format!("attache:{}", port_of(&option(&service("attache"), "--metrics-listen")));
    let models = model_servers();
    let models = models.iter().map(|name| format!("{name}:{}", port_of(&option(&service(name), "--listen"))));
    // Counters alone, of neither the admin pages.
    let envoy = format!("envoy:{}", port_of(&option(&service("render"), "--stats")));
    assert_eq!(asked, models.chain([sidecar, envoy]).collect());
    for rules in strings(&file["rule_files"]) {
        assert!(root().join(rules.replace("/etc/prometheus", "envoy-config/prometheus")).is_file(), "{rules}");
    }
}

#[test]
fn grafana_finds_prometheus_and_the_dashboard() {
    let provisioning = root().join("envoy-config/grafana/provisioning");
    let read = |path: &str| read(&provisioning.join(path));
    let url = read("datasources/prometheus.yaml")["datasources"][0]["url"].as_str().unwrap().to_owned();
    assert_eq!(url, format!("http://prometheus:{}", port_of(&strings(&service("prometheus")["ports"])[0])));
    let grafana = service("grafana");
    let directory = &read("dashboards/attache.yaml")["providers"][0]["options"]["path"];
    let mounted = strings(&grafana["volumes"]);
    let mount = format!("./envoy-config/grafana/dashboards:{}:ro", directory.as_str().unwrap());
    assert!(mounted.contains(&mount), "{mounted:?}");
    let home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].as_str().unwrap();
    let dashboard = home.strip_prefix(directory.as_str().unwrap()).unwrap();
    assert!(root().join("envoy-config/grafana/dashboards").join(dashboard.trim_start_matches('/')).is_file(), "{home}");
}

/// Killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program, without what a developer has in the environment.
fn attache() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_attache"));
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ATTACHE_")) {
        command.env_remove(name);
    }
    command
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// What is mounted at `/etc/attache`.
fn configuration() -> PathBuf {
    let mounted: BTreeSet<_> = ["attache", "render"]
        .into_iter()
        .flat_map(|name| strings(&service(name)["volumes"]))
        .filter_map(|volume| volume.strip_suffix(":/etc/attache:ro").map(|path| root().join(path)))
        .collect();
    assert_eq!(mounted.len(), 1, "the sidecar and Envoy are configured from one directory");
    mounted.into_iter().next().unwrap()
}

/// The services that stand for GPUs.
fn model_servers() -> BTreeSet<String> {
    let is_one =
        |service: &Value| service["image"].as_str().is_some_and(|image| image.starts_with("attache-model-server:"));
    services().into_iter().filter(|(_, service)| is_one(service)).map(|(name, _)| name).collect()
}

fn read(path: &Path) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn services() -> Vec<(String, Value)> {
    let file = read(&root().join("docker-compose.yml"));
    file["services"].as_object().unwrap().iter().map(|(name, service)| (name.clone(), service.clone())).collect()
}

fn service(wanted: &str) -> Value {
    services().into_iter().find(|(name, _)| name == wanted).unwrap().1
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// The value of an option in a service's command.
fn option(service: &Value, name: &str) -> String {
    let command = strings(&service["command"]);
    let at = command.iter().position(|argument| argument == name).unwrap();
    command[at + 1].clone()
}

fn port_of(address: &str) -> &str {
    address.rsplit_once(':').unwrap().1
}

fn socket(address: &Value) -> String {
    let address = &address["socket_address"];
    format!("{}:{}", address["address"].as_str().unwrap(), address["port_value"])
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
