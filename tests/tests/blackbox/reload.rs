//! What an operator changes acts on the next request, and a mistake takes nothing down.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use attache_model_server::{Config as ModelConfig, ModelServer};
use attache_tests::{
    Client, Directory, Envoy, EnvoyOptions, Sidecar, SidecarOptions, Signal, Stack, client::StreamEnd, port, template,
    tools, until,
};
use serde_json::{Value, json};

use crate::documents::{key, limits, open, pool, route};

fn chat(model: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20})
}

async fn status(client: &Client, model: &str) -> u16 {
    client.chat(&chat(model)).await.unwrap().status
}

#[tokio::test]
async fn a_new_route_is_served_and_a_removed_one_is_not() {
    let stack = Stack::builder(open()).models(1).without_wasm().start().await.unwrap();
    assert_eq!((status(&stack.client(), "m").await, status(&stack.client(), "n").await), (200, 404));
    stack.reconfigure(&(open() + &route("further", "n", "{name: pool, modelNameOverride: served}"))).await.unwrap();
    assert_eq!((status(&stack.client(), "m").await, status(&stack.client(), "n").await), (200, 200));
    assert_eq!(stack.models[0].requests().last().unwrap().model.as_deref(), Some("served"));
    stack.reconfigure(&(pool() + &route("further", "n", "{name: pool}"))).await.unwrap();
    assert_eq!((status(&stack.client(), "m").await, status(&stack.client(), "n").await), (404, 200));
}

#[tokio::test]
async fn a_changed_limit_acts_on_the_next_request_and_what_was_used_stays_used() {
    for redis in [false, true] {
        let documents = |limit: u64| {
            let limit = format!("{{name: n, per: [key], limit: {limit}, window: 300d, cost: requests}}");
            [pool(), route("r", "m", "{name: pool}"), key("a", "acme", "r"), limits("r", &limit)].concat()
        };
        let builder = Stack::builder(documents(2)).models(1).without_wasm();
        let stack = if redis { builder.redis() } else { builder }.start().await.unwrap();
        let client = stack.client().with_key("sk-a");
        let ask = async || status(&client, "m").await;
        assert_eq!((ask().await, ask().await, ask().await), (200, 200, 429));
        stack.reconfigure(&documents(3)).await.unwrap();
        assert_eq!((ask().await, ask().await), (200, 429));
        stack.reconfigure(&documents(1)).await.unwrap();
        assert_eq!(ask().await, 429);
        stack.reconfigure(&documents(100)).await.unwrap();
        let answer = client.chat(&chat("m")).await.unwrap();
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining-requests")), (200, Some("97")));
    }
}

#[tokio::test]
async fn a_key_that_is_withdrawn_stays_out_and_a_new_one_gets_in() {
    let documents = |keys: &str| pool() + &route("r", "m", "{name: pool}") + keys;
    let stack = Stack::builder(documents(&key("a", "acme", "r"))).models(1).without_wasm().start().await.unwrap();
    let of = |name: &str| stack.client().with_key(&format!("sk-{name}"));
    assert_eq!((status(&of("a"), "m").await, status(&of("b"), "m").await), (200, 401));
    stack.reconfigure(&documents(&key("b", "acme", "r"))).await.unwrap();
    assert_eq!((status(&of("a"), "m").await, status(&of("b"), "m").await), (401, 200));
}

