//! `attache doctor`: fetches what an Envoy runs on, has it examined, and says what was found.

mod ask;

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use attache::doctor::{self, Evidence, Examination, Question, Severity};
use clap::Args;
use serde_json::{Value, json};

use super::{AdminTokenArgs, byte_size, complain};

/// Says whether an Envoy sends its traffic through the sidecar, and what about it will hurt.
///
/// Exit status: 0 if nothing is worse than a warning, 1 if there are errors (or warnings, with --deny-warnings), 2 if there was
/// nothing to examine.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Envoy's admin interface, or unix:/path. Under Envoy Gateway: kubectl port-forward POD 19000.
    #[arg(long, env = "ATTACHE_ENVOY_ADMIN", value_name = "HOST:PORT", required_unless_present = "config_dump")]
    #[arg(conflicts_with = "config_dump")]
    admin: Option<String>,
    /// A file with what `curl ENVOY-ADMIN/config_dump?include_eds` or `egctl config envoy-proxy all -o json` says; `-` is
    /// standard input.
    #[arg(long, value_name = "FILE")]
    config_dump: Option<PathBuf>,
    /// The sidecar's admin port: whether it is there now, and whether Envoy has a route to everything that it may choose.
    #[arg(long, value_name = "HOST:PORT")]
    sidecar_admin: Option<String>,
    #[command(flatten)]
    token: AdminTokenArgs,
    /// A part of the name of the sidecar's filter, or of the cluster that it asks.
    #[arg(long, value_name = "TEXT", default_value = "attache")]
    filter: String,
    /// The sidecar's --max-body.
    #[arg(long, env = "ATTACHE_MAX_BODY", default_value = "32MiB", value_parser = byte_size)]
    max_body: u64,
    /// Print it for programs.
    #[arg(long)]
    json: bool,
    /// Exit with status 1 for warnings, too.
    #[arg(long)]
    deny_warnings: bool,
}

/// There was nothing to examine.
const NOTHING_EXAMINED: u8 = 2;

/// The dump of an Envoy with ten thousand routes has 100 MB.
const LONGEST_DUMP_BYTES: usize = 512 * 1024 * 1024;

impl DoctorArgs {
    pub(super) fn run(self) -> Result<ExitCode, String> {
        match self.examine() {
            Ok(examinations) => self.report(&examinations),
            Err(error) => {
                complain(&format!("attache: {error}"));
                Ok(ExitCode::from(NOTHING_EXAMINED))
            }
        }
    }

    fn examine(&self) -> Result<Vec<Examination>, String> {
        let mut evidence = match (&self.config_dump, &self.admin) {
            (Some(file), _) => Evidence { dump: parse(&read(file)?)?, ..Evidence::default() },
            (None, Some(admin)) => ask::envoy(admin)?,
            (None, None) => return Err("say where Envoy is: --admin or --config-dump".to_owned()),
        };
        if let Some(sidecar) = &self.sidecar_admin {
            ask::sidecar(sidecar, self.token.token()?.as_deref(), &mut evidence)?;
        }
        let question = Question { mark: self.filter.clone(), max_body_bytes: self.max_body };
        doctor::examine(&evidence, &question).map_err(|error| error.to_string())
    }

    fn report(&self, examinations: &[Examination]) -> Result<ExitCode, String> {
        let text = if self.json {
            let page = serde_json::to_string_pretty(&json!({"proxies": examinations}));
            page.map_err(|error| format!("cannot write JSON: {error}"))? + "\n"
        } else {
            examinations.iter().map(doctor::draw).collect::<Vec<_>>().join("\n")
        };
        io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("cannot write: {error}"))?;
        let worst =
            examinations.iter().flat_map(|examination| &examination.findings).map(|finding| finding.severity).min();
        Ok(match worst {
            Some(Severity::Error) => ExitCode::FAILURE,
            Some(Severity::Warning) if self.deny_warnings => ExitCode::FAILURE,
            _ => ExitCode::SUCCESS,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let read = |input: &mut dyn Read| -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        input.take(LONGEST_DUMP_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > LONGEST_DUMP_BYTES {
            return Err(io::Error::other(format!("it is larger than {LONGEST_DUMP_BYTES} bytes")));
        }
        Ok(bytes)
    };
    let bytes = if path == Path::new("-") {
        read(&mut io::stdin().lock())
    } else {
        File::open(path).and_then(|mut file| read(&mut file))
    };
    bytes.map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("what was read is no JSON, or not all of it: {error}"))
}
