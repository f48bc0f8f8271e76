//! The chapter "Hot reload": how long it takes until a change of the operator's documents is in force.
//!
//! In this process, on the production code: thousands of routes, each with a Backend, an AIServiceBackend, a TokenLimitPolicy
//! and a ClientKey of its own, in a directory of files, of which one changes. What a sidecar waits for besides, so that a
//! change of several files is read once, is 200 ms.

use std::{fmt, fs, io, path::Path, sync::Arc, time::Instant};

use attache::{
    config::{self, model::Settings, report::Style},
    reload::Reloader,
};
use attache_tests::{Directory, Error, Result};
use serde::Serialize;

use crate::{measure::Pace, report::Progress};

/// By which `--only` knows it.
pub(crate) const NAME: &str = "hot reload";

/// The second is what is aimed at.
const ROUTES: [usize; 3] = [200, 2_000, 10_000];
const ROUTES_A_FILE: usize = 100;
const AIM_SECONDS: f64 = 1.0;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(crate) struct Chapter {
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    routes: usize,
    warnings: usize,
    bytes: usize,
    /// Reading files into documents.
    load_ms: f64,
    /// From the change to the configuration in force, reading included.
    reload_ms: f64,
    /// The same with every finding written out, as `attache check` and a log do it.
    check_ms: f64,
}

/// Whether each object gives a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Documents {
    Sound,
    Warned,
}

/// Measures all of it.
///
/// # Errors
/// When something does not do what was to be measured.
pub(crate) fn measure(pace: Pace, progress: &mut Progress) -> Result<Chapter> {
    let mut rows = Vec::new();
    for routes in ROUTES {
        for documents in [Documents::Sound, Documents::Warned] {
            progress.say(&format!("{NAME}: {routes} routes"));
            rows.push(row(routes, documents, pace.rounds)?);
        }
    }
    Ok(Chapter { rows })
}

fn row(routes: usize, documents: Documents, rounds: usize) -> Result<Row> {
    let directory = Directory::temporary()?;
    let config = directory.path().join("config");
    fs::create_dir(&config).map_err(failed("make a directory"))?;
    let mut bytes = 0;
    for first in (0..routes).step_by(ROUTES_A_FILE) {
        let text: String = (first..(first + ROUTES_A_FILE).min(routes)).map(|index| route(index, documents)).collect();
        bytes += text.len();
        write(&config, first, &text)?;
    }
    let paths = vec![config.clone()];
    let mut reloader = Reloader::start(paths.clone(), Settings::default(), Arc::default())
        .map_err(failed("read the configuration"))?;
    let (mut loads, mut reloads, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds.max(3) {
        let begun = Instant::now();
        drop(config::load(&paths));
        loads.push(begun.elapsed().as_secs_f64() * 1e3);
        let begun = Instant::now();
        config::check(&paths, Settings::default(), Style::Plain, &mut io::sink()).map_err(failed("check"))?;
        checks.push(begun.elapsed().as_secs_f64() * 1e3);
        let first: String = (0..ROUTES_A_FILE.min(routes)).map(|index| route(index, documents)).collect();
        write(&config, 0, &format!("{first}# change {round}\n"))?;
        let before = reloader.published().load().generation;
        let begun = Instant::now();
        reloader.reload();
        reloads.push(begun.elapsed().as_secs_f64() * 1e3);
        let now = reloader.published().load_full();
        if now.generation == before || now.routes.len() != routes {
            return Err(Error::unexpected("a reload gave", format!("{} routes", now.routes.len())));
        }
    }
    let warnings = if documents == Documents::Warned { routes } else { 0 };
    let [load_ms, reload_ms, check_ms] = [loads, reloads, checks].map(median);
    Ok(Row { routes, warnings, bytes, load_ms, reload_ms, check_ms })
}

fn failed<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Error {
    let what = format!("cannot {what}");
    move |error| Error::unexpected(what, error.to_string())
}

fn write(directory: &Path, number: usize, text: &str) -> Result<()> {
    fs::write(directory.join(format!("{number:06}.yaml")), text).map_err(failed("write documents"))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn route(index: usize, documents: Documents) -> String {
    let (high, low) = (index / 250, index % 250);
    let warned = if documents == Documents::Warned { "hostnames: [a.example], " } else { "" };
    format!(
        "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: Backend\nmetadata: {{name: b{index}}}\n\
         spec: {{endpoints: [{{ip: {{address: 10.0.{high}.{low}, port: 8000}}}}, \
         {{ip: {{address: 10.1.{high}.{low}, port: 8000}}}}]}}\n---\n\
         apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIServiceBackend\nmetadata: {{name: b{index}}}\n\
         spec: {{schema: {{name: OpenAI}}, backendRef: {{name: b{index}}}}}\n---\n\
         apiVersion: aigateway.envoyproxy.io/v1beta1\nkind: AIGatewayRoute\nmetadata: {{name: r{index}}}\n\
         spec: {{{warned}rules: [{{matches: [{{headers: [{{name: x-ai-eg-model, value: m{index}}}]}}], \
         backendRefs: [{{name: b{index}}}]}}]}}\n---\n\
         apiVersion: attache.dev/v1alpha1\nkind: TokenLimitPolicy\nmetadata: {{name: l{index}}}\n\
         spec: {{targetRefs: [{{group: aigateway.envoyproxy.io, kind: AIGatewayRoute, name: r{index}}}], \
         limits: [{{name: minute, per: [key], limit: 300000, window: 1m}}]}}\n---\n\
         apiVersion: attache.dev/v1alpha1\nkind: ClientKey\nmetadata: {{name: k{index}}}\n\
         spec: {{sha256: {index:064x}, tenant: t, routes: [r{index}]}}\n---\n"
    )
}

impl fmt::Display for Chapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Hot reload (ms; five objects a route, 100 routes a file, one file changed)\n\n  \
             {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "routes", "warnings", "MB", "read", "reload", "check"
        )?;
        for row in &self.rows {
            let aim = if row.routes == 2_000 { format!("  < {:.0}", AIM_SECONDS * 1e3) } else { String::new() };
            write!(
                f,
                "\n  {:>7} {:>9} {:>9.1} {:>9.1} {:>9.1} {:>9.1}{aim}",
                row.routes,
                row.warnings,
                row.bytes as f64 / 1e6,
                row.load_ms,
                row.reload_ms,
                row.check_ms
            )?;
        }
        Ok(())
    }
}
