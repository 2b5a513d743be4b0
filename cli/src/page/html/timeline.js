// Memory over time: areas, markers, a cursor, and a window that can be made smaller.

const SERIES = [
  { key: "reserved", name: "reserved", hue: "reserved", fill: 0.22 },
  { key: "active", name: "active", hue: "active", fill: 0 },
  { key: "allocated", name: "allocated", hue: "allocated", fill: 0 },
  { key: "live", name: "live (as asked for)", hue: "live", fill: 0.28 },
];

/** The series that a run has: of a snapshot only some are known. */
function seriesOf(run) {
  return SERIES.filter(({ key }) => run.series[key].high.length > 0);
}

const MARKERS = {
  oom: { name: "out of memory", hue: "limit", row: 0 },
  host_wait: { name: "host waits", hue: "busy", row: 0 },
  stream_wait: { name: "waits of streams on the device", hue: "active", row: 0 },
  given_back: { name: "memory given back", hue: "quiet", row: 1 },
  empty_cache: { name: "empty_cache", hue: "accent", row: 1 },
};

/** A plot over the events of a run; all such plots of a run share the cursor and the window. */
class OverTime extends Plot {
  constructor(parent, label, height, run, view) {
    super(parent, label, height, { top: 30 });
    Object.assign(this, { run, view });
    view.plots.push(this);
    const { canvas } = this;
    canvas.addEventListener("mousemove", (event) => this.moved(event.offsetX));
    canvas.addEventListener("mouseleave", () => view.point(null));
    canvas.addEventListener("mousedown", (event) => { this.dragged = this.valueAt(event.offsetX); });
    canvas.addEventListener("mouseup", (event) => this.released(event.offsetX));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  moved(place) {
    this.view.point(Math.round(Math.min(Math.max(this.valueAt(place), this.fromX), this.toX)));
  }

  released(place) {
    const from = this.dragged;
    this.dragged = undefined;
    if (from === undefined) return;
    const to = this.valueAt(place);
    if (Math.abs(this.x(to) - this.x(from)) > 8) this.view.zoom(Math.min(from, to), Math.max(from, to));
    else this.view.pick(Math.round(to));
  }

  key(event) {
    const { view } = this;
    const step = Math.max(1, Math.round((view.to - view.from) / (event.shiftKey ? 20 : 200)));
    const at = view.cursor ?? Math.round((view.from + view.to) / 2);
    const actions = {
      ArrowLeft: () => view.point(Math.max(at - step, 0)),
      ArrowRight: () => view.point(Math.min(at + step, this.run.events - 1)),
      Enter: () => view.pick(at),
      "+": () => view.scale(0.5),
      "-": () => view.scale(2),
      0: () => view.zoom(0, this.run.events),
      Escape: () => view.zoom(0, this.run.events),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** Numbers of events below, from 1 as people count, and lines where steps begin. */
  events(pen) {
    this.below(numberTicks(this.fromX, this.toX, 7).filter(Number.isInteger), (tick) => number(tick));
    const steps = this.run.steps.filter((step) => step.at > this.fromX && step.at < this.toX);
    pen.textAlign = "left";
    pen.textBaseline = "bottom";
    let free = 0;
    for (const step of steps.length > 200 ? [] : steps) {
      const at = Math.round(this.x(step.at)) + 0.5;
      pen.strokeStyle = color("line");
      pen.setLineDash([2, 3]);
      pen.beginPath();
      pen.moveTo(at, this.margin.top - 4);
      pen.lineTo(at, this.bottom);
      pen.stroke();
      pen.setLineDash([]);
      const text = step.label.length > 18 ? `${step.label.slice(0, 17)}…` : step.label;
      if (at > free && at + pen.measureText(text).width < this.right) {
        pen.fillStyle = color("quiet");
        pen.fillText(text, at, this.margin.top - 6);
        free = at + pen.measureText(text).width + 10;
      }
    }
  }

  pointer(pen) {
    const at = this.view.cursor;
    if (at === null || at < this.fromX || at > this.toX) return;
    pen.strokeStyle = color("ink");
    pen.beginPath();
    pen.moveTo(Math.round(this.x(at)) + 0.5, this.margin.top);
    pen.lineTo(Math.round(this.x(at)) + 0.5, this.bottom);
    pen.stroke();
  }

  /** A band between the lowest and highest values, filled down to the axis as strongly as `fill` says. */
  band(pen, at, low, high, hue, fill) {
    const first = Math.max(0, lastNotAbove(at, this.fromX) - 1);
    const last = Math.min(at.length - 1, lastNotAbove(at, this.toX) + 1);
    const end = (index) => (index + 1 < at.length ? at[index + 1] : this.run.events);
    const trace = (values, from, to, step) => {
      for (let index = from; step > 0 ? index <= to : index >= to; index += step) {
        const sides = [this.x(at[index]), this.x(end(index))];
        if (step < 0) sides.reverse();
        sides.forEach((side) => pen.lineTo(side, this.y(values[index])));
      }
    };
    const hueNow = color(hue);
    pen.fillStyle = hueNow;
    pen.beginPath();
    trace(high, first, last, 1);
    trace(low, last, first, -1);
    pen.closePath();
    pen.globalAlpha = 0.8;
    pen.fill();
    if (fill > 0) {
      pen.beginPath();
      pen.moveTo(this.x(at[first]), this.bottom);
      trace(low, first, last, 1);
      pen.lineTo(this.x(end(last)), this.bottom);
      pen.globalAlpha = fill;
      pen.fill();
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = hueNow;
    pen.lineWidth = 1.2;
    pen.beginPath();
    trace(high, first, last, 1);
    pen.stroke();
    pen.lineWidth = 1;
  }
}

class Timeline extends OverTime {
  constructor(parent, run, view, shown) {
    super(parent, `Memory over time of ${run.name}. Arrow keys move the cursor, plus and minus change the window, Enter shows the segments nearest to it.`, 340, run, view);
    this.shown = shown;
  }

  draw(pen) {
    const { run, view } = this;
    const keys = seriesOf(run).filter(({ key }) => this.shown.has(key));
    let top = highest(keys.flatMap(({ key }) => [highest(run.series[key].high)]));
    if (this.shown.has("limit") && run.limit > 0) top = Math.max(top, run.limit);
    this.range(view.from, view.to, 0, Math.max(top * 1.04, 1));
    this.across(byteTicks(0, this.toY), tickBytes);
    this.events(pen);
    this.clipped(() => {
      for (const { key, hue, fill } of keys) {
        const { low, high } = run.series[key];
        this.band(pen, run.series.at, low, high, hue, fill);
      }
      if (this.shown.has("limit") && run.limit > 0) this.limit(pen, run.limit);
      run.markers.filter(({ kind }) => this.shown.has(kind)).forEach((marker) => this.marker(pen, marker));
      run.moments.forEach((moment) => this.moment(pen, moment));
    });
    this.pointer(pen);
  }

  limit(pen, limit) {
    pen.strokeStyle = color("limit");
    pen.setLineDash([6, 4]);
    pen.beginPath();
    pen.moveTo(this.margin.left, this.y(limit));
    pen.lineTo(this.right, this.y(limit));
    pen.stroke();
    pen.setLineDash([]);
  }

  marker(pen, { at, kind }) {
    const { hue, row } = MARKERS[kind];
    const [x, y] = [this.x(at), row === 0 ? this.margin.top + 8 : this.bottom - 6];
    pen.fillStyle = color(hue);
    pen.beginPath();
    if (kind === "oom") {
      pen.moveTo(x - 6, y - 7);
      pen.lineTo(x + 6, y - 7);
      pen.lineTo(x, y + 5);
    } else if (row === 0) {
      pen.moveTo(x, y - 5);
      pen.lineTo(x + 5, y);
      pen.lineTo(x, y + 5);
      pen.lineTo(x - 5, y);
    } else {
      pen.moveTo(x - 4, y + 4);
      pen.lineTo(x + 4, y + 4);
      pen.lineTo(x, y - 4);
    }
    pen.closePath();
    pen.fill();
  }

  /** A small mark below where the segments can be looked at. */
  moment(pen, moment) {
    const chosen = moment === this.view.moment;
    pen.fillStyle = color(chosen ? "accent" : "reserved");
    const x = this.x(moment.at);
    pen.fillRect(x - (chosen ? 2 : 1), this.bottom - (chosen ? 14 : 6), chosen ? 4 : 2, chosen ? 14 : 6);
  }
}

class Lines extends OverTime {
  /** Lines of [0, 1] over events; `lines` are { at, values, name, hue }. */
  constructor(parent, label, run, view, lines) {
    super(parent, label, 200, run, view);
    this.lines = lines;
  }

  draw(pen) {
    this.range(this.view.from, this.view.to, 0, 1);
    this.across([0, 0.25, 0.5, 0.75, 1], (tick) => `${tick * 100} %`);
    this.events(pen);
    this.clipped(() => {
      for (const { at, values, hue } of this.lines) {
        pen.strokeStyle = color(hue);
        pen.lineWidth = 1.6;
        pen.beginPath();
        values.forEach((value, index) => pen.lineTo(this.x(at[index]), this.y(value)));
        pen.stroke();
        pen.lineWidth = 1;
      }
    });
    this.pointer(pen);
  }
}

/** What is reserved in several runs of one input. */
class Comparison extends OverTime {
  constructor(parent, runs, view, key) {
    super(parent, `What is ${key} in each configuration, over time`, 240, runs[0], view);
    Object.assign(this, { runs, key });
  }

  draw(pen) {
    const top = highest(this.runs.map((run) => highest(run.series[this.key].high)));
    this.range(this.view.from, this.view.to, 0, Math.max(top * 1.05, 1));
    this.across(byteTicks(0, this.toY, 5), tickBytes);
    this.events(pen);
    this.clipped(() => {
      this.runs.forEach((run, index) => {
        const { low, high } = run.series[this.key];
        this.band(pen, run.series.at, low, high, `c${index % 8}`, 0);
      });
    });
    this.pointer(pen);
  }
}
