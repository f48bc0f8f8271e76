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
use std::path::{Path, PathBuf};
use std::{env, fs};

use attache::config::model::Settings;
use attache::config::{self, Config, Outcome};
use attache::render::{self, ExtprocAddress, StaticOptions};

/// The examples that are rendered with the Wasm filter. The others show how a bootstrap looks without it.
const WITH_WASM: [&str; 2] = ["combined", "keys-and-tenants"];

const HOW_TO_UPDATE: &str =
    "if that is as it should be: UPDATE_EXPECT=1 cargo test -p attache --test examples, and look at what git shows";

#[test]
fn every_example_is_without_errors_and_warnings() {
    for name in names() {
        compile(&name);
    }
}

#[test]
fn every_example_renders_to_the_file_beside_it() {
    let update = env::var_os("UPDATE_EXPECT").is_some_and(|value| !value.is_empty());
    for name in names() {
        let rendered = render::bootstrap(&compile(&name), &options(&name)).unwrap();
        let path = path(&format!("{name}{RENDERED}"));
        if update {
            fs::write(&path, rendered).unwrap();
            continue;
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        if let Some((line, expected, rendered)) = first_difference(&expected, &rendered) {
            panic!(
                "{name}.yaml renders to something else than {name}{RENDERED} from line {line} on:\n  \
                 file:     {expected}\n  rendered: {rendered}\n{HOW_TO_UPDATE}"
            );
        }
    }
}

#[test]
fn no_rendering_is_left_without_its_example() {
    let names = names();
    let orphans: Vec<_> = files()
        .into_iter()
        .filter(|file| file.strip_suffix(RENDERED).is_some_and(|name| !names.contains(name)))
        .collect();
    assert!(orphans.is_empty(), "no example renders to {orphans:?}; remove them");
}

/// What a rendering's file name ends in.
const RENDERED: &str = ".envoy.yaml";

/// Every example, without its ending.
fn names() -> BTreeSet<String> {
    let names: BTreeSet<_> = files()
        .iter()
        .filter(|file| !file.ends_with(RENDERED))
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

fn compile(name: &str) -> Config {
    let file = path(&format!("{name}.yaml"));
    let Outcome { config, diagnostics, .. } =
        config::compile(config::load(&[file]), Settings::default(), 1, None).unwrap();
    let found: Vec<_> = diagnostics.iter().map(|diagnostic| diagnostic.plain().to_string()).collect();
    assert!(found.is_empty(), "{name}.yaml has\n{}", found.join("\n"));
    config
}

/// As `attache render static --listen 0.0.0.0:10000 --extproc unix:/run/attache/extproc.sock --admin 127.0.0.1:9901
/// [--wasm /etc/attache/attache_wasm_filter.wasm]` has them.
fn options(name: &str) -> StaticOptions {
    StaticOptions {
        listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 10000)),
        extproc: ExtprocAddress::Unix(PathBuf::from("/run/attache/extproc.sock")),
        wasm: WITH_WASM.contains(&name).then(|| PathBuf::from("/etc/attache/attache_wasm_filter.wasm")),
        admin: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9901))),
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
