// The block that is kept below the drawing, with its whole stack, and the way to others of its line.

class KeptBlock {
  constructor(timeline) {
    this.timeline = timeline;
    this.block = -1;
    this.element = el("div", { class: "kept", role: "status", hidden: true });
  }

  hide() {
    this.block = -1;
    this.element.hidden = true;
  }

  // The block that is pointed at, if there is one.
  keep() {
    const { showsLanes, pointed, lanes } = this.timeline;
    this.show(showsLanes && pointed ? lanes.at(this.timeline, ...pointed) : -1);
  }

  show(block) {
    if (block < 0) {
      this.hide();
      return;
    }
    this.block = block;
    this.element.hidden = false;
    const { lanes } = this.timeline, { moments } = lanes, frames = wholeStack(framesOf(moments.stacks, moments.group[block]));
    const mine = this.ofLine(), at = mine.indexOf(block);
    const others = mine.length > 1 ? [el("p", { class: "line quiet" }, `Block ${grouped(at + 1)} of ${grouped(mine.length)} of this line, ${formatBytes(mine.reduce((sum, one) => sum + moments.bytes[one], 0))} together over the recording.`)] : [];
    this.element.replaceChildren(
      el("div", { class: "tools" }, mine.length > 1 ? [button("\u2190 Before", "The block before of the same line; Shift N", () => this.step(-1)), button("Next \u2192", "The next block of the same line; N", () => this.step(1))] : [],
        button("Close", null, () => this.hide(), "Close the block")),
      ...lanes.words(this.timeline, block), ...others, ...(frames.length ? [el("div", { class: "stack" }, frames)] : [el("p", { class: "line quiet" }, "No stack was recorded with it.")]));
  }

  // All blocks of the line that made this one, in the order in which they were made; without a line, of its group.
  ofLine() {
    const { moments } = this.timeline.lanes, own = moments.groups[moments.group[this.block]];
    const isMine = moments.groups.map((group) => (own.file ? group.file === own.file && group.line === own.line : group.group === own.group));
    return Array.from(moments.group.keys()).filter((block) => isMine[moments.group[block]]);
  }

  // To another block of the line: its moment is chosen, and it is pointed at where the drawing has it.
  step(by) {
    if (this.block < 0) return;
    const mine = this.ofLine(), { timeline } = this, at = Math.min(mine.length - 1, Math.max(0, mine.indexOf(this.block) + by)), row = timeline.lanes.moments.first[mine[at]];
    timeline.show(row);
    timeline.chosen.set({ row });
    const x = timeline.plot.x(timeline.x[row]), place = timeline.lanes.over(timeline, x).find((one) => one.block === mine[at]);
    timeline.pointed = place ? [x, place.y] : null;
    timeline.setCursor(place ? row : null);
    this.show(mine[at]);
  }
}

// A stretch of time, or a part of the drawing, measured: how long, what came and went, and what its blocks sum to.

const measured = (timeline, from, to) => {
  const { columns, moments, x, totals } = timeline, [first, last] = [from, to].sort((a, b) => a - b);
  const events = columns.number[last] - columns.number[first], span = columns.time[last] - columns.time[first], [unit, one] = timeUnit(span / 2 + 1);
  let most = first;
  for (let row = first; row <= last; row++) if (totals[row] > totals[most]) most = row;
  const parts = [timeline.data.axis === "time" ? `${(span / one).toFixed(3)} ${unit}` : null, `${grouped(events)} ${events === 1 ? "event" : "events"}`];
  if (moments) {
    const rows = moments.between(first, last), sum = (what) => rows.reduce((bytes, row) => bytes + row[what], 0);
    parts.push(`${formatBytes(sum("came"))} came and stayed, ${formatBytes(sum("went"))} went, ${signed(sum("came") - sum("went"))}`);
  }
  return `${parts.filter((part) => part).join(", ")}; at most ${formatBytes(totals[most])}, ${timeline.whenText(most)}.`;
};

// The blocks that are drawn in a frame, each counted whole.
const framedBlocks = (timeline, left, right, top, bottom) => {
  const { lanes, plot } = timeline, { area, scale } = plot, found = new Set();
  const column = (x) => Math.min(lanes.width - 1, Math.max(0, Math.floor((x - area.left) * scale))), line = (y) => Math.min(lanes.height - 1, Math.max(0, Math.floor((y - area.top) * scale)));
  for (let x = column(left); x <= column(right); x++) for (let y = line(top); y <= line(bottom); y++) found.add(lanes.ids[x * lanes.height + y]);
  const blocks = [...found].filter((block) => block >= 0);
  return `${blocksText(blocks.length)} in the frame, ${formatBytes(blocks.reduce((sum, block) => sum + lanes.moments.bytes[block], 0))} together.`;
};

// What a drag from one point of the plot to another measures; the two moments are compared below.
const measure = (timeline, [x0, y0], [x1, y1], isTall) => {
  const from = timeline.rowAtPixel(Math.min(x0, x1)), to = timeline.rowAtPixel(Math.max(x0, x1));
  if (from === null || to === null) return;
  const framed = timeline.showsLanes && isTall ? `${framedBlocks(timeline, Math.min(x0, x1), Math.max(x0, x1), Math.min(y0, y1), Math.max(y0, y1))} ` : "";
  timeline.setCursor(null);
  if (timeline.moments) timeline.chosen.set({ row: to, other: from });
  timeline.parts.readout.textContent = `${framed}${measured(timeline, from, to)}`;
};
