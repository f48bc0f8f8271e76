//! The report: a table for people, and the same as JSON. And the progress until there is one.

use std::{
    fmt, fs,
    io::{self, IsTerminal, Write},
    path::PathBuf,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use attache_tests::tools;
use serde::Serialize;

use crate::{
    affinity,
    bed::Finding,
    bodies,
    bootstrap::Variant,
    limits,
    machine::Machine,
    measure::{Case, ClientAlone, Pace, Row},
    reload,
};

/// Everything that one run found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) pace: Pace,
    pub(crate) client_alone: Option<ClientAlone>,
    pub(crate) cases: Vec<Case>,
    pub(crate) beds: Vec<Finding>,
    pub(crate) bodies_and_streams: Option<bodies::Chapter>,
    pub(crate) token_limits: Option<limits::Chapter>,
    pub(crate) prefix_affinity: Option<affinity::Chapter>,
    pub(crate) hot_reload: Option<reload::Chapter>,
}

impl Report {
    pub(crate) fn new(machine: Machine, pace: Pace) -> Self {
        Self {
            machine,
            pace,
            client_alone: None,
            cases: Vec::new(),
            beds: Vec::new(),
            bodies_and_streams: None,
            token_limits: None,
            prefix_affinity: None,
            hot_reload: None,
        }
    }

    /// Writes it as JSON under Cargo's target directory.
    pub(crate) fn save(&self) -> io::Result<PathBuf> {
        let directory = tools::target_directory().join("bench");
        fs::create_dir_all(&directory)?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let path = directory.join(format!("{seconds}-{}.json", self.machine.commit));
        fs::write(&path, serde_json::to_vec_pretty(self)?)?;
        Ok(path)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.machine;
        writeln!(f, "Attaché {} ({}) on Envoy {}, one worker", machine.attache, machine.commit, machine.envoy)?;
        writeln!(
            f,
            "{}, {} cores, {}; load before {}",
            machine.processor, machine.cores, machine.kernel, machine.load_average_before
        )?;
        let Pace { rounds, whole, streamed } = self.pace;
        writeln!(
            f,
            "Medians of {rounds} rounds of {whole:?} (streamed {streamed:?}) a variant; share and added: beside the plain route of the same round."
        )?;
        for case in &self.cases {
            write_case(f, case)?;
        }
        if self.cases.iter().any(|case| case.events > 0) {
            writeln!(f, "\nStreamed answers, CPU us for each event (the request's own part is in it)")?;
        }
        for case in self.cases.iter().filter(|case| case.events > 0) {
            write_events(f, case)?;
        }
        if !self.beds.is_empty() {
            writeln!(f, "\nMemory and checks")?;
        }
        for finding in &self.beds {
            let what = if finding.streamed { "streamed" } else { "whole" };
            writeln!(
                f,
                "  {what} answers: the sidecar's peak {}, Envoy's {}",
                megabytes(finding.sidecar_peak_bytes),
                megabytes(finding.envoy_peak_bytes)
            )?;
            writeln!(
                f,
                "    of {} requests {} reserved in the ledger and {} were placed",
                finding.served, finding.granted, finding.placed
            )?;
            if let Some(round_trips) = finding.redis_round_trips_per_granted {
                writeln!(
                    f,
                    "    on Redis: {round_trips:.2} round trips for each admitted request (one to reserve, one to settle)"
                )?;
            }
        }
        if let Some(alone) = &self.client_alone {
            writeln!(
                f,
                "  client and upstream without a gateway, 2 kB, 1 connection: {:.0} requests/s, p50 {:.0} us, {:.0} us of the client's CPU for each request",
                alone.requests_per_second, alone.p50_us, alone.client_cpu_us
            )?;
        }
        write!(
            f,
            "Upstream: a fixed answer with its usage for whole answers, the simulated model server for streamed ones."
        )?;
        if let Some(chapter) = &self.bodies_and_streams {
            write!(f, "\n\n{chapter}")?;
        }
        if let Some(chapter) = &self.token_limits {
            write!(f, "\n\n{chapter}")?;
        }
        if let Some(chapter) = &self.prefix_affinity {
            write!(f, "\n\n{chapter}")?;
        }
        if let Some(chapter) = &self.hot_reload {
            write!(f, "\n\n{chapter}")?;
        }
        Ok(())
    }
}

fn write_case(f: &mut fmt::Formatter<'_>, case: &Case) -> fmt::Result {
    let latency = if case.events > 0 { "first event" } else { "answer" };
    writeln!(f, "\n{}", case.name)?;
    writeln!(
        f,
        "  {:20} {:>9} {:>6} {:>21} {:>17} {:>29}",
        "",
        "",
        "",
        format!("{latency}, us"),
        "added, us",
        "CPU us a request"
    )?;
    writeln!(
        f,
        "  {:20} {:>9} {:>6} {:>10} {:>10} {:>8} {:>8} {:>9} {:>9} {:>9}",
        "", "req/s", "share", "p50", "p99", "p50", "p99", "Envoy", "sidecar", "client"
    )?;
    for row in &case.rows {
        let added = |us: f64| if row.variant == Variant::Plain { String::new() } else { format!("{us:+.0}") };
        writeln!(
            f,
            "  {:20} {:>9.0} {:>6.2} {:>10.0} {:>10.0} {:>8} {:>8} {:>9.0} {:>9.0} {:>9.0}",
            row.variant.name(),
            row.requests_per_second,
            row.share,
            row.p50_us,
            row.p99_us,
            added(row.added_p50_us),
            added(row.added_p99_us),
            row.envoy_cpu_us,
            row.sidecar_cpu_us,
            row.client_cpu_us,
        )?;
    }
    Ok(())
}

fn write_events(f: &mut fmt::Formatter<'_>, case: &Case) -> fmt::Result {
    let events = case.events as f64;
    let Some(plain) = case.rows.first() else { return Ok(()) };
    writeln!(f, "  {} at once: plain Envoy {:.1}", case.connections, plain.envoy_cpu_us / events)?;
    for Row { variant, envoy_cpu_us, sidecar_cpu_us, .. } in case.rows.iter().skip(1) {
        let (envoy, sidecar) = ((envoy_cpu_us - plain.envoy_cpu_us) / events, sidecar_cpu_us / events);
        writeln!(f, "    {:18} Envoy {envoy:+.1}, sidecar {sidecar:.1}", variant.name())?;
    }
    Ok(())
}

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Says on standard error how far the run is: in one line on a terminal, in a line a case elsewhere.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Instant,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), is_terminal: io::stderr().is_terminal() }
    }

    /// Round 0 warms up.
    pub(crate) fn show(&mut self, case: &str, round: usize, rounds: usize) {
        let seconds = self.start.elapsed().as_secs();
        let round = if round == 0 { "warming up".to_owned() } else { format!("round {round} of {rounds}") };
        if self.is_terminal {
            eprint!("\r\x1b[K[{seconds:3} s] {case}: {round}");
            // Progress that is not shown is no reason to end.
            let _ = io::stderr().flush();
        } else if round == "warming up" {
            eprintln!("[{seconds:3} s] {case}");
        }
    }

    /// What has no rounds.
    pub(crate) fn say(&mut self, what: &str) {
        let seconds = self.start.elapsed().as_secs();
        if self.is_terminal {
            eprint!("\r\x1b[K[{seconds:3} s] {what}");
            let _ = io::stderr().flush();
        } else {
            eprintln!("[{seconds:3} s] {what}");
        }
    }

    pub(crate) fn end(&mut self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}
