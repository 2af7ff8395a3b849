// Memory over time: the stack or its blocks, the marks, the ribbon of steps and phases, and a cursor that reads numbers.

const RIBBON = { step: [0, 0.042], forward: [0.05, 0.092], backward: [0.05, 0.092], optimizer: [0.05, 0.092] };
const MAX_BANDS = 1500, FEW_BANDS = 200;
// Curves that are dotted, so that they are told from the other one without colour.
const DOTTED = ["reserved", "before"];

class Timeline {
  constructor(data, columns, colorOf, view) {
    Object.assign(this, { data, columns, colorOf, chosen: view, bytes: null });
    this.plot = new Plot();
    this.hidden = new Set();
    this.mode = data.axis === "entry" && data.source === "profile" ? "order" : "time";
    this.drag = "zoom";
    this.view = null;
    this.cursor = null;
    this.lanes = null;
    this.moments = null;
    this.showsLanes = false;
    this.hasStack = columns.number.length > 0 && columns.series.length > 0;
    const ends = [columns.time, ...columns.lines.map((line) => line.time)].filter((times) => times.length);
    this.firstTime = Math.min(...ends.map((times) => times[0]));
    this.lastTime = Math.max(...ends.map((times) => times[times.length - 1]));
    this.floor = data.bands.length ? PLOT_FLOOR : 0;
    this.unit = data.axis === "time" ? timeUnit(this.lastTime - this.firstTime) : ["entry", 1];
    this.place();
    this.select();
  }

  // ------------------------------------------------------------------------------------------------ positions
  get byTime() { return this.mode === "time"; }
  // Two recordings on one axis.
  get isComparison() { return this.columns.compared.length > 0; }

  place() {
    const { time, number } = this.columns;
    // Events count from 1, as people do.
    this.x = this.byTime ? time.map((t) => t / this.unit[1]) : number.map((n) => n + 1);
  }

  // Times ascend and may tie, so a time's event is the last that carries it.
  toX(time) {
    if (this.byTime) return time / this.unit[1];
    return (this.columns.number[Math.max(0, upperBound(this.columns.time, time) - 1)] ?? 0) + 1;
  }

  get fullView() {
    const from = this.byTime ? this.toX(this.firstTime) : 1, to = this.byTime ? this.toX(this.lastTime) : this.columns.total;
    const width = to - from || 1;
    return [from - width * 0.004, (to > from ? to : from + 1) + width * 0.004];
  }
  get shownView() { return this.view ?? this.fullView; }

  select() {
    const shown = this.columns.series.map((_, index) => index).filter((index) => !this.hidden.has(this.columns.series[index].name));
    this.shown = shown;
    this.sums = cumulate(shown.map((index) => this.columns.values[index]), this.x.length);
    this.totals = this.sums[this.sums.length - 1] ?? new Float64Array(this.x.length);
  }

  // --------------------------------------------------------------------------------------------------- drawing
  draw() {
    if (!this.hasStack && !this.columns.lines.length) return;
    const [from, to] = this.shownView, pixels = Math.max(200, this.plot.width);
    const columns = [...this.shown.map((index) => this.columns.values[index]), this.totals];
    const rows = rowsInView(this.x, columns, from, to, pixels * 1.5);
    const lines = this.columns.lines.filter((line) => !this.hidden.has(line.name)).map((line) => {
      const position = line.time.map((t) => this.toX(t));
      return { line, position, rows: steps(line.values, rowsInView(position, [line.values], from, to, pixels)) };
    });
    const top = this.top(rows, lines);
    this.plot.begin([from, to], this.bytes ?? [0, top], this.floor);
    this.wholeTop = top;
    this.plot.byteAxis();
    this.ribbon();
    this.plot.inside((pen) => {
      if (this.showsLanes) this.lanes.draw(this, pen);
      else this.layers(pen, rows);
      this.curves(pen, lines);
      this.course(pen, pixels);
      drawFound(this, pen);
    });
    this.drawMarks();
    const whole = this.unit[0] === "entry" || !this.byTime;
    this.plot.xAxis({ title: this.axisTitle(), whole });
    this.plot.element.dataset.view = `${from} ${to}`;
    this.plot.element.dataset.top = String(this.plot.top);
    this.plot.element.dataset.low = String(this.plot.low);
    this.showCursor();
    this.showChosen();
  }

