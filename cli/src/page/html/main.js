// Puts the page together.

const shownRuns = document.getElementById("runs");
const place = document.getElementById("run");

/** The figures of all runs, a row each. */
function overview(chosen) {
  const events = (run) => (run.kind === "trace" ? number(figure(run, "events_recorded")) : "-");
  const rows = page.runs.map((run, index) => {
    const live = peak(run, "peak_live");
    const given = (path) => { const value = figure(run, path); return value === undefined ? "-" : number(value); };
    const waits = ["device", "stream", "event"].map((kind) => figure(run, `syncs.${kind}`) ?? 0).reduce((sum, value) => sum + value, 0);
    return [
      el("button", { class: "plain", onclick: () => show(index), "aria-pressed": String(index === chosen) }, run.name),
      ...FIGURES.map(([key, , format]) => [peak(run, key) > 0 || run.kind === "trace" ? format(peak(run, key)) : "-", { figure: key, value: peak(run, key) }]),
      live > 0 ? ((figure(run, "peak_physical") ?? peak(run, "peak_reserved")) / live).toFixed(4) : "-",
      given("ooms"), run.kind === "trace" ? number(waits) : "-", given("device_waits"), events(run),
      given("calls.map"), given("calls.unmap"), given("calls.malloc_physical"), given("calls.free_physical"),
    ];
  });
  const head = ["run", ...FIGURES.map(([, name]) => name), "physical / live", "out of memory", "host waits", "stream waits", "events", "map", "unmap", "taken", "given back"];
  const made = table(head, rows, { id: "runs" });
  made.querySelectorAll("tbody tr").forEach((row, index) => row.classList.toggle("chosen", index === chosen));
  return made;
}

/** What is reserved in all runs of the same input, where there are several. */
function compare(run) {
  const target = document.getElementById("compare");
  const runs = page.runs.filter((other) => other.input === run.input && other.kind === run.kind);
  target.replaceChildren();
  if (runs.length < 2) return;
  const view = new View(run);
  target.append(el("h3", {}, `Reserved memory of ${run.input}, over time`));
  const drawn = el("div");
  target.append(drawn, legend(runs.map((other, index) => ({ name: other.conf_name, hue: `c${index % 8}` }))));
  new Comparison(drawn, runs, view, "reserved");
  view.repaint();
}

function show(index) {
  const run = page.runs[index];
  plots.clear();
  document.getElementById("runs").replaceWith(overview(index));
  compare(run);
  const view = new View(run);
  const segments = segmentsSection(run, view);
  place.replaceChildren(...[
    factsSection(run),
    timelineSection(run, view),
    segments && segments.made,
    fragmentationSection(run, view),
    run.sizes.length > 0 ? sizesSection(run) : null,
    run.kind === "trace" ? callsSection("Driver calls by step", {
      some: "What the allocator asked of the driver for memory, between two markers.",
      none: "No memory was asked of the driver.",
    }, run, CALLS, "calls") : null,
    run.kind === "trace" ? callsSection("Waits and events by step", {
      some: "Waits of the host (aclrtSynchronize...), waits of streams on the device, and the events behind them.",
      none: "Nothing ever waited, and no event was recorded.",
    }, run, WAITS, "waits") : null,
  ].filter((made) => made));
  if (segments) segments.start();
  view.repaint();
  document.title = `Memory report: ${run.name}`;
}

document.getElementById("made").textContent =
  `Made by ${page.made_by}. Sizes are binary: 1 GiB = 2\u00b3\u2070 B. Replays run on a simulated device; they carry no computing time.`;
if (page.runs.length > 0) show(0);
else place.append(el("p", {}, "There is nothing to show."));
