//! The chapter as a person reads it: each figure beside its aim.

use std::fmt;

use super::{Chapter, codings::Encoded, events::Events, scans::Scan};
use crate::report::megabytes;

/// What [`Chapter::live_streams`] should stay below, in bytes.
const LIVE_AIM_BYTES: u64 = 20_000_000;

impl fmt::Display for Chapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Bodies and streams (CPU time of one core)")?;
        writeln!(
            f,
            "\n  {:14} {:>10} {:>22} {:>22} {:>18}",
            "request", "scan", "serde_json to values", "serde_json, ignored", "memchr"
        )?;
        for Scan { body, scan, parse, walk, search, over_parse, over_walk, of_search, .. } in &self.scans {
            writeln!(
                f,
                "  {body:14} {scan:>5.0} MB/s {parse:>10.0} ({over_parse:>4.1}x scan) {walk:>10.0} ({over_walk:>4.1}x scan) {search:>10.0} ({:>4.1}%)",
                100.0 * of_search
            )?;
        }
        writeln!(f, "    x scan: how many times as fast the scanner is, in the same rounds; %: of memchr's speed")?;
        writeln!(
            f,
            "\n  {:28} {:>8} {:>10} {:>10} {:>10} {:>24}",
            "event, ns", "bytes", "all kept", "usage out", "capped", "serde_json to values"
        )?;
        for Events { stream, event_bytes, kept, removed, capped, parse, over_parse } in &self.events {
            writeln!(
                f,
                "  {stream:28} {event_bytes:>8} {kept:>10.0} {removed:>10.0} {capped:>10.0} {parse:>10.0} ({over_parse:>4.1}x as long)"
            )?;
        }
        writeln!(
            f,
            "\n  {:8} {:>22} {:>14} {:>12} {:>14}",
            "stream", "10 MB, encoded", "read, ms", "decode, ms", "20 MB"
        )?;
        for Encoded { coding, encoded_bytes, milliseconds, decode_milliseconds, twice, .. } in &self.codings {
            writeln!(
                f,
                "  {coding:8} {:>22} {milliseconds:>14.1} {decode_milliseconds:>12.1} {twice:>12.2}x  aim: 2x",
                megabytes(*encoded_bytes as u64)
            )?;
        }
        let live = &self.live_streams;
        let grown = live.sidecar_peak_bytes.saturating_sub(live.sidecar_peak_before_bytes);
        write!(
            f,
            "\n  {} live streams: the sidecar's peak {} (idle {}, {:.1} kB a stream), {:.1} us of its CPU for each event  aim: < {}, < 25 us",
            live.streams,
            megabytes(live.sidecar_peak_bytes),
            megabytes(live.sidecar_peak_before_bytes),
            grown as f64 / live.streams as f64 / 1e3,
            live.sidecar_cpu_us_per_event,
            megabytes(LIVE_AIM_BYTES)
        )
    }
}
