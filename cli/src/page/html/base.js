"use strict";
// What the page holds, numbers for people, and elements. Text of the data only ever becomes text, never markup.

const page = JSON.parse(document.getElementById("data").textContent);

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A size for people. */
function bytes(value, places = 2) {
  let unit = 0;
  let shown = value;
  while (Math.abs(shown) >= 1024 && unit < UNITS.length - 1) {
    shown /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${shown} B` : `${shown.toFixed(places)} ${UNITS[unit]}`;
}

/** A whole number with its digits in groups. */
function number(value) {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** A number with its noun. */
function several(value, noun, plural = `${noun}s`) {
  return `${number(value)} ${value === 1 ? noun : plural}`;
}

function percent(part, whole) {
  return whole > 0 ? `${((100 * part) / whole).toFixed(2)} %` : "-";
}

function address(value) {
  return `0x${value.toString(16)}`;
}

/** An element with attributes and children. */
function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) {
      made.addEventListener(key.slice(2), value);
    } else if (value !== false && value !== undefined) {
      made.setAttribute(key, value === true ? "" : value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** A table: the head, and rows of cells; a cell is text, an element, or a pair of text and data attributes. */
function table(head, rows, attributes = {}) {
  const cell = (kind, content) => {
    if (Array.isArray(content)) {
      const made = el(kind, {}, content[0]);
      Object.assign(made.dataset, content[1]);
      return made;
    }
    return el(kind, {}, content);
  };
  return el("table", attributes,
    el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((content) => cell("td", content))))));
}

/** A color of the style, as it is in this light. */
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** The index of the last value that is not above what is sought; values ascend. */
function lastNotAbove(values, sought) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= sought) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

/** The number of the step that an event falls into. */
function stepNumber(run, event) {
  run.starts ??= run.steps.map((step) => step.at);
  return lastNotAbove(run.starts, event);
}

/** Its label; empty where the run has no steps. */
function stepOf(run, event) {
  return run.steps.length === 0 ? "" : run.steps[stepNumber(run, event)].label;
}

function highest(values) {
  return values.reduce((most, value) => Math.max(most, value), 0);
}

/** Plots that are on the page; drawn anew when the light changes. */
const plots = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((plot) => plot.paint()));
