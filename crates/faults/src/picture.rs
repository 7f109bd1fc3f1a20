//! A campaign as one picture: holders over time against the limit, with the faults marked.

use std::{collections::BTreeMap, fmt::Write as _};

use crate::{
    judge::Verdict,
    record::{Body, Phase, Record, What},
};

/// Pixels for a second, for a holder, and for the rest of a semaphore's strip.
const SECOND: f64 = 4.0;
const HOLDER: f64 = 14.0;
const STRIP: f64 = 100.0;
const LEFT: f64 = 220.0;

/// Draws the picture as a standalone SVG.
pub(crate) fn draw(records: &[Record], verdict: &Verdict) -> String {
    let mut strips: BTreeMap<&str, f64> = BTreeMap::new();
    let mut bottom = 60.0;
    for record in records {
        if let What::Semaphore(semaphore) = &record.what {
            strips.entry(&semaphore.prefix).or_insert_with(|| {
                bottom += STRIP;
                bottom - STRIP
            });
        }
    }
    let end = records.last().map_or(0.0, |record| record.t);
    let (width, height) = (LEFT + end * SECOND + 40.0, bottom + 30.0);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" font-family="sans-serif" font-size="11">
<style>.held{{fill:#7aa6d6}}.limit{{fill:none;stroke:#c0392b;stroke-width:1.5}}.all{{stroke:#b07d2b}}.one{{stroke:#555}}.bad{{stroke:#e00;stroke-width:3}}</style>
<rect width="100%" height="100%" fill="white"/>
<text x="10" y="20" font-size="14">Holders (blue) against the limit (red); marks are faults: brown ones hit all, grey ones one semaphore, thick red ones are violations. Point at a mark to read it.</text>
"#
    );
    for (prefix, top) in &strips {
        // Writing to a string can't fail.
        let _ = writeln!(svg, r#"<text x="10" y="{:.0}">{prefix}</text>"#, top + 60.0);
        strip(&mut svg, records, prefix, *top, end);
    }
    for record in records {
        if let What::Fault {
            kind,
            prefix,
            phase: Phase::Begins,
            note,
            ..
        } = &record.what
        {
            let top = prefix.as_deref().and_then(|prefix| strips.get(prefix));
            let (class, from, to) = match top {
                Some(top) => ("one", *top, top + STRIP - 20.0),
                None => ("all", 40.0, height - 30.0),
            };
            mark(
                &mut svg,
                class,
                record.t,
                from,
                to,
                &format!("{:.1} s: {kind} {note}", record.t),
            );
        }
    }
    for violation in &verdict.violations {
        let top = strips
            .get(violation.prefix.as_str())
            .copied()
            .unwrap_or(40.0);
        let text = format!(
            "{:.3} s: {:?}: {}",
            violation.t, violation.rule, violation.text
        );
        mark(&mut svg, "bad", violation.t, top, top + STRIP, &text);
    }
    let mut t = 0.0;
    while t <= end {
        let _ = writeln!(
            svg,
            r#"<text x="{:.0}" y="{:.0}">{t:.0} s</text>"#,
            x(t),
            height - 10.0
        );
        t += 30.0;
    }
    svg.push_str("</svg>\n");
    svg
}

fn level(holders: u64) -> f64 {
    f64::from(u32::try_from(holders).unwrap_or(u32::MAX)) * HOLDER
}

fn x(t: f64) -> f64 {
    LEFT + t * SECOND
}

fn strip(svg: &mut String, records: &[Record], prefix: &str, top: f64, end: f64) {
    let base = top + STRIP - 20.0;
    let mut held = format!("M{:.1} {base:.1}", x(0.0));
    let mut limit = String::new();
    for record in records {
        let What::Lock {
            prefix: of, body, ..
        } = &record.what
        else {
            continue;
        };
        if of != prefix {
            continue;
        }
        let at = x(record.t);
        let _ = write!(
            held,
            "H{at:.1}V{:.1}",
            base - level(body.holders().len() as u64)
        );
        if let Body::Semaphore { limit: now, .. } = body {
            let step = if limit.is_empty() {
                format!("M{at:.1} ")
            } else {
                format!("H{at:.1}V")
            };
            let _ = write!(limit, "{step}{:.1}", base - level(*now));
        }
    }
    let _ = writeln!(
        svg,
        r#"<path class="held" d="{held}H{:.1}V{base:.1}Z"/>"#,
        x(end)
    );
    if !limit.is_empty() {
        let _ = writeln!(svg, r#"<path class="limit" d="{limit}H{:.1}"/>"#, x(end));
    }
}

fn mark(svg: &mut String, class: &str, t: f64, from: f64, to: f64, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        r#"<line class="{class}" x1="{0:.1}" x2="{0:.1}" y1="{from:.0}" y2="{to:.0}"><title>{text}</title></line>"#,
        x(t)
    );
}
