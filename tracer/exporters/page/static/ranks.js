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

// The ranks of a job beside each other: a bar for each, as high as its peak, of the colours of what that was.

const RANK_SIGNS = { ran_out: ["\u2715", "ran out of memory"], is_odd: ["\u25b2", "odd one out"], unreadable: ["?", "not readable"], missing: ["\u2013", "no recording"] };
// As high as the axis in page.css.
const RANK_HEIGHT = 168;
const rankSigns = (rank) => Object.keys(RANK_SIGNS).filter((sign) => rank[sign] || rank.state === sign);

class RankSection {
  constructor(ranks, open, pages, layers) {
    Object.assign(this, { ranks, open, layers });
    const typical = ranks.find((rank) => rank.is_typical), worstOfAll = ranks.find((rank) => rank.is_worst);
    this.overTime = pages.length > 1 ? new RanksOverTime(pages, { worst: worstOfAll?.name, typical: typical?.name }, open) : null;
    this.most = ranks.reduce((most, rank) => Math.max(most, rank.bytes), 0);
    this.status = el("div", { class: "rank-status", role: "status" });
    this.bars = ranks.map((rank, index) => this.bar(rank, index));
    const columns = el("div", { class: "rank-bars", role: "group", "aria-label": "Peak by rank. The arrow keys go from rank to rank, Enter opens the page of one that has one." }, this.bars);
    columns.addEventListener("keydown", (event) => this.key(event));
    const worst = ranks.reduce((best, rank, index) => ((rank.ran_out - ranks[best].ran_out || rank.bytes - ranks[best].bytes) > 0 ? index : best), 0);
    section("ranks", "Peak by rank", this.key_(), el("div", { class: "rank-plot" },
      el("div", { class: "rank-axis quiet small", "aria-hidden": "true" }, el("span", {}, formatBytes(this.most)), el("span", {}, formatBytes(this.most / 2)), el("span", {}, "0")), columns), this.status, this.overTime?.element);
    this.choose(worst);
    // Of more ranks than there is room for, the worst is in sight.
    columns.scrollLeft = this.bars[worst].offsetLeft - columns.offsetLeft - columns.clientWidth / 2;
  }

  async drawOverTime() {
    await this.overTime?.unpack();
    this.overTime?.draw();
  }

  bar(rank, index) {
    const signs = rankSigns(rank), height = this.most ? (RANK_HEIGHT * rank.bytes) / this.most : 0;
    const element = el("button", { type: "button", class: `rank-bar${rank.has_page ? " has-page" : ""}`, tabindex: "-1", "aria-label": this.words(rank), title: this.words(rank) },
      el("span", { class: "rank-sign", "aria-hidden": "true" }, signs.map((sign) => RANK_SIGNS[sign][0]).join("")),
      el("span", { class: `rank-level ${rank.state}`, style: { height: `${height}px` }, "aria-hidden": "true" },
        [...rank.kinds].filter((kind) => kind.bytes > 0).map((kind) => {
          const part = swatch(kind.name, "rank-part");
          part.style.flexGrow = String(kind.bytes);
          return part;
        })),
      el("span", { class: "rank-number quiet", "aria-hidden": "true" }, this.numbered(rank, index) ? String(rank.rank ?? index + 1) : ""));
    element.addEventListener("click", () => this.choose(index, true));
    element.addEventListener("focus", () => this.choose(index));
    element.addEventListener("pointerenter", () => this.say(rank));
    element.addEventListener("pointerleave", () => this.say(this.ranks[this.chosen]));
    return element;
  }

  // Every rank of few, of many the round ones.
  numbered(rank, index) {
    const many = this.ranks.length, every = [1, 2, 4, 8, 16, 32, 64, 128].find((step) => many / step <= 16) ?? 256;
    return (rank.rank ?? index) % every === 0;
  }

  words(rank) {
    if (rank.state !== "readable") return `${rank.name}: ${RANK_SIGNS[rank.state][1]}`;
    return [`${rank.name}: ${formatBytes(rank.bytes)}`, ...rankSigns(rank).map((sign) => RANK_SIGNS[sign][1])].join(", ");
  }

  key_() {
    const kinds = [...new Set(this.ranks.flatMap((rank) => rank.kinds.map((kind) => kind.name)))].sort((a, b) => this.layers.indexOf(a) - this.layers.indexOf(b)), signs = [...new Set(this.ranks.flatMap(rankSigns))];
    return el("p", { class: "key quiet" }, kinds.map((name) => el("span", {}, swatch(name), name)), signs.map((sign) => el("span", {}, el("span", { class: `rank-sign ${sign}`, "aria-hidden": "true" }, RANK_SIGNS[sign][0]), ` ${RANK_SIGNS[sign][1]}`)));
  }

  choose(index, opens = false) {
    const rank = this.ranks[index];
    if (opens && index === this.chosen && rank.has_page) {
      this.open(rank.name);
      return;
    }
    this.chosen = index;
    this.bars.forEach((bar, at) => {
      bar.tabIndex = at === index ? 0 : -1;
      bar.setAttribute("aria-pressed", at === index);
    });
    this.say(rank);
  }

  // All of one rank in words, with the way to its page.
  say(rank) {
    const like = rank.alike > 1 ? `, like ${grouped(rank.alike - 1)} other${rank.alike > 2 ? "s" : ""}` : "", whole = rank.kinds.reduce((sum, kind) => sum + kind.bytes, 0);
    const kinds = [...rank.kinds].sort((a, b) => b.bytes - a.bytes).slice(0, 4).map((kind) => `${kind.name} ${formatBytes(kind.bytes)} (${percent(kind.bytes, whole)})`).join(", ");
    this.status.replaceChildren(...[
      el("p", {}, el("strong", {}, rank.name), rank.state === "readable" ? `: ${formatBytes(rank.bytes)} (${exactBytes(rank.bytes)})${like}${rankSigns(rank).map((sign) => `; ${RANK_SIGNS[sign][1]}`).join("")}` : `: ${RANK_SIGNS[rank.state][1]}. ${rank.words}`),
      kinds ? el("p", { class: "quiet" }, kinds) : null,
      rank.has_page ? el("button", { type: "button", class: "button", onclick: () => this.open(rank.name) }, `Open ${rank.name}`)
        : rank.state === "readable" ? el("p", { class: "quiet small" }, "Not in this file; its own page: ", el("code", {}, `snapshot ${rank.file} --html page.html`)) : null,
    ].filter((part) => part));
  }

  key(event) {
    const here = this.bars.indexOf(event.target), last = this.bars.length - 1;
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: last }[event.key];
    if (here < 0 || to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.bars[Math.min(last, Math.max(0, to))].focus();
  }
}
