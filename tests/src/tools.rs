//! The programs under test and beside it, as the Makefile names them in the environment.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use crate::error::{Error, Result};

/// Envoy.
pub fn envoy() -> Result<PathBuf> {
    named("ENVOY", "Envoy")
}

/// The Redis server.
pub fn redis_server() -> Result<PathBuf> {
    named("REDIS_SERVER", "redis-server")
}

/// A Python that has the official client libraries.
pub fn python() -> Result<PathBuf> {
    named("ATTACHE_PYTHON", "Python with the official client libraries")
}

/// A Python that has Helm's engine.
pub fn helm() -> Result<PathBuf> {
    named("ATTACHE_HELM", "Python with Helm's engine")
}

/// Prometheus' own tool for its rules; `None` where `PROMTOOL` is empty, as none was to be had.
pub fn promtool() -> Result<Option<PathBuf>> {
    match env::var_os("PROMTOOL") {
        Some(path) => Ok(Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty())),
        None => Err(Error::NoProgram { variable: "PROMTOOL", program: "promtool" }),
    }
}

/// The Wasm filter's file.
pub fn wasm_filter() -> Result<PathBuf> {
    named("ATTACHE_WASM_FILE", "the Wasm filter")
}

/// The program `attache`, ready for its arguments. Options that a developer has in the environment do not reach it.
pub fn attache() -> Result<Command> {
    let mut command = Command::new(named("ATTACHE_BIN", "the sidecar")?);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("ATTACHE_") {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// What an Envoy under test is configured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// `attache render static`.
    Static,
    /// `attache render envoy-gateway`, and what Envoy Gateway makes of that.
    EnvoyGateway,
}

/// The profile that `ATTACHE_TEST_PROFILE` names; `static` without.
pub fn profile() -> Result<Profile> {
    match env::var("ATTACHE_TEST_PROFILE").unwrap_or_default().as_str() {
        "" | "static" => Ok(Profile::Static),
        "envoy-gateway" => Ok(Profile::EnvoyGateway),
        other => Err(Error::unexpected("ATTACHE_TEST_PROFILE is neither static nor envoy-gateway", other)),
    }
}

/// Where all temporary files go: Cargo's target directory.
pub fn target_directory() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from)
}

fn named(variable: &'static str, program: &'static str) -> Result<PathBuf> {
    let path = env::var_os(variable).filter(|path: &OsString| !path.is_empty());
    path.map(PathBuf::from).ok_or(Error::NoProgram { variable, program })
}