  // The highest layer first: each lower one covers what is not its own.
  layers(pen, rows) {
    const { plot } = this, dims = this.chosen.part !== null;
    for (let layer = this.shown.length - 1; layer >= 0; layer--) {
      const sums = this.sums[layer], corners = steps(sums, rows);
      pen.beginPath();
      pen.moveTo(plot.x(this.x[corners[0]] ?? 0), plot.base);
      plot.stairs(pen, (row) => plot.x(this.x[row]), (row) => plot.y(sums[row]), corners, plot.area.right);
      pen.lineTo(plot.area.right, plot.base);
      pen.closePath();
      pen.fillStyle = this.colorOf(this.columns.series[this.shown[layer]].name);
      pen.fill();
    }
    if (dims) {
      pen.globalAlpha = 0.6;
      pen.fillStyle = cssColor("--paper");
      pen.fillRect(plot.area.left, plot.area.top, plot.area.width, plot.base - plot.area.top);
      pen.globalAlpha = 1;
    }
  }

  curves(pen, lines) {
    for (const { line, position, rows } of lines) {
      const isDotted = DOTTED.includes(line.name), isBold = isDotted || this.isComparison;
      pen.beginPath();
      this.plot.stairs(pen, (row) => this.plot.x(position[row]), (row) => this.plot.y(line.values[row]), rows, this.plot.area.right);
      Object.assign(pen, { strokeStyle: cssColor("--ink"), lineWidth: isBold ? 1.6 : 1 });
      pen.setLineDash(isDotted ? [2, 3] : []);
      pen.stroke();
      pen.setLineDash([]);
    }
  }

  // How many bytes the chosen part of the memory had.
  course(pen, pixels) {
    const { part } = this.chosen;
    if (!part || !this.moments) return;
    part.course ??= this.moments.course(part.has, this.x.length);
    const rows = steps(part.course, rowsInView(this.x, [part.course], ...this.shownView, pixels)), { plot } = this;
    pen.beginPath();
    pen.moveTo(plot.x(this.x[rows[0]] ?? 0), plot.base);
    plot.stairs(pen, (row) => plot.x(this.x[row]), (row) => plot.y(part.course[row]), rows, plot.area.right);
    pen.lineTo(plot.area.right, plot.base);
    pen.globalAlpha = 0.75;
    pen.fillStyle = cssColor("--accent");
    pen.fill();
    pen.globalAlpha = 1;
  }

  get marks() {
    return this.data.marks.map((mark) => ({ ...mark, x: this.markX(mark) }));
  }
  // Among events of one time the mark is the one that is named, or has its bytes.
  markX(mark) {
    if (mark.row !== null) return this.x[mark.row];
    if (this.byTime) return this.toX(mark.time);
    const { time, number, values } = this.columns, end = upperBound(time, mark.time);
    for (let i = end - 1; i >= 0 && time[i] === mark.time; i--) {
      if (values.reduce((sum, column) => sum + column[i], 0) === mark.bytes) return number[i] + 1;
    }
    return this.toX(mark.time);
  }

  // Height of the axis: what can be seen of the view, with room for the marks' labels above it.
  top(rows, lines) {
    const [from, to] = this.shownView;
    let top = 0;
    for (const row of rows) if (this.x[row] <= to && this.totals[row] > top) top = this.totals[row];
    for (const { line, position, rows: drawn } of lines) for (const row of drawn) if (position[row] >= from && position[row] <= to) top = Math.max(top, line.values[row]);
    for (const mark of this.marks) if (mark.x >= from && mark.x <= to && !this.hidden.size) top = Math.max(top, mark.bytes);
    return (top || 1) * 1.2;
  }

  axisTitle() {
    if (this.isComparison) return "events of both, aligned by step and phase";
    if (this.data.axis === "entry" && this.byTime) return "entry of the allocator's history";
    return this.byTime ? `time since the recording began (${this.unit[0]})` : "event, in the order of the allocator";
  }

