// The segments at one moment: every block in its place, one row of addresses below the other.

const STATES = ["free", "allocated", "waiting for streams", "taken for driver calls"];
const FIELDS = 5;
const ROW = 18;
const MARGIN = 4;

/** The blocks of a moment as objects, in the order of their addresses. */
function blocksOf(moment) {
  const blocks = [];
  for (const segment of moment.segments) {
    let at = segment.address;
    for (let index = 0; index < segment.blocks.length; index += FIELDS) {
      const [size, requested, state, stream, by] = segment.blocks.slice(index, index + FIELDS);
      blocks.push({ address: at, size, requested, state, stream, by, segment });
      at += size;
    }
  }
  return blocks;
}

/** Who made a block, for people. */
function maker(run, by) {
  if (by < 0) return "not known";
  if (run.holders) return run.holders[by] ?? "not known";
  return `event ${number(by + 1)}, in ${stepOf(run, by)}`;
}

class SegmentMap extends Plot {
  constructor(parent, run, tell) {
    super(parent, "Map of the segments. Arrow keys go from block to block and from row to row.", 100);
    Object.assign(this, { run, tell, chosen: -1, rowBytes: 0, hues: "stream" });
    this.canvas.addEventListener("mousemove", (event) => this.choose(this.blockAt(event.offsetX, event.offsetY)));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  show(moment) {
    this.moment = moment;
    this.blocks = blocksOf(moment);
    this.chosen = -1;
    this.paint();
    this.tell(null);
  }

  /** Rows of so many bytes; 0 chooses them so that about 34 rows come out. */
  zoom(rowBytes) {
    this.rowBytes = rowBytes;
    this.paint();
  }

  /** What the colors of allocated blocks stand for. */
  paintBy(hues) {
    this.hues = hues;
    this.paint();
  }

  bytesInRow() {
    if (this.rowBytes > 0) return this.rowBytes;
    let size = 1 << 20;
    while (size * 34 < this.moment.reserved) size *= 2;
    return size;
  }

  /** Puts each block at its place: segments follow each other with a gap, and break at the end of a row. */
  layOut() {
    const wide = this.width - 2 * MARGIN;
    const scale = wide / this.bytesInRow();
    let x = 0;
    let row = 0;
    this.places = [];
    let segment = null;
    this.blocks.forEach((block, index) => {
      if (segment !== null && block.segment !== segment) {
        x += 4;
        // A segment that would begin in the last pixels begins in the next row.
        if (x > wide - 4) { x = 0; row += 1; }
      }
      segment = block.segment;
      let left = block.size * scale;
      for (;;) {
        const part = Math.min(left, wide - x);
        this.places.push({ index, x: MARGIN + x, row, width: part });
        x += part;
        left -= part;
        if (left <= 0.0001) break;
        x = 0;
        row += 1;
      }
      if (x >= wide - 0.0001) { x = 0; row += 1; }
    });
    this.rows = row + 1;
    this.height = this.rows * ROW + 2 * MARGIN;
  }

  paint() {
    const width = this.canvas.parentElement.clientWidth;
    if (!this.moment || width === 0) return;
    this.width = width;
    this.layOut();
    super.paint();
  }

  fill(block) {
    if (block.state === 0) return color("free");
    if (block.state === 2) return color("waiting");
    if (block.state === 3) return color("busy");
    return color(`c${this.hue(block)}`);
  }

  /** The number of an allocated block's color. */
  hue(block) {
    if (this.hues === "size") return Math.floor(Math.log2(Math.max(block.size, 1))) % 8;
    if (this.hues === "stream" || block.by < 0) return block.stream % 8;
    return (this.run.kind === "trace" ? stepNumber(this.run, block.by) : block.by) % 8;
  }

  draw(pen) {
    const fills = new Map();
    for (const place of this.places) {
      const block = this.blocks[place.index];
      const key = block.state === 1 ? `c${this.hue(block)}` : block.state;
      if (!fills.has(key)) fills.set(key, this.fill(block));
      const y = MARGIN + place.row * ROW;
      pen.fillStyle = fills.get(key);
      pen.fillRect(place.x, y, Math.max(place.width, 0.6), ROW - 4);
      if (place.width > 3) {
        pen.strokeStyle = block.state === 0 ? color("free-edge") : color("card");
        pen.strokeRect(place.x + 0.5, y + 0.5, place.width - 1, ROW - 5);
      }
    }
    pen.strokeStyle = color("ink");
    pen.lineWidth = 2;
    for (const place of this.places.filter(({ index }) => index === this.chosen)) {
      pen.strokeRect(place.x, MARGIN + place.row * ROW - 1, Math.max(place.width, 2), ROW - 2);
    }
    pen.lineWidth = 1;
  }

  /** The index of the block at a place of the screen, or -1. */
  blockAt(x, y) {
    const row = Math.floor((y - MARGIN) / ROW);
    const inRow = this.places.filter((place) => place.row === row);
    const found = inRow.find((place) => x >= place.x && x < place.x + Math.max(place.width, 1));
    return found ? found.index : -1;
  }

  choose(index) {
    if (index === this.chosen) return;
    this.chosen = index;
    this.tell(index < 0 ? null : this.blocks[index]);
    this.paint();
  }

  key(event) {
    const place = this.places.find(({ index }) => index === this.chosen);
    const middle = place ? place.x + place.width / 2 : MARGIN + 1;
    const row = place ? place.row : 0;
    const actions = {
      ArrowLeft: () => Math.max(this.chosen - 1, 0),
      ArrowRight: () => Math.min(this.chosen + 1, this.blocks.length - 1),
      ArrowUp: () => this.blockAt(middle, MARGIN + (row - 1) * ROW + 1),
      ArrowDown: () => this.blockAt(middle, MARGIN + (row + 1) * ROW + 1),
      Home: () => 0,
      End: () => this.blocks.length - 1,
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    const index = actions[event.key]();
    if (index >= 0) this.choose(index);
  }
}

/** What is known of a block, as a list. */
function describe(run, block) {
  if (!block) {
    return el("p", { class: "quiet" }, "Point at a block, or focus the map and use the arrow keys.");
  }
  const lines = [
    ["state", STATES[block.state]],
    ["size", `${bytes(block.size)} (${number(block.size)} B)`],
    ["asked for", block.state === 1 || block.state === 2 ? `${bytes(block.requested)} (${number(block.requested)} B)` : "-"],
    ["address", address(block.address)],
    ["stream", String(block.stream)],
    ["made by", block.state === 1 ? maker(run, block.by) : "-"],
    ["segment", `${address(block.segment.address)}, ${bytes(block.segment.size)}`],
    ["pool", `${block.segment.pool}, ${block.segment.class}${block.segment.expandable ? ", grows by chunks" : ", fixed"}`],
  ];
  return el("dl", {}, ...lines.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]));
}

/** The blocks that hold most, taken together by what they have in common; at most `most` groups. */
function holders(run, moment, most = 15) {
  const groups = new Map();
  for (const block of blocksOf(moment)) {
    if (block.state !== 1) continue;
    const who = run.holders ? maker(run, block.by) : block.by < 0 ? "not known" : `made in ${stepOf(run, block.by)}`;
    const key = `${block.requested}|${block.stream}|${block.segment.pool}|${who}`;
    const group = groups.get(key) ?? { ...block, who, count: 0, sum: 0 };
    group.count += 1;
    group.sum += block.size;
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.sum - a.sum).slice(0, most);
}

/** Live and free blocks of a moment by powers of two of their size: bytes. */
function sizesAt(moment) {
  const classes = [];
  for (const block of blocksOf(moment)) {
    const index = Math.max(0, Math.floor(Math.log2(Math.max(block.size, 1))) - 9);
    while (classes.length <= index) classes.push([0, 0]);
    classes[index][block.state === 0 ? 1 : 0] += block.size;
  }
  return classes.map((parts, index) => ({ label: bytes(2 ** (index + 9), 0), parts }));
}
