//! What processes use, from `/proc`.

use std::{fs, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// Readings of `/proc`; what cannot be read is 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage;

impl Usage {
    /// The CPU time of a process's threads. From `schedstat`, in nanoseconds: `/proc/<pid>/stat` counts in ticks of 10 ms,
    /// which is more than a round of streamed answers takes.
    pub(crate) fn of_process(id: u32) -> Duration {
        let threads = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        threads.map(|thread| schedstat(&thread.path().join("schedstat").to_string_lossy())).sum()
    }

    /// The CPU time of the calling thread, up to this moment: `schedstat` is as old as the last tick.
    pub(crate) fn of_this_thread() -> Duration {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(time).unwrap_or_default()
    }

    /// The most memory that a process has had in use, in bytes (`VmHWM`).
    pub(crate) fn peak_memory_bytes(id: u32) -> u64 {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or_default() * 1_024
    }

    /// The memory that this process has in use now, in bytes (`VmRSS`).
    pub(crate) fn resident_bytes() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        resident.and_then(|bytes| bytes.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or_default() * 1_024
    }
}

/// Its first number is the time on a CPU.
fn schedstat(path: &str) -> Duration {
    let text = fs::read_to_string(path).unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_default())
}