  ribbon() {
    const { plot, shownView: [from, to] } = this, { pen, area } = plot, scale = area.width / (to - from);
    const visible = this.data.bands.map((band) => ({ ...band, x0: this.toX(band.start), x1: this.toX(band.end) }))
      .filter((band) => band.x1 >= from && band.x0 <= to);
    // Of few bands a brief one is drawn too, such as that of an optimizer that allocates nothing.
    const least = visible.length <= FEW_BANDS ? 3 : 0, shown = least ? visible : visible.filter((band) => (band.x1 - band.x0) * scale > 0.5);
    const colors = Object.fromEntries(Object.keys(RIBBON).map((kind) => [kind, cssColor(`--${kind}`)])), edge = cssColor("--edge");
    for (const band of shown.slice(0, MAX_BANDS)) {
      const [y1, y0] = RIBBON[band.kind].map((share) => plot.ribbonY(share));
      const left = Math.max(area.left, plot.x(band.x0)), right = Math.min(area.right, plot.x(band.x1)), text = stepName(band.name);
      pen.fillStyle = colors[band.kind];
      pen.fillRect(left, y0, Math.max(least || 0.5, right - left - 1), y1 - y0);
      if (band.kind === "step" && band.x0 >= from) {
        Object.assign(pen, { strokeStyle: edge, lineWidth: 1 });
        pen.setLineDash([1, 3]);
        pen.beginPath();
        pen.moveTo(left, area.top);
        pen.lineTo(left, plot.base);
        pen.stroke();
        pen.setLineDash([]);
      }
      if (right - left > 6.6 * text.length + 6) plot.label(text, (left + right) / 2, (y0 + y1) / 2, { name: "band" });
    }
  }

  // Labels above the stack, a row for each, turned towards the side that has room.
  drawMarks() {
    const { plot, shownView: [from, to] } = this, { pen, area } = plot, ink = cssColor("--ink"), paper = cssColor("--paper");
    this.marks.forEach((mark, row) => {
      if (mark.x < from || mark.x > to) return;
      const x = plot.x(mark.x), y = area.top + 8 + 17 * row, isLate = x > area.left + 0.6 * area.width;
      Object.assign(pen, { strokeStyle: ink, lineWidth: 1 });
      pen.setLineDash([4, 3]);
      pen.beginPath();
      pen.moveTo(x, y);
      pen.lineTo(x, plot.base);
      pen.stroke();
      pen.setLineDash([]);
      this.symbol(pen, mark.kind, x, plot.y(mark.bytes), ink, paper);
      const said = `${mark.label} ${formatBytes(mark.bytes)}`, whole = mark.detail ? `${said}: ${mark.detail}` : said;
      const text = 6.4 * whole.length + 8 < area.width ? whole : said, room = 6.4 * text.length + 8;
      const at = isLate ? Math.max(x - 5, Math.min(area.right, area.left + room)) : Math.min(x + 5, Math.max(area.left, area.right - room));
      plot.label(text, at, y, { align: isLate ? "right" : "left", name: "mark" });
    });
  }
  symbol(pen, kind, x, y, ink, paper) {
    const corners = { peak: [[-6, -10], [6, -10], [0, 0]], tagged: [[0, -6], [6, 0], [0, 6], [-6, 0]] }[kind];
    pen.beginPath();
    if (corners) corners.forEach(([dx, dy], i) => (i ? pen.lineTo(x + dx, y + dy) : pen.moveTo(x + dx, y + dy)));
    else for (const [dx, dy] of [[5, 5], [5, -5]]) { pen.moveTo(x - dx, y - dy); pen.lineTo(x + dx, y + dy); }
    pen.closePath();
    Object.assign(pen, { fillStyle: kind === "peak" ? ink : paper, strokeStyle: corners ? (kind === "peak" ? paper : ink) : cssColor("--bad"), lineWidth: corners ? 1.5 : 3 });
    if (corners) pen.fill();
    pen.stroke();
  }

  // ---------------------------------------------------------------------------------------------------- cursor
  // Position in the plot of a point of the window.
  inPlot(clientX, clientY) {
    const box = this.plot.canvas.getBoundingClientRect();
    return [clientX - box.left, clientY - box.top];
  }

  rowAtPixel(x) {
    const { area } = this.plot;
    if (!this.hasStack || x < area.left || x > area.right) return null;
    return rowAt(this.x, this.totals, this.plot.value(x - 0.5), this.plot.value(x + 0.5));
  }

  point(clientX, clientY) {
    const [x, y] = this.inPlot(clientX, clientY);
    this.pointed = [x, y];
    this.setCursor(this.rowAtPixel(x));
  }

  // To the next row that lies at least so many pixels further; the view follows.
  step(pixels) {
    if (!this.hasStack) return null;
    const [from, to] = this.shownView, one = (to - from) / (this.plot.area.width || 1000);
    const start = this.cursor ?? this.chosen.row ?? this.peakRow(), direction = Math.sign(pixels), reach = this.x[start] + pixels * one;
    // A single step goes to the next kept row, however close.
    let row = Math.abs(pixels) > 1 ? rowAt(this.x, this.totals, reach - one / 2, reach + one / 2) : start + direction;
    if (row === start || Math.sign(row - start) !== direction) row = start + direction;
    row = Math.min(this.x.length - 1, Math.max(0, row));
    this.show(row);
    this.pointed = null;
    this.setCursor(row);
    return row;
  }

