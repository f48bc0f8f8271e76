//! The chapter as a person reads it: each figure beside its aim.

use std::fmt;

use super::{Chapter, latency::Way};
use crate::bootstrap::Variant;

impl fmt::Display for Chapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Token limits")?;
        writeln!(f, "\n  {:58} {:>10}  aim", "what Redis does, counted", "")?;
        let mut line = |what: &str, figure: String, aim: &str| writeln!(f, "    {what:56} {figure:>10}  {aim}");
        let trips = &self.round_trips;
        line(
            &format!("commands on the way of an admitted request (of {})", trips.admitted),
            format!("{:.2}", trips.on_the_path),
            "1",
        )?;
        line("commands in all for it, settling included", format!("{:.2}", trips.in_all), "2")?;
        line(
            &format!("commands for {} refusals that the sidecar remembered", trips.remembered),
            trips.for_remembered.to_string(),
            "0",
        )?;
        let memory = &self.memory;
        line(
            &format!("bytes of a (key, limit), {} keys", memory.keys),
            format!("{:.0}", memory.counter_bytes),
            "<= 300",
        )?;
        line("bytes of one with a request in flight (its lease)", format!("{:.0}", memory.in_flight_bytes), "")?;
        line("bytes of one for 10 s after a request (its tombstone)", format!("{:.0}", memory.settled_bytes), "")?;

        writeln!(
            f,
            "\n  {:20} {:>10} {:>10} {:>12} {:>14} {:>14}",
            "limits of a request", "reserve us", "settle us", "Redis CPU us", "requests/core", "requests/s here"
        )?;
        for script in &self.scripts {
            let aim = if script.limits == 3 { "  aim: >= 5,000 a core" } else { "" };
            writeln!(
                f,
                "    {:18} {:>10.1} {:>10.1} {:>12.1} {:>14.0} {:>15.0}{aim}",
                script.limits,
                script.reserve_us,
                script.settle_us,
                script.redis_cpu_us,
                script.requests_per_core(),
                script.requests_per_second
            )?;
        }

        writeln!(
            f,
            "\n  {:20} {:>8} {:>9} {:>9} {:>14}  {:14} the replaced product",
            "128 in flight", "limit", "admitted", "settled", "settled/limit", "aim"
        )?;
        for row in &self.overshoot {
            let share = |settled: u64| settled as f64 / row.limit as f64;
            let bound = row.bound.map_or_else(|| "no bound".to_owned(), |bound| format!("<= {:.2}", share(bound)));
            writeln!(
                f,
                "    {:18} {:>8} {:>9} {:>9} {:>14.2}  {bound:14} {}",
                row.mode,
                row.limit,
                row.admitted,
                row.settled,
                share(row.settled),
                row.replaced
            )?;
        }
        for row in &self.capped {
            writeln!(
                f,
                "    strict, cap, at the store in {}: {} tokens over in {} requests ({} admitted); aim: 0 in 1,000,000",
                row.store, row.tokens_over, row.requests, row.admitted
            )?;
        }

        writeln!(
            f,
            "\n  {:20} {:>9} {:>19} {:>17} {:>10} {:>28}",
            "2 kB, 1 connection", "", "answer, us", "added, us", "CPU us", "each request"
        )?;
        writeln!(
            f,
            "  {:20} {:>9} {:>10} {:>8} {:>8} {:>8} {:>10} {:>9} {:>8} {:>9}",
            "", "req/s", "p50", "p99", "p50", "p99", "sidecar", "sidecar", "store", "connects"
        )?;
        self.ways.iter().try_for_each(|way| write_way(f, way))?;
        let cached = &self.cached_refusal;
        write!(
            f,
            "    connects: Envoy closes a connection of HTTP/1.1 on which it answers before the request is complete\n    a remembered refusal inside the sidecar: p50 {:.1} us, p99 {:.1} us; aim: < 50",
            cached.p50_us, cached.p99_us
        )
    }
}

fn write_way(
    f: &mut fmt::Formatter<'_>,
    Way { name, row, sidecar_asked, store_asked, reconnects }: &Way,
) -> fmt::Result {
    let added = |us: f64| if row.variant == Variant::Plain { String::new() } else { format!("{us:+.0}") };
    writeln!(
        f,
        "    {name:18} {:>9.0} {:>9.0} {:>8.0} {:>8} {:>8} {:>10.0} {sidecar_asked:>9.3} {store_asked:>8.3} {reconnects:>9.3}",
        row.requests_per_second,
        row.p50_us,
        row.p99_us,
        added(row.added_p50_us),
        added(row.added_p99_us),
        row.sidecar_cpu_us,
    )
}