#[tokio::test]
async fn an_object_that_broke_stays_as_it_was_and_the_others_change() {
    let stack = Stack::builder(open() + &route("other", "n", "{name: pool}")).models(1).without_wasm();
    let stack = stack.start().await.unwrap();
    // `open` points nowhere now; `other` has another model.
    let broken = pool() + &route("open", "m", "{name: nowhere}") + &route("other", "n2", "{name: pool}");
    stack.reconfigure(&broken).await.unwrap();
    let client = stack.client();
    assert_eq!((status(&client, "m").await, status(&client, "n").await, status(&client, "n2").await), (200, 404, 200));
    let metrics = stack.sidecar_metrics().await.unwrap();
    assert_eq!(metrics.sum("attache_config_last_reload_successful", &[]), 0.0);
    assert_eq!(metrics.sum("attache_config_objects_in_error", &[]), 1.0);
    assert!(stack.gateway.sidecar.log().contains("nowhere"), "{}", stack.gateway.sidecar.log());
    // Mended, it is in force.
    stack.reconfigure(&(pool() + &route("open", "m2", "{name: pool}"))).await.unwrap();
    assert_eq!((status(&client, "m").await, status(&client, "m2").await), (404, 200));
    assert_eq!(stack.sidecar_metrics().await.unwrap().sum("attache_config_last_reload_successful", &[]), 1.0);
}

#[tokio::test]
async fn a_file_that_is_no_yaml_changes_nothing() {
    let stack = Stack::builder(open()).models(1).without_wasm().start().await.unwrap();
    for text in ["{", "\t- [", "a: b: c\n---\n&x [*x, *y]", "\u{0}"] {
        stack.reconfigure(text).await.unwrap();
        assert_eq!(status(&stack.client(), "m").await, 200, "{text:?}");
        let metrics = stack.sidecar_metrics().await.unwrap();
        assert_eq!(metrics.sum("attache_config_last_reload_successful", &[]), 0.0, "{text:?}");
    }
    stack.reconfigure(&open()).await.unwrap();
    assert_eq!(stack.sidecar_metrics().await.unwrap().sum("attache_config_last_reload_successful", &[]), 1.0);
}

#[tokio::test]
async fn an_unknown_field_is_warned_of_with_its_line_and_the_object_is_served() {
    let stack = Stack::builder(open()).models(1).without_wasm().start().await.unwrap();
    let text =
        open().replace("spec:\n  rules:", "spec:\n  retires: 3\n  rules:").replace("value: \"m\"", "value: \"n\"");
    stack.reconfigure(&text).await.unwrap();
    assert_eq!(status(&stack.client(), "n").await, 200);
    let line = text.lines().position(|line| line.contains("retires")).unwrap() + 1;
    let log = stack.gateway.sidecar.log();
    let warning = log.lines().find(|line| line.contains("retires")).unwrap_or_else(|| panic!("{log}"));
    assert!(warning.contains("WARN") && warning.contains(&format!("attache.yaml:{line}:")), "{warning}");
    assert_eq!(stack.sidecar_metrics().await.unwrap().sum("attache_config_last_reload_successful", &[]), 1.0);
}

#[tokio::test]
async fn a_stream_under_way_keeps_the_configuration_that_it_began_with() {
    let stack = Stack::builder(open()).models(1).without_wasm().start().await.unwrap();
    let mut body = chat("m");
    body["max_tokens"] = json!(60);
    let mut stream = stack.client().with_header("x-sim-fault", "slow=20").stream_chat(&body).await.unwrap();
    stream.next().await.unwrap().unwrap();
    stack.reconfigure(&(pool() + &route("other", "n", "{name: pool}"))).await.unwrap();
    assert_eq!(status(&stack.client(), "m").await, 404);
    let rest = stream.rest().await;
    assert_eq!((rest.is_done(), rest.end.clone()), (true, StreamEnd::Complete));
    assert!(!rest.json().any(|event| event["usage"].is_object()));
}

/// A gateway whose configuration is at `config`, without the stack's file.
async fn gateway(config: &Path, directory: &Directory) -> (Sidecar, Envoy) {
    let options = SidecarOptions { config: vec![config.to_owned()], ..Default::default() };
    let sidecar = Sidecar::start("sidecar", options, directory.path()).await.unwrap();
    let options =
        EnvoyOptions { config: vec![config.to_owned()], extproc: sidecar.listen().to_owned(), ..Default::default() };
    let envoy = Envoy::start("envoy", &options, directory.path()).await.unwrap();
    (sidecar, envoy)
}

