//! The figures over time as one picture, with a strip for each.

use std::fmt::Write as _;

use super::{
    sample::{FIGURES, Sample},
    verdict::fifths,
};

/// Pixels: the full width, the margin left of the strips, the height of a strip, and the gap below it.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 230.0;
const STRIP: f64 = 60.0;
const GAP: f64 = 20.0;
const TOP: f64 = 40.0;

/// The most marks on the time axis.
const MARKS: f64 = 12.0;

/// Draws the picture as a standalone SVG.
pub(super) fn draw(samples: &[Sample]) -> String {
    let end = samples.last().map_or(1.0, |sample| sample.seconds.max(1.0));
    let x = |seconds: f64| LEFT + seconds / end * (WIDTH - LEFT - 20.0);
    let mut bottom = TOP;
    let mut svg = String::new();
    for (place, figure) in FIGURES.iter().enumerate() {
        let points: Vec<_> = samples
            .iter()
            .map(|sample| (x(sample.seconds), sample.figures[place]))
            .collect();
        bottom += STRIP;
        strip(&mut svg, figure.name, &points, bottom);
        bottom += GAP;
    }
    let step = minutes_between_marks(end / 60.0);
    let mut minutes = 0.0;
    while minutes * 60.0 <= end {
        let at = x(minutes * 60.0);
        let _infallible = writeln!(
            svg,
            r#"<text x="{at:.0}" y="{bottom:.0}" text-anchor="middle">{minutes:.0} min</text>"#
        );
        minutes += step;
    }
    let mut bands = String::new();
    for fifth in fifths(samples) {
        if let [first, .., last] = fifth {
            let (from, to) = (x(first.seconds), x(last.seconds));
            let _infallible = writeln!(
                bands,
                r#"<rect class="band" x="{from:.0}" y="{TOP}" width="{:.0}" height="{:.0}"/>"#,
                to - from,
                bottom - TOP - GAP
            );
        }
    }
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{:.0}" font-family="sans-serif" font-size="11">
<style>.line{{fill:none;stroke:#2c6fad;stroke-width:1.2}}.axis{{stroke:#bbb}}.band{{fill:#f0ead8}}</style>
<rect width="100%" height="100%" fill="white"/>
<text x="10" y="22" font-size="14">A steady load over time. What must be flat may not be higher in the last band than in the first.</text>
{bands}{svg}</svg>
"#,
        bottom + GAP
    )
}

/// A figure's curve, from zero to its maximum, above this height.
fn strip(svg: &mut String, name: &str, points: &[(f64, f64)], bottom: f64) {
    let most = points.iter().fold(0.0_f64, |most, point| most.max(point.1));
    let y = |figure: f64| bottom - figure / most.max(1.0) * STRIP;
    let right = WIDTH - 20.0;
    let _infallible = writeln!(
        svg,
        r#"<text x="10" y="{:.0}">{name}</text>
<text x="{1:.0}" y="{bottom:.0}" text-anchor="end">0</text><text x="{1:.0}" y="{2:.0}" text-anchor="end">{most:.1}</text>
<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom:.0}" y2="{bottom:.0}"/>"#,
        bottom - STRIP / 2.0,
        LEFT - 8.0,
        y(most) + 8.0,
    );
    let points = points
        .iter()
        .map(|(x, figure)| format!("{x:.1},{:.1}", y(*figure)));
    let points: Vec<_> = points.collect();
    let _infallible = writeln!(
        svg,
        r#"<polyline class="line" points="{}"/>"#,
        points.join(" ")
    );
}

/// How many minutes from one mark to the next: a round number.
fn minutes_between_marks(minutes: f64) -> f64 {
    let steps = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0];
    let step = steps.into_iter().find(|step| minutes / step <= MARKS);
    step.unwrap_or_else(|| (minutes / MARKS / 60.0).ceil() * 60.0)
}
