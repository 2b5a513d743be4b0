// The sections of one run.

const FIGURES = [
  ["peak_live", "peak live", bytes],
  ["peak_allocated", "allocated", bytes],
  ["peak_active", "active", bytes],
  ["peak_reserved", "reserved", bytes],
  ["peak_physical", "physical", bytes],
];

/** A number inside the figures of a run, by names with dots between. */
function figure(run, path) {
  return path.split(".").reduce((value, key) => (value === null || value === undefined ? undefined : value[key]), run.figures);
}

/** The peaks of a run that was not replayed here come from its series. */
function peak(run, key) {
  return figure(run, key) ?? highest(run.series[key.slice("peak_".length)].high);
}

/** Which part of the events is shown, where the cursor is, and which moment. */
class View {
  constructor(run) {
    Object.assign(this, { run, from: 0, to: run.events, cursor: null, plots: [], moment: null, told: () => {}, picked: () => {} });
  }

  repaint() {
    this.plots.forEach((plot) => plot.paint());
  }

  point(event) {
    this.cursor = event;
    this.told();
    this.repaint();
  }

  zoom(from, to) {
    this.from = Math.max(0, Math.floor(from));
    this.to = Math.min(this.run.events, Math.max(Math.ceil(to), this.from + 10));
    this.told();
    this.repaint();
  }

  scale(factor) {
    const middle = this.cursor ?? (this.from + this.to) / 2;
    const half = ((this.to - this.from) * factor) / 2;
    this.zoom(middle - half, middle + half);
  }

  /** Chooses the moment nearest to an event. */
  pick(event) {
    const nearest = this.run.moments.reduce((best, moment) =>
      (best === null || Math.abs(moment.at - event) < Math.abs(best.at - event) ? moment : best), null);
    if (nearest) this.choose(nearest);
  }

  choose(moment) {
    this.moment = moment;
    this.picked();
    this.repaint();
  }
}

function section(title, ...content) {
  return el("section", { "aria-label": title }, el("h2", {}, title), ...content);
}

function factsSection(run) {
  const facts = [
    ["events", number(run.events)],
    ["device", run.device > 0 ? bytes(run.device) : "not known"],
    ["limit", run.limit > 0 ? bytes(run.limit) : "none known"],
    ["configuration", run.conf || "default"],
  ];
  if (run.kind === "trace") facts.push(["lag", several(run.lag, "event")]);
  return section(run.name,
    el("ul", { class: "facts" }, ...facts.map(([name, text]) => el("li", {}, el("span", { class: "quiet" }, `${name} `), el("b", {}, text)))),
    ...run.notes.map((note) => el("p", { class: "warning" }, note)),
    run.kind === "snapshot" ? el("p", { class: "quiet" }, "A snapshot as it was taken, not a replay. Its events say what was asked for, so live bytes are those; its segments are of one moment.") : null,
    run.first_oom ? el("details", {}, el("summary", {}, "What the first request that found no memory was told"), el("p", { class: "warning" }, run.first_oom)) : null);
}

function timelineSection(run, view) {
  if (run.series.at.length === 0) return null;
  const kinds = [...new Set(run.markers.map((marker) => marker.kind))];
  const shown = new Set([...SERIES.map((series) => series.key), ...kinds]);
  if (run.limit > 0) shown.add("limit");
  const drawn = el("div");
  const readout = el("p", { class: "readout", id: "readout", "aria-live": "polite" });
  const toggle = (key, name, hue) => el("label", {},
    el("input", { type: "checkbox", checked: true, onchange: (event) => {
      if (event.target.checked) shown.add(key);
      else shown.delete(key);
      view.repaint();
    } }),
    el("i", { style: `background: var(--${hue})` }), name);
  const toggles = seriesOf(run).map(({ key, name, hue }) => toggle(key, name, hue));
  if (run.limit > 0) toggles.push(toggle("limit", "limit", "limit"));
  for (const kind of kinds) {
    const times = run.markers.filter((marker) => marker.kind === kind).reduce((sum, marker) => sum + marker.count, 0);
    toggles.push(toggle(kind, `${MARKERS[kind].name} (${number(times)})`, MARKERS[kind].hue));
  }
  view.told = () => { readout.textContent = told(run, view); };
  const made = section("Memory over time",
    el("div", { class: "legend" }, ...toggles),
    drawn, readout,
    el("div", { class: "row" },
      el("button", { onclick: () => view.scale(0.5) }, "Closer"),
      el("button", { onclick: () => view.scale(2) }, "Farther"),
      el("button", { onclick: () => view.zoom(0, run.events) }, "All events"),
      el("span", { class: "quiet" }, "Drag to look closer, click for the segments then. Each point shows the lowest and the highest value of its stretch.")));
  new Timeline(drawn, run, view, shown);
  view.told();
  return made;
}