  // The view follows to a row, no further than it must.
  show(row) {
    const [from, to] = this.shownView, x = this.x[row], by = x < from ? x - from : x > to ? x - to : 0;
    if (by) this.setView([from + by, to + by]);
  }

  // To the next block over the cursor, upwards or downwards; of blocks only.
  moveBlock(by) {
    const row = this.cursor ?? this.chosen.row, x = row === null ? null : this.plot.x(this.x[row]);
    const over = x === null ? [] : this.lanes.over(this, x);
    if (!over.length) return;
    const here = this.pointed ? over.findIndex((one) => one.y === this.pointed[1]) : -1;
    const next = here < 0 ? (by > 0 ? 0 : over.length - 1) : Math.min(over.length - 1, Math.max(0, here + by));
    this.pointed = [x, over[next].y];
    this.setCursor(row);
  }

  peakRow() {
    if (this.data.peak?.row != null && !this.hidden.size) return this.data.peak.row;
    let best = 0;
    for (let i = 1; i < this.totals.length; i++) if (this.totals[i] > this.totals[best]) best = i;
    return best;
  }

  setCursor(row) {
    this.cursor = row;
    this.showCursor();
  }

  showCursor() {
    const { rule, tip, readout } = this.parts, row = this.cursor;
    const [from, to] = this.shownView;
    const shown = row !== null && this.x[row] >= from && this.x[row] <= to;
    rule.hidden = tip.hidden = !shown;
    if (!shown) return;
    const left = this.plot.x(this.x[row]), width = this.plot.element.clientWidth;
    rule.style.left = `${left}px`;
    tip.replaceChildren(...this.tipRows(row));
    const room = left > width / 2 ? left - tip.offsetWidth - 12 : left + 12;
    tip.style.left = `${Math.max(0, Math.min(width - tip.offsetWidth, room))}px`;
    readout.textContent = `${this.whenText(row)}: ${formatBytes(this.totals[row])} (${exactBytes(this.totals[row])})`;
  }

  // Lines at the moment that is shown below, and at the one that it is compared with.
  showChosen() {
    const [from, to] = this.shownView, { row, other } = this.chosen;
    [[this.parts.chosen, row], [this.parts.other, other]].forEach(([line, at]) => {
      line.hidden = at === null || !this.hasStack || !(this.x[at] >= from && this.x[at] <= to);
      if (!line.hidden) line.style.left = `${this.plot.x(this.x[at])}px`;
    });
  }

  whenText(row) {
    if (this.isComparison) return this.placeText(row) || "outside of steps and phases";
    // A snapshot's rows are the states after its entries; the first is the start.
    if (this.data.source === "snapshot") return this.entryText(row);
    const event = `event ${grouped(this.columns.number[row] + 1)} of ${grouped(this.columns.total)}`;
    return this.data.axis === "time" ? `${this.timeText(row)}, ${event}` : event;
  }
  timeText(row) { return `${(this.columns.time[row] / this.unit[1]).toFixed({ s: 6, ms: 3, ns: 0 }[this.unit[0]] ?? 3)} ${this.unit[0]}`; }

  entryText(row) {
    const entry = this.columns.number[row] - 1, last = grouped(this.columns.total - 2);
    const where = entry < 0 ? "at the start" : `after entry ${grouped(entry)} of ${last}`;
    return this.data.axis === "time" ? `${this.timeText(row)}, ${where}` : where;
  }

  // Step and phase in which a row lies, in words.
  placeText(row) {
    if (!this.columns.time.length) return "";
    const time = this.columns.time[row], inside = this.data.bands.filter((band) => band.start <= time && time <= band.end);
    const named = (kinds) => inside.filter((band) => kinds.includes(band.kind)).pop();
    return [named(["step"]), named(["forward", "backward", "optimizer"])].filter((band) => band).map((band) => stepName(band.name)).join(", ");
  }

