//! The page: one file with style, script and data in it.

use super::data::Page;

const FRAME: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
/// The parts of the script, in order; each uses only what stands before it.
const SCRIPT: [&str; 6] = [
    include_str!("html/base.js"),
    include_str!("html/plot.js"),
    include_str!("html/timeline.js"),
    include_str!("html/segments.js"),
    include_str!("html/sections.js"),
    include_str!("html/main.js"),
];

/// The whole page.
///
/// # Errors
/// The data cannot become JSON.
pub(super) fn render(page: &Page) -> Result<String, String> {
    let data =
        serde_json::to_string(page).map_err(|error| format!("the data cannot become JSON: {error}"))?;
    // In an element of a page, nothing but "</" and "<!" could end the data too early; no name may hold that.
    let data = data.replace('<', "\\u003c");
    let mut text = String::with_capacity(data.len() + (64 << 10));
    let mut rest = FRAME;
    for (place, content) in [("{{style}}", STYLE), ("{{data}}", &data), ("{{script}}", &SCRIPT.concat())] {
        let (before, after) = rest.split_once(place).ok_or_else(|| format!("the page lacks {place}"))?;
        text.push_str(before);
        text.push_str(content);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}