/** What the cursor is at, in words. */
function told(run, view) {
  if (view.cursor === null) {
    return `Events ${number(view.from + 1)} to ${number(view.to)}. Point at the plot, or use the arrow keys, for its numbers.`;
  }
  const index = lastNotAbove(run.series.at, view.cursor);
  const values = seriesOf(run).map(({ key }) => {
    const { low, high } = run.series[key];
    return low[index] === high[index] ? `${key} ${bytes(high[index])}` : `${key} ${bytes(low[index])} to ${bytes(high[index])}`;
  }).reverse();
  const reach = Math.max((view.to - view.from) / 150, 1);
  const near = run.markers.filter((marker) => Math.abs(marker.at - view.cursor) <= reach).map((marker) => {
    const size = marker.bytes > 0 ? `, ${bytes(marker.bytes)}` : "";
    return `${MARKERS[marker.kind].name} at event ${number(marker.at + 1)} (${number(marker.count)}${size})`;
  });
  const step = stepOf(run, view.cursor);
  return [`Event ${number(view.cursor + 1)}${step ? `, in ${step}` : ""}: ${values.join(", ")}`, ...near].join("; ");
}

function fragmentationSection(run, view) {
  const { at, reserved, allocated, requested, free, largest, pieces } = run.fragmentation;
  if (at.length === 0) return null;
  const share = (part, whole) => part.map((value, index) => (whole[index] > 0 ? Math.min(Math.max(value / whole[index], 0), 1) : 0));
  const lines = [
    { at, values: share(reserved.map((value, index) => value - allocated[index]), reserved), name: "reserved and not allocated, of reserved", hue: "reserved" },
    { at, values: share(free.map((value, index) => value - largest[index]), free), name: "free outside of the largest free block, of free", hue: "active" },
    { at, values: share(allocated.map((value, index) => value - requested[index]), allocated), name: "lost to rounding, of allocated", hue: "live" },
  ];
  const drawn = el("div");
  const most = highest(pieces);
  const made = section("Fragmentation over time", drawn, legend(lines),
    el("p", { class: "quiet" }, `At most ${several(most, "free block")} at a time; looked at ${several(at.length, "time")}.`));
  new Lines(drawn, "Fragmentation over time", run, view, lines);
  return made;
}

function segmentsSection(run, view) {
  if (run.moments.length === 0) return null;
  const drawn = el("div", { class: "tall" });
  const details = el("div", { id: "block", "aria-live": "polite" });
  const title = el("p", { id: "moment" });
  const below = el("div", { class: "columns wide" });
  const map = new SegmentMap(drawn, run, (block) => details.replaceChildren(describe(run, block)));
  const select = el("select", { "aria-label": "Moment", id: "moments", onchange: () => view.choose(run.moments[select.value]) },
    ...run.moments.map((moment, index) => el("option", { value: index }, `event ${number(moment.at + 1)}: ${moment.label}`)));
  const turn = (step) => view.choose(run.moments[Math.min(Math.max(run.moments.indexOf(view.moment) + step, 0), run.moments.length - 1)]);
  const hues = el("select", { "aria-label": "Colors", onchange: () => map.paintBy(hues.value) },
    el("option", { value: "stream" }, "colors: streams"),
    el("option", { value: "step" }, run.kind === "trace" ? "colors: steps that made them" : "colors: who made them"),
    el("option", { value: "size" }, "colors: sizes"));
  const rows = el("select", { "aria-label": "Bytes in a row", onchange: () => map.zoom(Number(rows.value)) },
    el("option", { value: 0 }, "rows as they fit"),
    ...[1, 16, 64, 256, 1024, 4096].map((size) => el("option", { value: size * 2 ** 20 }, `${bytes(size * 2 ** 20, 0)} a row`)));
  view.picked = () => {
    const { moment } = view;
    select.value = String(run.moments.indexOf(moment));
    const blocks = blocksOf(moment);
    const free = blocks.filter((block) => block.state === 0).reduce((sum, block) => sum + block.size, 0);
    title.textContent = `After event ${number(moment.at + 1)}: ${several(moment.segments.length, "stretch", "stretches")}, ${bytes(moment.reserved)} reserved, `
      + `${several(blocks.filter((block) => block.state === 1).length, "block")} with ${bytes(moment.live)} live, ${bytes(free)} free (${percent(free, moment.reserved)}).`;
    map.show(moment);
    below.replaceChildren(holdersPart(run, moment), sizesPart(moment));
  };
  const streams = [...new Set(run.moments.flatMap((moment) => blocksOf(moment).map((block) => block.stream)))].sort((a, b) => a - b);
  const named = streams.slice(0, 8).map((stream) => ({ name: `stream ${stream}`, hue: `c${stream % 8}` }));
  const made = section("Segments",
    el("div", { class: "row" }, select, el("button", { onclick: () => turn(-1) }, "Earlier"), el("button", { onclick: () => turn(1) }, "Later"), rows, hues),
    title,
    legend([...named, { name: "waiting for streams", hue: "waiting" }, { name: "free", hue: "free-edge" }]),
    el("div", { class: "map" }, drawn, details), below);
  const first = run.moments.find((moment) => moment.label.includes("highest live")) ?? run.moments[run.moments.length - 1];
  return { made, start: () => view.choose(first) };
}

