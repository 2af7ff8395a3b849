// What each rank held over time, on one axis: the worst one drawn strong, and what it has more than a typical one filled.
// Each recording begins at 0: their clocks are those of different machines.

class RanksOverTime {
  constructor(pages, names, open) {
    Object.assign(this, { pages, names, open, cursor: null });
    this.plot = new Plot();
    this.rule = el("div", { class: "rule", hidden: true });
    this.status = el("p", { class: "readout quiet", role: "status" });
    this.frame = el("div", { class: "frame", tabindex: "0", role: "group", "aria-label": "Memory of the ranks over time. The arrow keys read it." }, this.plot.element, this.rule);
    this.key = el("p", { class: "key lane-key" });
    this.element = el("div", {}, el("h3", {}, "Over time, side by side"), this.key, this.frame, this.status);
    this.frame.addEventListener("pointermove", (event) => this.read(this.plot.value(event.clientX - this.plot.canvas.getBoundingClientRect().left)));
    this.frame.addEventListener("pointerleave", () => this.read(null));
    this.frame.addEventListener("keydown", (event) => this.step(event));
  }

  // The level of each page: what was allocated where that is known, else the sum of its layers.
  async unpack() {
    this.curves = await Promise.all(this.pages.map(async (page, index) => {
      const { lines, time, values } = await unpackTimeline(page.timeline), line = lines.find(({ name }) => name === "allocated");
      const level = line ? line.values : (cumulate(values, time.length).pop() ?? new Float64Array(0)), times = line ? line.time : time;
      return { name: page.device, page, isWorst: page.device === this.names.worst, isTypical: page.device === this.names.typical, color: RANK_COLORS[index % RANK_COLORS.length], times, level };
    }));
    this.byTime = this.pages.every((page) => page.axis === "time");
    const last = this.curves.reduce((most, { times }) => Math.max(most, times[times.length - 1] ?? 0), 0);
    this.unit = this.byTime ? timeUnit(last) : ["entry", 1];
    this.last = last / this.unit[1] || 1;
    this.top = 1.08 * this.curves.reduce((most, { level }) => level.reduce((high, bytes) => Math.max(high, bytes), most), 1);
    this.key.replaceChildren(...this.curves.map((curve) => el("button", { type: "button", class: "chip", title: `Open ${curve.name}`, onclick: () => this.open(curve.name) },
      el("span", { class: "swatch", style: { backgroundColor: curve.color }, "aria-hidden": "true" }), el("span", {}, curve.name), el("span", { class: "quiet" }, [curve.isWorst ? "worst" : "", curve.isTypical ? "typical" : ""].filter((word) => word).join(", ")))));
  }

  draw() {
    if (!this.curves || !this.plot.element.isConnected) return;
    const { plot } = this;
    plot.begin([0, this.last * 1.004], [0, this.top], 0);
    plot.byteAxis();
    plot.inside((pen) => {
      this.fillDifference(pen);
      for (const curve of [...this.curves].sort((a, b) => a.isWorst - b.isWorst)) {
        const x = curve.times.map((time) => time / this.unit[1]), rows = steps(curve.level, rowsInView(x, [curve.level], 0, this.last, plot.area.width));
        pen.beginPath();
        plot.stairs(pen, (row) => plot.x(x[row]), (row) => plot.y(curve.level[row]), rows, plot.x(x[x.length - 1] ?? 0));
        Object.assign(pen, { strokeStyle: curve.color, lineWidth: curve.isWorst ? 2.5 : 1.2 });
        pen.stroke();
      }
    });
    plot.xAxis({ title: this.byTime ? `time since each recording began (${this.unit[0]})` : "entry of each recording", whole: !this.byTime });
    this.read(this.cursor);
  }

  // Between the worst and a typical one, wherever the worst has more.
  fillDifference(pen) {
    const worst = this.curves.find((curve) => curve.isWorst), typical = this.curves.find((curve) => curve.isTypical), { plot } = this;
    if (!worst || !typical || worst === typical) return;
    pen.fillStyle = cssColor("--fill");
    for (let x = plot.area.left; x < plot.area.right; x++) {
      const [more, less] = [worst, typical].map((curve) => this.levelAt(curve, plot.value(x)));
      if (more !== null && less !== null && more > less) pen.fillRect(x, plot.y(more), 1, plot.y(less) - plot.y(more));
    }
  }

  // What a rank held; null before and behind its recording.
  levelAt({ times, level }, x) {
    const time = x * this.unit[1], row = upperBound(times, time) - 1;
    return row < 0 || time > times[times.length - 1] ? null : level[row];
  }

  read(x) {
    this.cursor = x === null || x < 0 || x > this.last ? null : x;
    this.rule.hidden = this.cursor === null;
    if (this.cursor === null) {
      this.status.textContent = "Pointing at it, or the arrow keys, read what each rank held.";
      return;
    }
    this.rule.style.left = `${this.plot.x(x)}px`;
    const found = this.curves.map((curve) => [curve.name, this.levelAt(curve, x)]).filter(([, bytes]) => bytes !== null).sort((a, b) => b[1] - a[1]);
    this.status.textContent = `${this.byTime ? `${x.toFixed(3)} ${this.unit[0]}` : `entry ${grouped(Math.round(x))}`}: ${found.map(([name, bytes]) => `${name} ${formatBytes(bytes)}`).join(", ") || "no rank was recorded then"}.`;
  }

  step(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.read(Math.min(this.last, Math.max(0, (this.cursor ?? 0) + (by * this.last * (event.shiftKey ? 20 : 1)) / (this.plot.area.width || 500))));
  }
}
