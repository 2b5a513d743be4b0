//! The figures as an SVG: sizes to the right, rates upwards, both by powers.

use std::fmt::Write;

use super::label;
use super::measure::{Direction, Figure, Way};

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 60.0;

/// The plot; `note` says whose figures they are and stands under the title.
pub(super) fn render(figures: &[Figure], note: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">Host memory to the device and back, GiB/s</text>\n\
         <text x=\"{LEFT}\" y=\"44\">{note}</text>\n"
    );
    let rates = figures.iter().flat_map(|figure| figure.rates).flatten();
    let (low, high) = rates.fold((f64::MAX, f64::MIN), |(low, high), rate| (low.min(rate), high.max(rate)));
    let (low, high) = if low > high { (0.1, 1.0) } else { (low.log10().floor(), high.log10().ceil()) };
    let high = high.max(low + 1.0);
    let first = figures.first().map_or(0.0, |figure| (figure.bytes as f64).log2());
    let last = figures.last().map_or(1.0, |figure| (figure.bytes as f64).log2()).max(first + 1.0);
    let x = |bytes: u64| LEFT + ((bytes as f64).log2() - first) / (last - first) * (WIDTH - LEFT - RIGHT);
    let y = |rate: f64| HEIGHT - BOTTOM - (rate.log10() - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
    // Writing to a string cannot fail.
    for power in low as i32..=high as i32 {
        let at = y(10f64.powi(power));
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            10f64.powi(power)
        );
    }
    for figure in figures {
        let at = x(figure.bytes);
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM + 20.0,
            label(figure.bytes)
        );
    }
    for (column, (way, direction)) in Figure::COLUMNS.into_iter().enumerate() {
        let points: String = figures
            .iter()
            .filter_map(|figure| Some(format!("{:.1},{:.1} ", x(figure.bytes), y(figure.rates[column]?))))
            .collect();
        let (color, dash) = (color(way), if direction == Direction::ToHost { "5,4" } else { "none" });
        let at = TOP + 20.0 * column as f64;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>\n\
             <line x1=\"{:.1}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"{color}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\">{} {}</text>",
            points.trim_end(),
            WIDTH - RIGHT + 20.0,
            WIDTH - RIGHT + 56.0,
            WIDTH - RIGHT + 64.0,
            at + 4.0,
            way.name(),
            direction.name()
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn color(way: Way) -> &'static str {
    match way {
        Way::Pageable => "#888888",
        Way::PageLocked => "#1f77b4",
        Way::ZeroCopy => "#d62728",
    }
}
