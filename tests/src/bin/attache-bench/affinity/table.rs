//! The chapter as a person reads it: each figure beside its aim.

use std::fmt;

use super::{
    Chapter,
    contention::Work,
    cost::{Cost, Known, Spread},
};

impl fmt::Display for Chapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Prefix affinity (us; the index of 64 MiB is full, the endpoints' caches are, too)")?;
        writeln!(
            f,
            "\n  {:>6} {:>9} {:>6} {:>6} {:>9} {:>8} {:>8} {:>8} {:>8} {:>19}",
            "", "", "", "", "scan", "read", "place", "dispatch", "end", "decision"
        )?;
        writeln!(
            f,
            "  {:>6} {:>9} {:>6} {:>6} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}  aim",
            "body", "endpoints", "known", "blocks", "p50", "p50", "p50", "p50", "p50", "p50", "p99"
        )?;
        self.costs.iter().try_for_each(|cost| write_cost(f, cost))?;
        writeln!(f, "    scan: finding the segments, which is done for limits and routes anyway")?;
        writeln!(f, "    read: the canonical stream and its hashes; decision: all but the scan; end: at the answer")?;
        writeln!(
            f,
            "\n  {:>9} {:>10} {:>12} {:>12} {:>12} {:>10} {:>10}",
            "endpoints", "budget", "index", "of budget", "process grew", "blocks", "bytes each"
        )?;
        for memory in &self.memory {
            writeln!(
                f,
                "  {:>9} {:>7.0} MB {:>9.2} MB {:>11.1}% {:>9.2} MB {:>10} {:>10.1}  aim: <= 100%",
                memory.endpoints,
                memory.budget_bytes as f64 / 1e6,
                memory.index_bytes as f64 / 1e6,
                100.0 * memory.index_bytes as f64 / memory.budget_bytes as f64,
                memory.resident_bytes as f64 / 1e6,
                memory.blocks,
                memory.index_bytes as f64 / memory.blocks as f64
            )?;
        }
        write!(f, "\n  {:>9} {:36} {:>12} {:>12}", "endpoints", "40 kB, requests/s", "1 thread", "2 threads")?;
        for row in &self.contention {
            let work = match row.work {
                Work::Decision => "the decision, from the segments on",
                Work::Locked => "what is under the pool's lock alone",
            };
            let gain = row.two_threads / row.one_thread;
            write!(
                f,
                "\n  {:>9} {work:36} {:>12.0} {:>12.0} {gain:>5.2}x",
                row.endpoints, row.one_thread, row.two_threads
            )?;
        }
        Ok(())
    }
}

fn write_cost(f: &mut fmt::Formatter<'_>, cost: &Cost) -> fmt::Result {
    let aim = match cost.body_bytes {
        40_000 => "  < 100",
        400_000 => "  < 1,000",
        _ => "",
    };
    let Spread { p50_us, p99_us } = cost.decision;
    writeln!(
        f,
        "  {:>3} kB {:>9} {:>5.0}% {:>6} {:>9.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {p50_us:>9.1} {p99_us:>9.1}{aim}{}",
        cost.body_bytes / 1_000,
        cost.endpoints,
        100.0 * cost.predicted,
        cost.blocks,
        cost.scan.p50_us,
        cost.read.p50_us,
        cost.place.p50_us,
        cost.dispatch.p50_us,
        cost.end.p50_us,
        if cost.known == Known::Head { "  (new)" } else { "" },
    )
}
