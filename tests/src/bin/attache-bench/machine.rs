//! On what it was measured.

use std::{fs, path::PathBuf, process::Command};

use attache_tests::tools;
use serde::Serialize;

/// The machine, the programs and the commit.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Above the number of busy threads that the bench itself has, somebody else was measured as well.
    pub(crate) load_average_before: String,
    pub(crate) envoy: String,
    pub(crate) redis: Option<String>,
    pub(crate) attache: String,
    pub(crate) commit: String,
}

impl Machine {
    pub(crate) fn inspect() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let processors = read("/proc/cpuinfo");
        let processor = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let changed = !output("git", &["status", "--porcelain", "--untracked-files=no"]).is_empty();
        Self {
            processor: processor.map_or("unknown", |(_, name)| name).to_owned(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease")),
            load_average_before: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            envoy: version(tools::envoy().ok(), |text| text.split("version: ").nth(1)?.split('/').nth(1))
                .unwrap_or_default(),
            redis: version(tools::redis_server().ok(), |text| text.split("v=").nth(1)?.split(' ').next()),
            attache: env!("CARGO_PKG_VERSION").to_owned(),
            commit: format!(
                "{}{}",
                output("git", &["rev-parse", "--short", "HEAD"]),
                if changed { "+changes" } else { "" }
            ),
        }
    }
}

fn version(program: Option<PathBuf>, pick: impl Fn(&str) -> Option<&str>) -> Option<String> {
    let text = output(&program?.to_string_lossy(), &["--version"]);
    pick(&text).map(str::to_owned)
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
