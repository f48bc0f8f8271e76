//! The operator's YAML into that bootstrap, by way of the manifests that `attache render envoy-gateway` writes.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::{Places, bootstrap};
use crate::error::{Error, LastLines, Result};
use crate::tools;

/// Envoy Gateway accepts no loopback address and no name of one part, and model servers of tests have no others. These (RFC 5737,
/// RFC 2606) are nobody's, and stand for them on the way through the manifests.
const STAND_INS: [(&str, &str); 2] = [("127.0.0.1", "192.0.2.1"), ("localhost", "local.host.example")];

/// Renders manifests of these files and directories, and translates them.
///
/// # Errors
/// When the configuration has errors, or cannot be translated.
pub async fn render(config: &[PathBuf], environment: &[(String, String)], places: &Places) -> Result<String> {
    let directory = tempfile::tempdir_in(tools::target_directory()).map_err(Error::io("make a directory"))?;
    copy(config, &directory)?;
    let mut command = tools::attache()?;
    command.args(["render", "envoy-gateway", "--gateway", "gateways/llm"]).arg(directory.path());
    if places.wasm.is_some() {
        // Nobody fetches it: the translation puts the file in its place.
        command.args(["--wasm-url", "https://files.example.com/filter.wasm", "--wasm-sha256", &"00".repeat(32)]);
    }
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    let output = tokio::process::Command::from(command).output().await.map_err(Error::io("run `attache render`"))?;
    if !output.status.success() {
        return Err(Error::Ended {
            process: "`attache render envoy-gateway`".to_owned(),
            status: output.status,
            what: "it had written the manifests".to_owned(),
            log: LastLines::of(&String::from_utf8_lossy(&output.stderr)),
        });
    }
    let manifests = String::from_utf8_lossy(&output.stdout).into_owned();
    bootstrap(&STAND_INS.iter().fold(manifests, |text, (own, other)| text.replace(other, own)), places)
}

/// All files, with the address that stands for this machine's.
fn copy(config: &[PathBuf], directory: &TempDir) -> Result<()> {
    let mut files: Vec<PathBuf> = Vec::new();
    for path in config {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = fs::read_dir(path).map_err(Error::io(format!("read {}", path.display())))?;
        let mut of_directory: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        of_directory.sort();
        files.extend(of_directory.into_iter().filter(|file| file.extension().is_some_and(|kind| kind == "yaml")));
    }
    for (index, file) in files.iter().enumerate() {
        let copied = |file: &Path| {
            let text = fs::read_to_string(file)?;
            let text = STAND_INS.iter().fold(text, |text, (own, other)| text.replace(own, other));
            fs::write(directory.path().join(format!("{index:03}.yaml")), text)
        };
        copied(file).map_err(Error::io(format!("copy {}", file.display())))?;
    }
    Ok(())
}
