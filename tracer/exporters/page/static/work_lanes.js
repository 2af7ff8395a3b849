// What ran on the device, above memory and on its axis: a lane for each stream. Closer than a pixel, a span is as wide as one.

const WORK_SORTS = ["computes", "collectives", "copies"], LANE_HEIGHT = 16;

class WorkLanes {
  constructor(timeline, lanes) {
    Object.assign(this, { timeline, lanes });
    this.canvas = el("canvas", { role: "img", "aria-label": `What ran on the device over time: ${lanes.map((lane) => lane.name).join(", ")}. The tables below have the sums.` });
    this.tip = el("div", { class: "tip", hidden: true });
    this.key = el("p", { class: "key quiet lane-key" }, WORK_SORTS.map((sort) => el("span", {}, el("span", { class: `swatch ${sort}`, "aria-hidden": "true" }), sort)), lanes.map((lane, row) => el("span", {}, `${row + 1}: ${lane.name}`)));
    this.element = el("div", { class: "work" }, this.key, this.canvas, this.tip);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
  }

  async unpack() {
    this.columns = await Promise.all(this.lanes.map(async (lane) => {
      const [start, long, sort, label, count, busy] = await unpack(lane.spans);
      return { start, end: start.map((from, i) => from + long[i]), sort, label, count, busy };
    }));
  }

  draw() {
    if (!this.columns || !this.element.isConnected) return;
    const { timeline, canvas } = this, { plot } = timeline, scale = Math.min(2, window.devicePixelRatio || 1), width = plot.element.clientWidth, height = this.lanes.length * LANE_HEIGHT;
    Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"), colors = WORK_SORTS.map((sort) => cssColor(`--${sort}`)), { area } = plot;
    pen.scale(scale, scale);
    this.columns.forEach(({ start, end, sort }, row) => {
      const top = row * LANE_HEIGHT;
      pen.fillStyle = cssColor("--tile");
      pen.fillRect(area.left, top, area.width, LANE_HEIGHT - 2);
      for (let i = 0; i < start.length; i++) {
        const left = Math.max(area.left, plot.x(timeline.toX(start[i]))), right = Math.min(area.right, plot.x(timeline.toX(end[i])));
        if (right < area.left || left > area.right) continue;
        pen.fillStyle = colors[sort[i]];
        pen.fillRect(left, top, Math.max(0.6, right - left), LANE_HEIGHT - 2);
      }
      pen.fillStyle = cssColor("--quiet");
      pen.font = `11px ${FONT}`;
      pen.textAlign = "right";
      pen.fillText(String(row + 1), area.left - 8, top + LANE_HEIGHT - 5);
    });
  }

  // The span at a point, or the nearest within three pixels.
  point(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, row = Math.min(this.lanes.length - 1, Math.max(0, Math.floor((event.clientY - box.top) / LANE_HEIGHT)));
    const { plot } = this.timeline, { start, end, sort, label, count, busy } = this.columns[row], at = (time) => plot.x(this.timeline.toX(time));
    let best = -1, least = 3;
    for (let i = 0; i < start.length; i++) {
      const away = Math.max(0, at(start[i]) - x, x - at(end[i]));
      if (away < least) [best, least] = [i, away];
    }
    this.tip.hidden = best < 0;
    if (best < 0) return;
    const name = this.lanes[row].labels[label[best]];
    this.tip.replaceChildren(el("p", {}, count[best] > 1 ? `${grouped(count[best])} of ${WORK_SORTS[sort[best]] === "computes" ? "kernels" : WORK_SORTS[sort[best]]}, busy for ${formatSpan(busy[best])} of ${formatSpan(end[best] - start[best])}` : `${WORK_SORTS[sort[best]]} for ${formatSpan(busy[best])}`),
      el("p", { class: "line" }, count[best] > 1 ? `the longest: ${name}` : name), el("p", { class: "line quiet" }, `from ${(start[best] / this.timeline.unit[1]).toFixed(3)} ${this.timeline.unit[0]}, ${this.lanes[row].name}`));
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, box.width - this.tip.offsetWidth))}px`;
  }
}
