// Canvases with axes, and bars.

/** Steps of an axis of bytes: about `most` of them up to the highest value, whole in their unit. */
function byteTicks(low, high, most = 6) {
  let unit = 1;
  while (high / unit >= 1024) unit *= 1024;
  return numberTicks(low / unit, high / unit, most).map((tick) => tick * unit);
}

/** Steps of 1, 2 or 5 times a power of ten. */
function numberTicks(low, high, most = 6) {
  const rough = Math.max((high - low) / most, Number.MIN_VALUE);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const ticks = [];
  for (let at = Math.ceil(low / step); at * step <= high; at += 1) ticks.push(at * step);
  return ticks;
}

function tickBytes(value) {
  return bytes(value, 1).replace(/\.0 /, " ");
}

/** A canvas that keeps its size and sharpness; whoever derives from it draws in `draw`. */
class Plot {
  constructor(parent, label, height, margins = {}) {
    this.margin = { left: 74, right: 14, top: 18, bottom: 30, ...margins };
    this.height = height;
    this.canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": label });
    parent.append(this.canvas);
    plots.add(this);
    new ResizeObserver(() => this.paint()).observe(this.canvas.parentElement);
  }

  paint() {
    const width = this.canvas.parentElement.clientWidth;
    if (width === 0) return;
    const scale = window.devicePixelRatio || 1;
    this.width = width;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(this.height * scale);
    this.canvas.style.height = `${this.height}px`;
    this.pen = this.canvas.getContext("2d");
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.pen.clearRect(0, 0, width, this.height);
    this.pen.font = `12px system-ui, "Segoe UI", "DejaVu Sans", sans-serif`;
    this.draw(this.pen);
  }

  get right() { return this.width - this.margin.right; }

  get bottom() { return this.height - this.margin.bottom; }

  /** Sets the ranges that `x` and `y` translate. */
  range(fromX, toX, fromY, toY) {
    Object.assign(this, { fromX, toX: Math.max(toX, fromX + 1), fromY, toY: Math.max(toY, fromY + Number.MIN_VALUE) });
  }

  x(value) {
    return this.margin.left + ((value - this.fromX) / (this.toX - this.fromX)) * (this.right - this.margin.left);
  }

  y(value) {
    return this.bottom - ((value - this.fromY) / (this.toY - this.fromY)) * (this.bottom - this.margin.top);
  }

  /** What lies at a place of the screen. */
  valueAt(place) {
    return this.fromX + ((place - this.margin.left) / (this.right - this.margin.left)) * (this.toX - this.fromX);
  }

  /** Lines across, with their numbers at the left. */
  across(ticks, show) {
    const { pen } = this;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of ticks) {
      const at = Math.round(this.y(tick)) + 0.5;
      pen.strokeStyle = color("grid");
      pen.beginPath();
      pen.moveTo(this.margin.left, at);
      pen.lineTo(this.right, at);
      pen.stroke();
      pen.fillStyle = color("quiet");
      pen.fillText(show(tick), this.margin.left - 8, at);
    }
  }

  /** Numbers below. */
  below(ticks, show) {
    const { pen } = this;
    pen.textAlign = "center";
    pen.textBaseline = "top";
    pen.fillStyle = color("quiet");
    for (const tick of ticks) pen.fillText(show(tick), this.x(tick), this.bottom + 8);
  }

  /** Keeps what is drawn by `inside` between the axes. */
  clipped(inside) {
    const { pen, margin } = this;
    pen.save();
    pen.beginPath();
    pen.rect(margin.left, 0, this.right - margin.left, this.bottom);
    pen.clip();
    inside(pen);
    pen.restore();
  }
}

/** A legend of colors and names. */
function legend(entries) {
  return el("div", { class: "legend" }, ...entries.map(({ name, hue }) =>
    el("span", {}, el("i", { style: `background: var(--${hue})` }), name)));
}

/** Bars in groups, each a stack of kinds: `groups` are { label, parts }, `kinds` are { name, hue }. */
class Bars extends Plot {
  constructor(parent, label, groups, kinds, show, height = 220) {
    super(parent, label, height, { bottom: 44 });
    Object.assign(this, { groups, kinds, show, chosen: -1 });
    this.readout = el("p", { class: "readout quiet", "aria-live": "polite" });
    parent.append(legend(kinds), this.readout);
    this.canvas.addEventListener("mousemove", (event) => this.choose(Math.floor(this.valueAt(event.offsetX))));
    this.canvas.addEventListener("mouseleave", () => this.choose(-1));
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      this.choose(Math.min(Math.max(this.chosen + step, 0), this.groups.length - 1));
    });
    this.tell();
  }

  choose(index) {
    const chosen = index >= 0 && index < this.groups.length ? index : -1;
    if (chosen === this.chosen) return;
    this.chosen = chosen;
    this.tell();
    this.paint();
  }

  tell() {
    const group = this.groups[this.chosen];
    if (!group) {
      this.readout.textContent = "Point at a bar, or use the arrow keys, for its numbers.";
      return;
    }
    const parts = this.kinds.map((kind, index) => `${kind.name} ${this.show(group.parts[index])}`);
    this.readout.textContent = `${group.label}: ${parts.join(", ")}`;
  }

  draw(pen) {
    const sums = this.groups.map((group) => group.parts.reduce((sum, part) => sum + part, 0));
    this.range(0, this.groups.length, 0, Math.max(highest(sums) * 1.05, 1));
    const ticks = this.show === bytes ? byteTicks(0, this.toY, 5) : numberTicks(0, this.toY, 5).filter(Number.isInteger);
    this.across(ticks, this.show === bytes ? tickBytes : number);
    const wide = (this.right - this.margin.left) / this.groups.length;
    const gap = Math.min(wide * 0.2, 6);
    this.groups.forEach((group, index) => {
      let sum = 0;
      group.parts.forEach((part, kind) => {
        if (part === 0) return;
        pen.fillStyle = color(this.kinds[kind].hue);
        pen.globalAlpha = this.chosen === -1 || this.chosen === index ? 1 : 0.45;
        const top = this.y(sum + part);
        pen.fillRect(this.x(index) + gap / 2, top, Math.max(wide - gap, 1), Math.max(this.y(sum) - top, 1));
        sum += part;
      });
      pen.globalAlpha = 1;
    });
    this.labels(pen, wide);
  }

  /** Names of the groups below, as many as fit. */
  labels(pen, wide) {
    pen.fillStyle = color("quiet");
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const widest = highest(this.groups.map((group) => pen.measureText(group.label).width)) + 10;
    const every = Math.max(1, Math.ceil(Math.min(widest, 120) / wide));
    for (let index = 0; index < this.groups.length; index += every) {
      let text = this.groups[index].label;
      const room = wide * every - 8;
      while (text.length > 1 && pen.measureText(text).width > room) text = `${text.slice(0, -2)}…`;
      const half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(Math.max(this.x(index + 0.5), half + 2), this.width - half - 2), this.bottom + 8);
    }
  }
}
