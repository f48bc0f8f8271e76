//! `attache init`: a file to begin with.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use attache::render::ExtprocAddress;
use clap::Args;

use super::key::NewKey;

/// Writes a file with a model server, a route, a key and a limit, and shows the key, this once, on standard error.
#[derive(Debug, Args)]
pub(super) struct InitArgs {
    /// Where to write it. A file that is there already is left as it is.
    #[arg(default_value = "gateway.yaml")]
    file: PathBuf,
    /// Where the model server is.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000")]
    server: ExtprocAddress,
    /// What the model server calls its model.
    #[arg(long, value_name = "NAME", default_value = "qwen2.5-7b-instruct")]
    model: String,
}

/// With `@NAMES@` in the place of what differs.
const TEMPLATE: &str = include_str!("init.yaml");

impl InitArgs {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let file = if self.file.is_dir() { self.file.join("gateway.yaml") } else { self.file.clone() };
        let shown = file.display().to_string();
        let key = NewKey::make().map_err(|error| format!("no random numbers from the operating system: {error}"))?;
        let text = self.text(&shown, &key.digest().to_string());
        let mut created =
            OpenOptions::new().write(true).create_new(true).open(&file).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    format!("{shown} is there already, and stays as it is; name another file")
                }
                _ => format!("cannot write {shown}: {error}"),
            })?;
        // A file with the hash of a key that nobody has seen would be of no use.
        let written = key.show("`me`").and_then(|()| {
            created.write_all(text.as_bytes()).map_err(|error| format!("cannot write {shown}: {error}"))
        });
        if written.is_err() {
            let _ = fs::remove_file(&file);
        }
        written?;
        let next = format!(
            "{shown} is written. Next: `attache check {shown}`, `attache run --config {shown}`, and `attache render static {shown} > \
             envoy.yaml` for Envoy.\n"
        );
        io::stdout().lock().write_all(next.as_bytes()).map_err(|error| format!("cannot write: {error}"))?;
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self, file: &str, digest: &str) -> String {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let endpoint = match &self.server {
            ExtprocAddress::Unix(path) => format!("unix: {{path: {}}}", quoted(&path.display().to_string())),
            ExtprocAddress::Tcp { host, port } => match format!("{host}:{port}").parse::<SocketAddr>() {
                Ok(address) => format!("ip: {{address: {}, port: {port}}}", address.ip()),
                Err(_) if host.contains(':') => format!("ip: {{address: {}, port: {port}}}", quoted(host)),
                Err(_) => format!("fqdn: {{hostname: {}, port: {port}}}", quoted(host)),
            },
        };
        // A name of a file may have a line's end in it, and would end the comment.
        let file: String = file.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        TEMPLATE
            .replace("@ENDPOINT@", &endpoint)
            .replace("@MODEL@", &quoted(&self.model))
            .replace("@DIGEST@", digest)
            .replace("@FILE@", &file)
    }
}

#[cfg(test)]
mod tests {
    use attache::config::model::Settings;
    use attache::config::{Documents, Outcome, compile};
    use attache_gate::KeyDigest;

    use super::*;

    fn text(server: &str, model: &str) -> String {
        let args = InitArgs { file: PathBuf::new(), server: server.parse().unwrap(), model: model.to_owned() };
        args.text("a\nb.yaml", &KeyDigest::of(b"abc").to_string())
    }

    fn messages(text: &str) -> Vec<String> {
        let Outcome { diagnostics, .. } =
            compile(Documents::from_text("gateway.yaml", text), Settings::default(), 1, None).unwrap();
        diagnostics.iter().map(|finding| finding.message.clone()).collect()
    }

    #[test]
    fn what_is_written_has_neither_errors_nor_warnings_whatever_server_and_model_are_named() {
        for server in ["127.0.0.1:8000", "vllm.models.svc:80", "[::1]:8000", "unix:/run/vllm.sock"] {
            let text = text(server, "Qwen/Qwen2.5: \"7B\"");
            assert_eq!(messages(&text), [""; 0], "{text}");
            assert!(!text.contains('@'), "{text}");
        }
        assert!(text("vllm:80", "m").contains("fqdn: {hostname: \"vllm\", port: 80}"));
    }

    #[test]
    fn what_stands_in_a_comment_is_sound_as_well() {
        let text = text("127.0.0.1:8000", "m");
        let uncommented = text.replace("  # - {", "  - {");
        assert_ne!(uncommented, text);
        assert_eq!(messages(&uncommented), [""; 0]);
    }
}
