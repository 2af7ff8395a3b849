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
    const mine = this.ofLine(), at = mine.indexOf(block), button = (label, title, onclick) => el("button", { type: "button", class: "button", title, onclick }, label);
    const others = mine.length > 1 ? [el("p", { class: "line quiet" }, `Block ${grouped(at + 1)} of ${grouped(mine.length)} of this line, ${formatBytes(mine.reduce((sum, one) => sum + moments.bytes[one], 0))} together over the recording.`)] : [];
    this.element.replaceChildren(
      el("div", { class: "tools" }, mine.length > 1 ? [button("\u2190 Before", "The block before of the same line; Shift N", () => this.step(-1)), button("Next \u2192", "The next block of the same line; N", () => this.step(1))] : [],
        el("button", { type: "button", class: "button", "aria-label": "Close the block", onclick: () => this.hide() }, "Close")),
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
