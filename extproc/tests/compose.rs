//! `docker-compose.yml`, as far as it can be proved without containers: its files are sound, its commands are commands of
//! ours, and what one service writes is what another expects.

#![cfg(test)]

use std::collections::BTreeSet;
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
fn every_model_server_of_the_configuration_is_a_service() {
    let servers: BTreeSet<_> = services()
        .into_iter()
        .filter(|(_, service)| service.pointer("/build/target") == Some(&Value::from("model-server")))
        .map(|(name, service)| format!("{name}:{}", port_of(&option(&service, "--listen"))))
        .collect();
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

#[test]
fn the_bootstrap_that_is_rendered_fits_the_other_services() {
    let (sidecar, envoy) = (service("attache"), service("envoy"));
    let directory = tempfile::tempdir().unwrap();
    let shared = directory.path();
    let image = shared.join("image");
    fs::create_dir(&image).unwrap();
    fs::write(image.join("attache_wasm_filter.wasm"), "a filter").unwrap();

    let [script] = strings(&service("render")["command"]).try_into().unwrap();
    // The same script, with the places of the container where they are here.
    let script = script
        .replace("/usr/local/share/attache", &image.to_string_lossy())
        .replace("/etc/attache", &configuration().to_string_lossy())
        .replace("> /shared", &format!("> {}", shared.display()))
        .replace(" /shared/\n", &format!(" {}/\n", shared.display()));
    let [shell, flags] = strings(&service("render")["entrypoint"]).try_into().unwrap();
    let binaries = Path::new(env!("CARGO_BIN_EXE_attache")).parent().unwrap().to_owned();
    let path = env::join_paths([binaries, "/usr/bin".into(), "/bin".into()]).unwrap();
    let output = Command::new(shell).arg(flags).arg(script).env("PATH", path).output().unwrap();
    assert_success(&output);

    assert_eq!(fs::read(shared.join("attache_wasm_filter.wasm")).unwrap(), b"a filter");
    let bootstrap = fs::read_to_string(shared.join("envoy.yaml")).unwrap();
    let bootstrap: Value = serde_saphyr::from_str(&bootstrap).unwrap();
    let resources = &bootstrap["static_resources"];
    let sidecar_address = resources.pointer("/clusters/0/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address");
    assert_eq!(socket(sidecar_address.unwrap()), format!("attache:{}", port_of(&option(&sidecar, "--extproc-listen"))));
    // What Envoy listens on is what Compose publishes.
    let published: Vec<_> = strings(&envoy["ports"]).iter().map(|port| port_of(port).to_owned()).collect();
    let listening = [&resources["listeners"][0]["address"], &bootstrap["admin"]["address"]].map(socket);
    assert_eq!(listening.map(|address| port_of(&address).to_owned()).as_slice(), published);
    // And what it reads is what was written.
    let command = strings(&envoy["command"]);
    assert!(command.iter().any(|argument| argument == "/shared/envoy.yaml"), "{command:?}");
    let filters = resources.pointer("/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0");
    let code = filters.unwrap().pointer("/typed_config/config/vm_config/code/local/filename");
    assert_eq!(code, Some(&Value::from("/shared/attache_wasm_filter.wasm")));
}

#[test]
fn the_health_check_tells_a_sidecar_that_is_ready() {
    let service = service("attache");
    let test = strings(&service["healthcheck"]["test"]);
    let [kind, program, arguments @ ..] = test.as_slice() else { panic!("a health check is a command") };
    assert_eq!(kind, "CMD");
    let admin = free_port().to_string();
    let check = || {
        let arguments =
            arguments.iter().map(|argument| argument.replace(port_of(&option(&service, "--admin-listen")), &admin));
        Command::new(program).args(arguments).output().unwrap()
    };
    assert!(!check().status.success(), "nobody is there yet");

    let command = strings(&service["command"]).into_iter().map(|argument| match &*argument {
        "/etc/attache" => configuration().to_string_lossy().into_owned(),
        "0.0.0.0:10001" => format!("127.0.0.1:{}", free_port()),
        "0.0.0.0:10002" => format!("127.0.0.1:{admin}"),
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
    let file = fs::read_to_string(root().join("envoy-config/prometheus/prometheus.yaml")).unwrap();
    let file: Value = serde_saphyr::from_str(&file).unwrap();
    let mut asked = BTreeSet::new();
    for job in file["scrape_configs"].as_array().unwrap() {
        for target in job["static_configs"].as_array().into_iter().flatten().flat_map(|it| strings(&it["targets"])) {
            asked.insert(target);
        }
        for names in job["dns_sd_configs"].as_array().into_iter().flatten() {
            asked.extend(strings(&names["names"]).iter().map(|name| format!("{name}:{}", names["port"])));
        }
    }
    let sidecar = format!("attache:{}", port_of(&option(&service("attache"), "--admin-listen")));
    let models = (1..=3).map(|index| {
        let name = format!("model-{index}");
        format!("{name}:{}", port_of(&option(&service(&name), "--listen")))
    });
    let envoy = strings(&service("envoy")["ports"]).iter().map(|port| format!("envoy:{}", port_of(port))).next_back();
    assert_eq!(asked, models.chain([sidecar]).chain(envoy).collect());
    for rules in strings(&file["rule_files"]) {
        assert!(root().join(rules.replace("/etc/prometheus", "envoy-config/prometheus")).is_file(), "{rules}");
    }
}

#[test]
fn grafana_finds_prometheus_and_the_dashboard() {
    let provisioning = root().join("envoy-config/grafana/provisioning");
    let read = |path: &str| -> Value {
        serde_saphyr::from_str(&fs::read_to_string(provisioning.join(path)).unwrap()).unwrap()
    };
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

fn services() -> Vec<(String, Value)> {
    let text = fs::read_to_string(root().join("docker-compose.yml")).unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
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
