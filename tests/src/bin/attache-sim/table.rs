//! The report for people.

use std::fmt;

use attache_tests::simulation::Policy;

use crate::report::{Report, Row, TraceReport};

pub(crate) struct Tables<'a>(pub(crate) &'a Report);

impl fmt::Display for Tables<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for trace in &self.0.traces {
            write_trace(f, trace)?;
        }
        write_summary(f, &self.0.traces)?;
        writeln!(
            f,
            "\nhit: cached of all prompt tokens. bound: that, divided by the hit ratio of one cache as large as all together."
        )?;
        writeln!(
            f,
            "imbalance: the busiest replica's tokens divided by the mean; of prompts routed, and of what was not cached."
        )?;
        write!(
            f,
            "ttft: time to first token, in seconds. moved: known prefixes that went to a replica that had not served them."
        )
    }
}

fn write_trace(f: &mut fmt::Formatter<'_>, trace: &TraceReport) -> fmt::Result {
    writeln!(f, "{} ({})", trace.name, trace.origin)?;
    writeln!(
        f,
        "{} requests in {:.0} s, {:.0} tokens in and {:.0} out; {} replicas of {} tokens of cache, {:.0} tokens/s of prefill",
        trace.requests,
        trace.seconds,
        trace.mean_input_tokens,
        trace.mean_output_tokens,
        trace.replicas,
        trace.cache_tokens,
        trace.prefill_tokens_per_second
    )?;
    writeln!(f, "  {:42}{:>7}{:>7}   {:>12}   {:>8}{:>8}{:>8}{:>7}", "", "", "", "imbalance", "ttft", "", "", "")?;
    writeln!(
        f,
        "  {:42}{:>7}{:>7}   {:>6}{:>6}   {:>8}{:>8}{:>8}{:>7}",
        "", "hit %", "bound%", "routed", "comp.", "mean", "p50", "p90", "failed"
    )?;
    writeln!(f, "  {:42}{:7.1}", "cache without end", 100.0 * trace.infinite_hit_ratio)?;
    writeln!(f, "  {:42}{:7.1}{:7.1}", "pooled bound", 100.0 * trace.pooled_hit_ratio, 100.0)?;
    for Row { name, figures, .. } in trace.quiet() {
        writeln!(
            f,
            "  {name:42}{:7.1}{:7.1}   {:6.2}{:6.2}   {:8.2}{:8.2}{:8.2}{:7}",
            100.0 * figures.hit_ratio,
            100.0 * figures.share_of_bound,
            figures.imbalance_routed,
            figures.imbalance_prefilled,
            figures.ttft_mean_s,
            figures.ttft_p50_s,
            figures.ttft_p90_s,
            figures.failed,
        )?;
    }
    write_incidents(f, trace)
}

fn write_incidents(f: &mut fmt::Formatter<'_>, trace: &TraceReport) -> fmt::Result {
    writeln!(f, "  The five minutes after half time, with what happened then, and had nothing happened")?;
    writeln!(
        f,
        "  {:46}{:>14}{:>16}{:>14}{:>14}{:>9}",
        "", "bound %", "1st sidecar's", "ttft mean", "moved %", "failed"
    )?;
    for row in trace.rows.iter().filter(|row| row.incident.is_some()) {
        let Some((quiet, incident)) = trace.quiet_like(row).zip(row.incident) else { continue };
        let pair = |value: f64, without: f64| format!("{:.1} / {:.1}", 100.0 * value, 100.0 * without);
        writeln!(
            f,
            "  {:46}{:>14}{:>16}{:>14}{:>14}{:>9}",
            format!("{}: {incident}", row.name),
            pair(row.aftermath.share_of_bound, quiet.aftermath.share_of_bound),
            pair(row.aftermath_first_sidecar.share_of_bound, quiet.aftermath_first_sidecar.share_of_bound),
            format!("{:.2} / {:.2}", row.aftermath.ttft_mean_s, quiet.aftermath.ttft_mean_s),
            pair(row.moved, quiet.moved),
            row.figures.failed,
        )?;
    }
    writeln!(f)
}

fn write_summary(f: &mut fmt::Formatter<'_>, traces: &[TraceReport]) -> fmt::Result {
    write!(f, "Hit ratio in %; of ours, the share of the pooled bound as well\n  {:42}", "")?;
    for trace in traces {
        write!(f, "{:>16}", trace.name)?;
    }
    let bound = |f: &mut fmt::Formatter<'_>, name: &str, hit_ratio: fn(&TraceReport) -> f64| {
        write!(f, "\n  {name:42}")?;
        traces.iter().try_for_each(|trace| write!(f, "{:16.1}", 100.0 * hit_ratio(trace)))
    };
    bound(f, "cache without end", |trace| trace.infinite_hit_ratio)?;
    bound(f, "pooled bound", |trace| trace.pooled_hit_ratio)?;
    let Some(first) = traces.first() else { return Ok(()) };
    for Row { name, policy, .. } in first.quiet() {
        write!(f, "\n  {name:42}")?;
        for trace in traces {
            let Some(row) = trace.quiet().find(|row| row.name == *name) else { continue };
            let hit = format!("{:.1}", 100.0 * row.figures.hit_ratio);
            if *policy == Policy::Ours.name() {
                let hit = format!("{hit} ({:.1})", 100.0 * row.figures.share_of_bound);
                write!(f, "{hit:>16}")?;
            } else {
                write!(f, "{hit:>16}")?;
            }
        }
    }
    writeln!(f)
}
