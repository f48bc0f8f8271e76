//! The plot: hit ratios of every trace, a bar a policy, and the pooled bound as a line above each group. An SVG by hand.

use std::fmt::{self, Write};

use crate::report::{Report, Row, TraceReport};

const HEIGHT: f64 = 520.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 440.0;
const BAR: f64 = 17.0;
const GAP: f64 = 36.0;
const LEGEND: f64 = 350.0;
/// Greys and browns for what does not look at prompts, blues and violets for what does, greens for ours.
const COLOURS: [&str; 14] = [
    "#bdbdbd", "#969696", "#737373", "#525252", "#d8b365", "#bf812d", "#8c510a", "#9ecae1", "#4292c6", "#bcbddc",
    "#807dba", "#a1d99b", "#41ab5d", "#006d2c",
];

/// The SVG.
pub(crate) fn draw(report: &Report) -> String {
    let mut svg = String::new();
    // Writing to a String does not fail.
    let _ = write_svg(&mut svg, &report.traces);
    svg
}

fn write_svg(svg: &mut String, traces: &[TraceReport]) -> fmt::Result {
    let bars = traces.iter().map(|trace| trace.quiet().count()).max().unwrap_or(0);
    let group = bars as f64 * BAR + GAP;
    let right = LEFT + group * traces.len() as f64;
    let width = right + LEGEND;
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {HEIGHT:.0}" width="{width:.0}" height="{HEIGHT:.0}" font-family="Helvetica, Arial, sans-serif" font-size="13" fill="black">"#
    )?;
    writeln!(svg, r#"<rect width="100%" height="100%" fill="white"/>"#)?;
    text(svg, LEFT - 8.0, TOP - 14.0, 13, "end", "hit ratio")?;
    text(svg, LEFT, 30.0, 18, "start", "Prompt tokens that came from a KV cache, by the way requests were placed")?;
    for percent in (0..=100).step_by(20) {
        let y = height(f64::from(percent) / 100.0);
        writeln!(svg, r##"<line x1="{LEFT}" x2="{right:.0}" y1="{y:.1}" y2="{y:.1}" stroke="#dddddd"/>"##)?;
        text(svg, LEFT - 8.0, y + 4.0, 13, "end", &format!("{percent} %"))?;
    }
    for (index, trace) in traces.iter().enumerate() {
        write_group(svg, LEFT + GAP / 2.0 + index as f64 * group, trace)?;
    }
    writeln!(svg, r#"<line x1="{LEFT}" x2="{right:.0}" y1="{BOTTOM}" y2="{BOTTOM}" stroke="black"/>"#)?;
    text(svg, f64::midpoint(LEFT, right), HEIGHT - 15.0, 13, "middle", "request trace")?;
    if let Some(trace) = traces.first() {
        write_legend(svg, right + 20.0, trace)?;
    }
    writeln!(svg, "</svg>")
}

fn write_group(svg: &mut String, left: f64, trace: &TraceReport) -> fmt::Result {
    let mut x = left;
    for (Row { name, figures, .. }, colour) in trace.quiet().zip(COLOURS.iter().cycle()) {
        let y = height(figures.hit_ratio);
        writeln!(
            svg,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{:.1}" height="{:.1}" fill="{colour}"><title>{}: {:.1} %</title></rect>"#,
            BAR - 2.0,
            BOTTOM - y,
            escape(name),
            100.0 * figures.hit_ratio
        )?;
        x += BAR;
    }
    let bound = height(trace.pooled_hit_ratio);
    writeln!(
        svg,
        r##"<line x1="{:.1}" x2="{:.1}" y1="{bound:.1}" y2="{bound:.1}" stroke="#cb181d" stroke-width="2" stroke-dasharray="6 3"/>"##,
        left - 4.0,
        x + 2.0
    )?;
    let middle = f64::midpoint(left, x);
    text(svg, middle, BOTTOM + 20.0, 13, "middle", &trace.name)?;
    text(svg, middle, BOTTOM + 37.0, 11, "middle", &format!("bound {:.1} %", 100.0 * trace.pooled_hit_ratio))
}

fn write_legend(svg: &mut String, x: f64, trace: &TraceReport) -> fmt::Result {
    let mut y = TOP + 10.0;
    for (row, colour) in trace.quiet().zip(COLOURS.iter().cycle()) {
        writeln!(svg, r#"<rect x="{x:.1}" y="{:.1}" width="13" height="13" fill="{colour}"/>"#, y - 11.0)?;
        text(svg, x + 20.0, y, 13, "start", &row.name)?;
        y += 21.0;
    }
    writeln!(
        svg,
        r##"<line x1="{x:.1}" x2="{:.1}" y1="{:.1}" y2="{:.1}" stroke="#cb181d" stroke-width="2" stroke-dasharray="6 3"/>"##,
        x + 14.0,
        y - 5.0,
        y - 5.0
    )?;
    text(svg, x + 20.0, y, 13, "start", "pooled bound: one cache for all")
}

fn height(share: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * share
}

fn text(svg: &mut String, x: f64, y: f64, size: u32, anchor: &str, text: &str) -> fmt::Result {
    writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" text-anchor="{anchor}">{}</text>"#, escape(text))
}

/// A trace is named by its file, which may be named anything.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
