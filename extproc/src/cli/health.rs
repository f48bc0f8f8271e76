//! `attache health`: whether a sidecar takes requests, as an exit status. For containers' health checks: an image needs no shell and
//! no curl for it.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args;
use http::Method;

use super::http::ask_sidecar;

#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// The sidecar's admin port.
    #[arg(long, env = "ATTACHE_ADMIN_LISTEN", default_value = "127.0.0.1:10002", value_name = "HOST:PORT")]
    admin: String,
}

impl HealthArgs {
    /// Prints what `/readyz` says; a failure where it is not that requests may come.
    pub(super) fn run(self) -> Result<ExitCode, String> {
        let answer = ask_sidecar(Method::GET, &self.admin, None, "/readyz", b"")?;
        io::stdout().lock().write_all(&answer.body).map_err(|error| format!("cannot write: {error}"))?;
        Ok(if answer.status == 200 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