function holdersPart(run, moment) {
  const groups = holders(run, moment);
  const rows = groups.map((group) => [
    group.who, number(group.count), bytes(group.requested), [bytes(group.sum), { bytes: group.sum }], percent(group.sum, moment.reserved), String(group.stream),
  ]);
  return el("div", {}, el("h3", {}, "Top holders then"),
    el("div", { class: "scroll" }, table(["who", "blocks", "each asked for", "hold", "of reserved", "stream"], rows, { id: "holders" })));
}

function sizesPart(moment) {
  const part = el("div", {}, el("h3", {}, "Blocks then, by size"));
  new Bars(part, "Bytes in blocks by size", sizesAt(moment), [{ name: "in use", hue: "live" }, { name: "free", hue: "free-edge" }], bytes, 230);
  return part;
}

function sizesSection(run) {
  const label = ({ from }) => (from === 0 ? "< 1 KiB" : `${bytes(from, 0)}`);
  const counts = el("div", {}, el("h3", {}, "Requests"));
  const sums = el("div", {}, el("h3", {}, "Bytes asked for"));
  new Bars(counts, "Requests by size", run.sizes.map((size) => ({ label: label(size), parts: [size.count] })), [{ name: "requests of this size up to twice it", hue: "live" }], number);
  new Bars(sums, "Bytes asked for by size", run.sizes.map((size) => ({ label: label(size), parts: [size.bytes] })), [{ name: "bytes in requests of this size up to twice it", hue: "allocated" }], bytes);
  return section("Sizes", el("div", { class: "columns" }, counts, sums));
}

const CALLS = [
  ["aclrtMapMem", "c0"], ["aclrtUnmapMem", "c1"], ["aclrtMallocPhysical", "c2"], ["aclrtFreePhysical", "c3"],
  ["aclrtMemSetAccess", "c4"], ["aclrtMallocAlign32", "c5"], ["aclrtFree", "c6"],
];
const WAITS = [
  ["aclrtSynchronizeDevice", "limit"], ["aclrtSynchronizeStream", "c3"], ["aclrtSynchronizeEvent", "c2"],
  ["aclrtStreamWaitEvent", "active"], ["aclrtRecordEvent", "c0"], ["aclrtQueryEventStatus", "c6"],
];

function callsSection(title, note, run, calls, id) {
  const made = calls.filter(([name]) => run.steps.some((step) => step.calls[name] > 0));
  if (made.length === 0) {
    return section(title, el("p", { class: "quiet" }, note.none));
  }
  const groups = run.steps.map((step) => ({ label: step.label, parts: made.map(([name]) => step.calls[name] ?? 0) }));
  const drawn = el("div");
  new Bars(drawn, title, groups, made.map(([name, hue]) => ({ name, hue })), number);
  const rows = run.steps.map((step) => [step.label, ...made.map(([name]) => number(step.calls[name] ?? 0))]);
  const sum = (name) => run.steps.reduce((all, step) => all + (step.calls[name] ?? 0), 0);
  rows.push(["all steps", ...made.map(([name]) => [number(sum(name)), { call: name, count: sum(name) }])]);
  return section(title, el("p", { class: "quiet" }, note.some), drawn,
    el("details", {}, el("summary", {}, "As a table"), el("div", { class: "scroll" }, table(["step", ...made.map(([name]) => name)], rows, { id }))));
}
