//! Envoy accepts what every configuration of this repository renders to, with and without the Wasm filter.

#![cfg(test)]

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use attache_tests::tools;

#[test]
fn envoy_accepts_every_configuration_with_and_without_the_filter() {
    let directory = tempfile::tempdir_in(tools::target_directory()).unwrap();
    let bootstrap = directory.path().join("envoy.yaml");
    for configuration in configurations() {
        for filter in [None, Some(tools::wasm_filter().unwrap())] {
            let mut render = tools::attache().unwrap();
            render.args(["render", "static"]).arg(&configuration);
            // A name is not resolved, a socket not opened, until Envoy runs in earnest.
            render.args(["--extproc", "attache:10001", "--admin", "127.0.0.1:9901"]);
            if let Some(file) = &filter {
                render.arg("--wasm").arg(file);
            }
            let rendered = render.output().unwrap();
            assert_success(&rendered, &configuration);
            fs::write(&bootstrap, rendered.stdout).unwrap();
            let mut envoy = Command::new(tools::envoy().unwrap());
            let validated = envoy.args(["--mode", "validate", "-c"]).arg(&bootstrap).output().unwrap();
            assert_success(&validated, &configuration);
        }
    }
}

fn configurations() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config");
    let examples = fs::read_dir(root.join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let is_rendered = |path: &PathBuf| {
        let ending = path.file_stem().map(Path::new).and_then(Path::extension);
        ["envoy", "gateway"].map(OsStr::new).map(Some).contains(&ending)
    };
    let mut configurations: Vec<_> = examples.filter(|path| !is_rendered(path)).collect();
    assert!(configurations.len() >= 5, "{configurations:?}");
    configurations.extend(["demo", "compose"].map(|name| root.join(name)));
    configurations
}

fn assert_success(output: &Output, configuration: &Path) {
    assert!(output.status.success(), "{}: {}", configuration.display(), String::from_utf8_lossy(&output.stderr));
}
