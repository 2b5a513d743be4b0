//! Shapes of a plot: axes, bands, lines, bars.

use std::fmt::Write;

const WIDTH: f64 = 1040.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 56.0;

/// Text that stands for itself.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}

/// What the sides of a plot stand for.
pub(super) struct Axes {
    /// At the left.
    pub(super) from: f64,
    /// At the right.
    pub(super) to: f64,
    /// At the top; the bottom is zero.
    pub(super) top: f64,
    /// Height of the whole picture.
    pub(super) height: f64,
}

impl Axes {
    fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.from) / (self.to - self.from).max(1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom() - value / self.top.max(f64::MIN_POSITIVE) * (self.bottom() - TOP)
    }

    fn bottom(&self) -> f64 {
        self.height - BOTTOM
    }
}

/// A picture in the making. Writing to a string cannot fail, so results are dropped.
pub(super) struct Plot {
    text: String,
    height: f64,
    legend: f64,
}

impl Plot {
    /// An empty one with its title.
    pub(super) fn new(title: &str, height: f64) -> Self {
        let title = escape(title);
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{title}\">\n\
             <style>:root{{color-scheme:light dark;--back:#fff;--ink:#1d2430;--quiet:#5b6675;--grid:#e4e8ed}}\
             @media (prefers-color-scheme:dark){{:root{{--back:#1a2029;--ink:#e4e8ee;--quiet:#97a3b3;--grid:#2a3340}}}}\
             text{{fill:var(--quiet)}}</style>\n\
             <rect width=\"100%\" height=\"100%\" style=\"fill:var(--back)\"/>\n\
             <text x=\"20\" y=\"26\" font-size=\"16\" style=\"fill:var(--ink)\">{title}</text>\n"
        );
        Plot { text, height, legend: LEFT }
    }

    /// A line of text below the title.
    pub(super) fn note(&mut self, note: &str) {
        let _ = writeln!(self.text, "<text x=\"20\" y=\"48\">{}</text>", escape(note));
    }

    /// Finished shapes.
    pub(super) fn raw(&mut self, shapes: &str) {
        self.text.push_str(shapes);
    }

    /// The next entry of the legend, below the plot.
    pub(super) fn legend(&mut self, name: &str, hue: &str) {
        let (at, name) = (self.legend, escape(name));
        let y = self.height - 14.0;
        let _ = writeln!(
            self.text,
            "<rect x=\"{at:.1}\" y=\"{:.1}\" width=\"11\" height=\"11\" rx=\"2\" fill=\"{hue}\"/><text x=\"{:.1}\" y=\"{y:.1}\">{name}</text>",
            y - 10.0,
            at + 16.0
        );
        self.legend += 36.0 + name.chars().count() as f64 * 7.2;
    }

    fn across(&mut self, axes: &Axes, value: f64, label: &str) {
        let y = axes.y(value);
        let _ = writeln!(
            self.text,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" style=\"stroke:var(--grid)\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0
        );
    }

    /// Sizes at the left.
    pub(super) fn byte_axis(&mut self, axes: &Axes) {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut unit = 0;
        while axes.top / 1024_f64.powi(unit + 1) >= 1.0 && unit < 5 {
            unit += 1;
        }
        let size = 1024_f64.powi(unit);
        for tick in ticks(axes.top / size) {
            self.across(axes, tick * size, &format!("{tick} {}", UNITS[unit as usize]));
        }
    }

    /// Percent at the left.
    pub(super) fn share_axis(&mut self, axes: &Axes) {
        for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
            self.across(axes, tick, &format!("{} %", tick * 100.0));
        }
    }

    /// Counts at the left.
    pub(super) fn count_axis(&mut self, axes: &Axes) {
        for tick in ticks(axes.top).into_iter().filter(|tick| tick.fract() == 0.0) {
            self.across(axes, tick, &format!("{tick}"));
        }
    }

    /// Numbers of events below.
    pub(super) fn event_axis(&mut self, axes: &Axes) {
        for tick in ticks(axes.to) {
            let _ = writeln!(
                self.text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>",
                axes.x(tick),
                axes.bottom() + 18.0
            );
        }
    }

    /// The band between lowest and highest values.
    pub(super) fn band(&mut self, axes: &Axes, at: &[u64], low: &[u64], high: &[u64], hue: &str) {
        let forth = at.iter().zip(high).map(|(&x, &y)| (x, y));
        let back = at.iter().zip(low).rev().map(|(&x, &y)| (x, y));
        let mut points = String::new();
        for (x, y) in forth.chain(back) {
            let _ = write!(points, "{:.1},{:.1} ", axes.x(x as f64), axes.y(y as f64));
        }
        let _ = writeln!(
            self.text,
            "<polygon points=\"{}\" fill=\"{hue}\" fill-opacity=\"0.75\" stroke=\"{hue}\"/>",
            points.trim_end()
        );
    }

    /// A line.
    pub(super) fn line(&mut self, axes: &Axes, at: &[u64], values: &[f64], hue: &str) {
        let mut points = String::new();
        for (&x, &y) in at.iter().zip(values) {
            let _ = write!(points, "{:.1},{:.1} ", axes.x(x as f64), axes.y(y));
        }
        let _ = writeln!(
            self.text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{hue}\" stroke-width=\"1.6\"/>",
            points.trim_end()
        );
    }

    /// A dashed line across.
    pub(super) fn level(&mut self, axes: &Axes, value: f64, hue: &str) {
        let y = axes.y(value);
        let _ = writeln!(
            self.text,
            "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" stroke=\"{hue}\" stroke-dasharray=\"6,4\"/>",
            WIDTH - RIGHT
        );
    }

    /// Small triangles at the top.
    pub(super) fn markers(&mut self, axes: &Axes, places: &[f64], hue: &str) {
        for &place in places {
            let (x, y) = (axes.x(place), TOP - 2.0);
            let _ =
                writeln!(self.text, "<path d=\"M{:.1} {:.1}h10l-5 9z\" fill=\"{hue}\"/>", x - 5.0, y - 9.0);
        }
    }

    /// A part of a stack of bars.
    pub(super) fn bar(&mut self, axes: &Axes, index: usize, from: f64, to: f64, hue: &str) {
        if to <= from {
            return;
        }
        let (left, right) = (axes.x(index as f64), axes.x(index as f64 + 1.0));
        let gap = ((right - left) * 0.2).min(6.0);
        let (top, bottom) = (axes.y(to), axes.y(from));
        let _ = writeln!(
            self.text,
            "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{hue}\"/>",
            left + gap / 2.0,
            (right - left - gap).max(0.5),
            (bottom - top).max(0.5)
        );
    }

    /// The name of a group of bars; only as many as have room.
    pub(super) fn group_label(&mut self, axes: &Axes, index: usize, label: &str) {
        const ROOM: f64 = 100.0;
        let wide = axes.x(1.0) - axes.x(0.0);
        let every = (ROOM / wide).ceil().max(1.0) as usize;
        if index.is_multiple_of(every) {
            let label: String = label.chars().take(13).collect();
            let _ = writeln!(
                self.text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                axes.x(index as f64 + 0.5),
                axes.bottom() + 18.0,
                escape(&label)
            );
        }
    }

    /// The picture as text.
    pub(super) fn end(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// Five or so round numbers from zero up to the highest.
fn ticks(highest: f64) -> Vec<f64> {
    let rough = (highest / 6.0).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|&step| step >= rough);
    let step = step.unwrap_or(rough);
    // Rounded, since a multiple of 0.1 may have a long tail.
    let round = |tick: f64| (tick / power).round() * power;
    (0..=12).map(|index| round(f64::from(index) * step)).take_while(|&tick| tick <= highest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<a b=\"c\">&\n"), "&lt;a b=&quot;c&quot;&gt;&amp; ");
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(60.0), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(ticks(7.0), [0.0, 2.0, 4.0, 6.0]);
        assert_eq!(ticks(0.0).first(), Some(&0.0));
    }
}