#[tokio::test]
async fn a_configmaps_swap_of_links_is_seen() {
    let directory = Directory::temporary().unwrap();
    let server = ModelServer::start(ModelConfig::default()).await.unwrap();
    let mount = directory.path().join("mount");
    // As the kubelet does it: the files are links into `..data`, which is a link to a directory that has the time for a name.
    let publish = |version: &str, documents: &str| {
        let data = mount.join(version);
        fs::create_dir_all(&data).unwrap();
        fs::write(data.join("attache.yaml"), template::fill(documents, &[server.addr()]).unwrap()).unwrap();
        symlink(version, mount.join("..data_tmp")).unwrap();
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    };
    publish("..2026_01", &open());
    symlink("..data/attache.yaml", mount.join("attache.yaml")).unwrap();
    // Mounted as a directory, and as the one file in it.
    for (index, config) in [mount.clone(), mount.join("attache.yaml")].into_iter().enumerate() {
        let here = Directory::temporary().unwrap();
        let (sidecar, envoy) = gateway(&config, &here).await;
        let client = envoy.client().unwrap();
        assert_eq!(status(&client, "m").await, 200);
        let model = format!("n{index}");
        publish(&format!("..2026_02_{index}"), &(open() + &route("further", &model, "{name: pool}")));
        until("the swap was seen", async || status(&client, &model).await == 200).await.unwrap();
        let metrics = sidecar.metrics().await.unwrap();
        assert_eq!(metrics.sum("attache_config_objects_in_error", &[]), 0.0, "{}", sidecar.log());
        publish(&format!("..2026_03_{index}"), &open());
        until("the swap was seen", async || status(&client, &model).await == 404).await.unwrap();
    }
}

#[tokio::test]
async fn a_hangup_has_the_configuration_read_where_no_change_can_be_seen() {
    let directory = Directory::temporary().unwrap();
    let server = ModelServer::start(ModelConfig::default()).await.unwrap();
    let (elsewhere, link) = (directory.path().join("elsewhere"), directory.path().join("config/attache.yaml"));
    let write = |documents: &str| fs::write(&elsewhere, template::fill(documents, &[server.addr()]).unwrap()).unwrap();
    fs::create_dir(link.parent().unwrap()).unwrap();
    symlink(&elsewhere, &link).unwrap();
    write(&open());
    let (mut sidecar, envoy) = gateway(&link, &directory).await;
    let client = envoy.client().unwrap();
    assert_eq!((status(&client, "m").await, status(&client, "n").await), (200, 404));
    // What a link points to changes without a sign in the directory of the link.
    write(&(open() + &route("further", "n", "{name: pool}")));
    sidecar.signal(Signal::Hangup).unwrap();
    until("it was read again", async || status(&client, "n").await == 200).await.unwrap();
}

#[tokio::test]
async fn only_the_directory_of_a_file_is_watched_and_not_all_that_is_below_it() {
    let directory = Directory::temporary().unwrap();
    for number in 0..50 {
        fs::create_dir_all(directory.path().join(format!("project/src/{number}"))).unwrap();
    }
    let file = directory.path().join("project/attache.yaml");
    fs::write(&file, template::fill(&open(), &["127.0.0.1:1".parse().unwrap()]).unwrap()).unwrap();
    let options = SidecarOptions { config: vec![file], ..Default::default() };
    let sidecar = Sidecar::start("sidecar", options, directory.path()).await.unwrap();
    let watches = || -> usize {
        let descriptors = fs::read_dir(format!("/proc/{}/fdinfo", sidecar.id())).unwrap();
        let pages = descriptors.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok());
        pages.map(|page| page.lines().filter(|line| line.starts_with("inotify wd:")).count()).sum()
    };
    until("it watched", async || watches() > 0).await.unwrap();
    assert_eq!(watches(), 1);
}