  tipRows(row) {
    const block = this.showsLanes && this.pointed ? this.lanes.tip(this, ...this.pointed, row) : null;
    if (block) return block;
    if (this.isComparison) return this.comparedRows(row);
    const parts = [...this.shown].reverse().filter((index) => this.columns.values[index][row] !== 0).map((index) => {
      const { name } = this.columns.series[index], bytes = this.columns.values[index][row];
      return el("tr", {}, el("td", {}, swatch(name), name), el("td", { class: "number" }, formatBytes(bytes)), el("td", { class: "number quiet" }, exactBytes(bytes)));
    });
    const total = el("tr", { class: "sum" }, el("td", {}, this.hidden.size ? "shown" : "total"), el("td", { class: "number" }, formatBytes(this.totals[row])), el("td", { class: "number quiet" }, exactBytes(this.totals[row])));
    const { part } = this.chosen;
    const chosen = part?.course ? el("tr", {}, el("td", {}, `in ${part.label}`), el("td", { class: "number" }, formatBytes(part.course[row])), el("td", { class: "number quiet" }, exactBytes(part.course[row]))) : null;
    const table = el("table", {}, el("tbody", {}, parts, total, chosen));
    colorSwatches(table, this.colorOf);
    return [el("p", {}, this.whenText(row)), table];
  }

  // Both sides at one place by kind, the largest change first.
  comparedRows(row) {
    const line = (name, before, after, kind = null) => el("tr", { class: kind }, el("td", {}, kind ? name : [swatch(name), name]),
      ...[formatBytes(before), formatBytes(after), signed(after - before)].map((text) => el("td", { class: "number" }, text)));
    const { compared } = this.columns, kinds = compared.map(({ name, before, after }) => [name, before[row], after[row]]).filter(([, before, after]) => before || after)
      .sort(([, a, b], [, c, d]) => Math.abs(d - c) - Math.abs(b - a));
    const sum = (side) => kinds.reduce((bytes, kind) => bytes + kind[side], 0);
    const table = el("table", {}, el("thead", {}, el("tr", {}, ["", "before", "after", "change"].map((name) => el("th", { class: name ? "number" : null }, name)))),
      el("tbody", {}, kinds.map((kind) => line(...kind)), line("total", sum(1), sum(2), "sum")));
    colorSwatches(table, this.colorOf);
    return [el("p", {}, this.whenText(row)), table];
  }

  // ------------------------------------------------------------------------------------------------------ view
  // Both axes; without bytes these stay as they are, and without anything all is shown.
  setView(view, bytes = this.bytes) {
    const [least, most] = this.fullView;
    this.view = null;
    this.bytes = view || bytes !== this.bytes ? this.withinBytes(bytes) : null;
    if (view && view[1] - view[0] < (most - least) * 0.999) {
      const width = Math.max(view[1] - view[0], (most - least) * 1e-7);
      const from = Math.min(Math.max(view[0], least), most - width);
      this.view = [from, from + width];
    }
    this.draw();
    this.whenMoved?.();
  }
  // At least a KiB high, and nothing below 0; null where all of it is shown.
  withinBytes(bytes) {
    if (!bytes) return null;
    const most = this.wholeTop, height = Math.max(1024, bytes[1] - bytes[0]);
    if (height >= most * 0.999) return null;
    const low = Math.min(Math.max(0, bytes[0]), most - height);
    return [low, low + height];
  }
  get shownBytes() { return this.bytes ?? [0, this.wholeTop]; }
  zoomBytes(factor, center = null) {
    const [low, high] = this.shownBytes, at = center ?? (this.pointed ? this.plot.byteAt(this.pointed[1]) : (low + high) / 2);
    this.setView(this.shownView, [at - (at - low) * factor, at + (high - at) * factor]);
  }
  // By shares of what is shown.
  move(right, up) {
    const [from, to] = this.shownView, [low, high] = this.shownBytes, by = right * (to - from), raise = up * (high - low);
    this.setView([from + by, to + by], this.bytes && [low + raise, high + raise]);
  }
  zoom(factor, center = null) {
    const [from, to] = this.shownView, at = center ?? (this.cursor === null ? (from + to) / 2 : this.x[this.cursor]);
    this.setView([at - (at - from) * factor, at + (to - at) * factor]);
  }
  zoomToPeak() {
    const row = this.peakRow(), [from, to] = this.fullView, width = (to - from) / 40;
    this.setView([this.x[row] - width / 2, this.x[row] + width / 2]);
    this.setCursor(row);
  }
  setMode(mode) {
    const old = this.shownView, zoomed = this.view !== null, find = this.x;
    const ends = old.map((x) => Math.min(find.length - 1, Math.max(0, upperBound(find, x) - 1)));
    this.mode = mode;
    this.place();
    this.setView(zoomed ? ends.map((row) => this.x[row]) : null);
  }
  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.select();
    this.draw();
  }
}