#[tokio::test]
async fn the_admin_pages_say_how_it_is() {
    let stack = Stack::builder(open()).models(1).without_wasm().start().await.unwrap();
    let sidecar = &stack.gateway.sidecar;
    for page in ["/healthz", "/readyz", "/config"] {
        sidecar.page(page).await.unwrap();
    }
    assert!(sidecar.page("/config").await.unwrap().contains("default/open"));
    assert!(sidecar.page("/nothing").await.is_err());
    let metrics = stack.sidecar_metrics().await.unwrap();
    assert_eq!(metrics.sum("attache_config_generation", &[]), 1.0);
}

#[tokio::test]
async fn a_sidecar_that_could_read_no_route_is_not_ready_until_it_can() {
    let unreadable = [
        ("nothing", String::new()),
        ("no YAML", "kind: [".to_owned()),
        ("an error in the only route", without_servers().replace("value: \"m\"", "value: [m]")),
        (
            "no route at all",
            without_servers().split("---\n").filter(|text| !text.contains("kind: AIGatewayRoute")).collect(),
        ),
    ];
    for (name, text) in unreadable {
        let directory = Directory::temporary().unwrap();
        let config = directory.path().join("attache.yaml");
        fs::write(&config, text).unwrap();
        let admin = port::free().unwrap();
        let _sidecar = tokio::process::Command::from(tools::attache().unwrap())
            .args(["run", "--config", config.to_str().unwrap(), "--extproc-listen"])
            .arg(format!("unix:{}", directory.path().join("attache.sock").display()))
            .args(["--admin-listen", &admin.to_string()])
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let http = Client::new(format!("http://{admin}")).unwrap();
        let page = async || http.get("/readyz").await.map(|page| (page.status, page.text())).ok();
        let health = || {
            let output = tools::attache().unwrap().args(["health", "--admin", &admin.to_string()]).output().unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        let without_route = async || page().await.is_some_and(|(_, text)| text.contains("no route could be read"));
        until("it says what is missing", without_route).await.unwrap();
        assert_eq!(page().await.unwrap().0, 503, "{name}");
        let (is_healthy, said) = health();
        assert!(!is_healthy && said.starts_with("not ready: no route could be read"), "{name}: {said}");
        // It lives: nobody is to restart it for what is in a file.
        assert_eq!(http.get("/healthz").await.unwrap().status, 200, "{name}");

        fs::write(&config, without_servers()).unwrap();
        until("it is ready", async || page().await.is_some_and(|(status, _)| status == 200)).await.unwrap();
        assert!(health().0, "{name}");
        // From now on it serves what it last could read.
        fs::write(&config, "kind: [").unwrap();
        let reloads =
            async || http.get("/metrics").await.is_ok_and(|page| page.text().contains("last_reload_successful 0"));
        until("the error is read", reloads).await.unwrap();
        assert_eq!(page().await.unwrap().0, 200, "{name}");
    }
}

#[tokio::test]
async fn keys_that_vanish_leave_the_gate_shut() {
    let directory = Directory::temporary().unwrap();
    let keys = directory.path().join("keys.yaml");
    fs::write(directory.path().join("routes.yaml"), without_servers()).unwrap();
    fs::write(&keys, key("a", "acme", "'*'")).unwrap();
    let options = SidecarOptions { config: vec![directory.path().to_owned()], ..SidecarOptions::default() };
    let mut sidecar = Sidecar::start("sidecar", options, directory.path()).await.unwrap();
    assert_eq!(sidecar.metrics().await.unwrap().sum("attache_config_last_reload_successful", &[]), 1.0);
    for vanish in [|path: &Path| fs::write(path, "").unwrap(), |path: &Path| fs::remove_file(path).unwrap()] {
        let before = generation(&sidecar).await;
        vanish(&keys);
        sidecar.signal(Signal::Hangup).unwrap();
        until("it was read again", async || generation(&sidecar).await > before).await.unwrap();
        let metrics = sidecar.metrics().await.unwrap();
        assert_eq!(metrics.sum("attache_config_last_reload_successful", &[]), 0.0);
    }
    assert!(sidecar.log().contains("nobody can call"), "{}", sidecar.log());
}

/// Sound documents for a sidecar that nobody asks.
fn without_servers() -> String {
    open().replace("${MODELS}", "[{ip: {address: 127.0.0.1, port: 1}}]")
}

async fn generation(sidecar: &Sidecar) -> f64 {
    sidecar.metrics().await.unwrap().sum("attache_config_generation", &[])
}

#[tokio::test]
async fn a_log_that_cannot_be_written_stops_neither_reloading_nor_draining() {
    let directory = Directory::temporary().unwrap();
    let config = directory.path().join("attache.yaml");
    fs::write(&config, without_servers()).unwrap();
    let admin = port::free().unwrap();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut sidecar = tools::attache()
        .unwrap()
        .args(["run", "--config", config.to_str().unwrap(), "--extproc-listen"])
        .arg(format!("unix:{}", directory.path().join("attache.sock").display()))
        .args(["--admin-listen", &admin.to_string()])
        .stderr(full)
        .spawn()
        .unwrap();
    let http = Client::new(format!("http://{admin}")).unwrap();
    let at_generation = async |number: u64| {
        let page = http.get("/config").await;
        page.is_ok_and(|page| page.json().is_ok_and(|config| config["generation"] == number))
    };
    for number in 1..=3 {
        until("the configuration is in force", async || at_generation(number).await).await.unwrap();
        fs::write(&config, without_servers() + &format!("# change {number}\n")).unwrap();
    }
    Command::new("kill").args(["-TERM", &sidecar.id().to_string()]).status().unwrap();
    assert!(sidecar.wait().unwrap().success());
}

#[tokio::test]
async fn a_directory_that_vanishes_and_returns_is_read_and_watched_again() {
    let directory = Directory::temporary().unwrap();
    let config = directory.path().join("config");
    fs::create_dir(&config).unwrap();
    fs::write(config.join("attache.yaml"), without_servers()).unwrap();
    let options = SidecarOptions { config: vec![config.clone()], ..SidecarOptions::default() };
    let sidecar = Sidecar::start("sidecar", options, directory.path()).await.unwrap();
    let routes = async || sidecar.page("/config").await.unwrap();

    fs::remove_dir_all(&config).unwrap();
    until("it is missed", async || sidecar.log().contains("cannot read")).await.unwrap();
    assert!(routes().await.contains("default/open"), "what was there stays in force");

    fs::create_dir(&config).unwrap();
    fs::write(config.join("attache.yaml"), without_servers().replace("name: open", "name: again")).unwrap();
    until("it is read again", async || routes().await.contains("default/again")).await.unwrap();
    fs::write(config.join("attache.yaml"), without_servers().replace("name: open", "name: later")).unwrap();
    until("it is watched again", async || routes().await.contains("default/later")).await.unwrap();
}

#[tokio::test]
async fn a_directory_that_is_replaced_at_once_is_read_and_watched() {
    let directory = Directory::temporary().unwrap();
    let config = directory.path().join("config");
    let text = |name: &str| without_servers().replace("name: open", &format!("name: {name}"));
    fs::create_dir(&config).unwrap();
    fs::write(config.join("attache.yaml"), text("first")).unwrap();
    let options = SidecarOptions { config: vec![config.clone()], ..SidecarOptions::default() };
    let sidecar = Sidecar::start("sidecar", options, directory.path()).await.unwrap();
    for name in ["second", "third"] {
        // The file system likes to give the new one the number of the old one.
        fs::remove_dir_all(&config).unwrap();
        fs::create_dir(&config).unwrap();
        for name in [name.to_owned(), format!("{name}-later")] {
            fs::write(config.join("attache.yaml"), text(&name)).unwrap();
            let is_in_force = async || sidecar.page("/config").await.unwrap().contains(&format!("default/{name}\""));
            until("it is read", is_in_force).await.unwrap();
        }
    }
}
