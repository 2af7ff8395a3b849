// Memory over time: the stack, the marks, the ribbon of steps and phases, and a cursor that reads exact numbers.

const RIBBON = { step: [0, 0.042], forward: [0.05, 0.092], backward: [0.05, 0.092], optimizer: [0.05, 0.092] };
const PLOT_FLOOR = 0.105;
const MARGIN = { l: 78, r: 14, t: 6, b: 44 };
const MAX_SHAPES = 600;

class Timeline {
  constructor(data, columns, colorOf) {
    Object.assign(this, { data, columns, colorOf });
    this.hidden = new Set();
    this.mode = "time";
    this.drag = "zoom";
    this.view = null;
    this.cursor = null;
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
  async draw() {
    if (!this.hasStack && !this.columns.lines.length) return;
    const [from, to] = this.shownView, pixels = Math.max(200, this.holder.clientWidth - MARGIN.l - MARGIN.r);
    const reach = this.view ? (to - from) / 2 : 0;
    const wide = [from - reach, to + reach];
    const rows = rowsInView(this.x, [...this.shown.map((index) => this.columns.values[index]), this.totals], ...wide, pixels * (this.view ? 2 : 1));
    const layers = this.shown.map((index, layer) => this.layer(index, layer, rows, wide[1]));
    const lines = this.columns.lines.filter((line) => !this.hidden.has(line.name)).map((line) => this.line(line, wide, pixels));
    // The true peak on top of the tagged one, which is often the same.
    const marks = this.marks.map((mark) => this.symbol(mark)).reverse();
    const top = this.top(rows, lines);
    await Plotly.react(this.holder, [...layers, ...lines, ...marks], this.layout([from, to], top), {
      displayModeBar: false, scrollZoom: false, doubleClick: "reset",
    });
    this.showCursor();
  }

  layer(index, layer, rows, end) {
    const color = this.colorOf(this.columns.series[index].name), corners = steps(this.sums[layer], rows);
    // What is held after the last row is held to the edge.
    const x = [...pick(this.x, corners), end], y = pick(this.sums[layer], corners);
    return {
      type: "scatter", mode: "lines", x, y: [...y, y[y.length - 1]], hoverinfo: "skip", showlegend: false,
      line: { shape: "hv", width: 0.6, color }, fill: layer ? "tonexty" : "tozeroy", fillcolor: translucent(color, 0.86),
    };
  }

  line(line, wide, pixels) {
    const position = line.time.map((t) => this.toX(t));
    const rows = steps(line.values, rowsInView(position, [line.values], ...wide, pixels));
    return {
      type: "scatter", mode: "lines", x: pick(position, rows), y: pick(line.values, rows), hoverinfo: "skip", showlegend: false,
      line: { shape: "hv", width: line.name === "reserved" ? 1.6 : 1, color: cssColor("--ink"), dash: line.name === "reserved" ? "dot" : "solid" },
    };
  }

  get marks() {
    return this.data.marks.map((mark) => ({ ...mark, x: this.markX(mark) }));
  }
  // Among events of one time the mark is the one with its bytes.
  markX(mark) {
    if (this.byTime) return this.toX(mark.time);
    const { time, number, values } = this.columns, end = upperBound(time, mark.time);
    for (let i = end - 1; i >= 0 && time[i] === mark.time; i--) {
      if (values.reduce((sum, column) => sum + column[i], 0) === mark.bytes) return number[i] + 1;
    }
    return this.toX(mark.time);
  }
  symbol(mark) {
    return {
      type: "scatter", mode: "markers", x: [mark.x], y: [mark.bytes], hoverinfo: "skip", showlegend: false, cliponaxis: false,
      marker: { symbol: { peak: "triangle-down", oom: "x" }[mark.kind] ?? "diamond", size: mark.kind === "peak" ? 11 : 14, color: cssColor(mark.kind === "peak" ? "--ink" : "--paper"), line: { color: cssColor(mark.kind === "peak" ? "--paper" : "--ink"), width: 1.5 } },
    };
  }

  // Height of the axis: what can be seen of the view, with room for the marks' labels above it.
  top(rows, lines) {
    const [from, to] = this.shownView;
    let top = 0;
    for (const row of rows) if (this.x[row] <= to && this.totals[row] > top) top = this.totals[row];
    for (const line of lines) line.y.forEach((value, i) => { if (line.x[i] >= from && line.x[i] <= to) top = Math.max(top, value); });
    for (const mark of this.marks) if (mark.x >= from && mark.x <= to && !this.hidden.size) top = Math.max(top, mark.bytes);
    return (top || 1) * 1.2;
  }

  layout(view, top) {
    const quiet = cssColor("--quiet"), grid = cssColor("--grid");
    const { shapes, annotations } = this.ribbon(view);
    const marks = this.markLabels(view);
    return {
      width: this.holder.clientWidth, height: this.holder.clientHeight, margin: MARGIN, dragmode: this.drag, hovermode: false,
      font: { family: FONT, size: 12, color: quiet }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      xaxis: {
        range: view, anchor: "free", position: 0, showgrid: false, zeroline: false, ticks: "outside", ticklen: 4, tickcolor: grid, nticks: 10,
        title: { text: this.axisTitle(), standoff: 8 }, exponentformat: "none", separatethousands: true,
        // Events and entries are whole.
        ...(this.unit[0] === "entry" || !this.byTime ? { tickformat: ",d", ...(view[1] - view[0] < 10 ? { dtick: 1 } : {}) } : {}),
      },
      yaxis: { range: [0, top], domain: [this.floor, 1], fixedrange: true, gridcolor: grid, zerolinecolor: grid, ...byteTicks(top) },
      shapes: [...shapes, ...marks.shapes], annotations: [...annotations, ...marks.annotations],
    };
  }
  axisTitle() {
    if (this.data.axis === "entry") return "entry of the allocator's history";
    return this.byTime ? `time since the recording began (${this.unit[0]})` : "event, in the order of the allocator";
  }

  ribbon([from, to]) {
    const pixels = this.holder.clientWidth - MARGIN.l - MARGIN.r, scale = pixels / (to - from);
    const shapes = [], annotations = [];
    const visible = this.data.bands.map((band) => ({ ...band, x0: this.toX(band.start), x1: this.toX(band.end) }))
      .filter((band) => band.x1 >= from && band.x0 <= to && (band.x1 - band.x0) * scale > 0.5);
    for (const band of visible.slice(0, MAX_SHAPES)) {
      const [y0, y1] = RIBBON[band.kind];
      const line = { width: 1, color: cssColor("--paper") };
      shapes.push({ type: "rect", xref: "x", yref: "paper", x0: band.x0, x1: band.x1, y0, y1, line, fillcolor: cssColor(`--${band.kind}`), layer: "below" });
      if (band.kind === "step") shapes.push({ type: "line", xref: "x", yref: "paper", x0: band.x0, x1: band.x0, y0: this.floor, y1: 1, line: { width: 1, color: cssColor("--grid"), dash: "dot" }, layer: "below" });
      const left = Math.max(from, band.x0), right = Math.min(to, band.x1), text = stepName(band.name);
      if ((right - left) * scale > 6.4 * text.length + 6) annotations.push({ xref: "x", yref: "paper", x: (left + right) / 2, y: (y0 + y1) / 2, yanchor: "middle", text: plotlyText(text), showarrow: false, font: { size: 11, color: cssColor("--band-ink") } });
    }
    return { shapes, annotations };
  }

  // Two rows of labels above the stack, each turned towards the side that has room.
  markLabels([from, to]) {
    const shapes = [], annotations = [];
    this.marks.forEach((mark, row) => {
      if (mark.x < from || mark.x > to) return;
      const share = (mark.x - from) / (to - from), y = 1 - 0.055 * row, ink = cssColor("--ink");
      shapes.push({ type: "line", xref: "x", yref: "paper", x0: mark.x, x1: mark.x, y0: this.floor, y1: y, line: { width: 1, color: ink, dash: "dash" } });
      annotations.push({ xref: "x", yref: "paper", x: mark.x, y, xanchor: share > 0.6 ? "right" : "left", yanchor: "top", xshift: share > 0.6 ? -4 : 4, text: plotlyText(`${mark.label} ${formatBytes(mark.bytes)}`), showarrow: false, font: { size: 12, color: ink }, bgcolor: translucent(cssColor("--paper"), 0.75) });
    });
    return { shapes, annotations };
  }

  // ---------------------------------------------------------------------------------------------------- cursor
  plotArea() { return this.holder.querySelector(".nsewdrag")?.getBoundingClientRect(); }

  point(clientX) {
    const area = this.plotArea();
    if (!area || !this.hasStack) return;
    const [from, to] = this.shownView, one = (to - from) / area.width;
    const x = from + (clientX - area.left) * one;
    this.setCursor(clientX < area.left || clientX > area.right ? null : rowAt(this.x, this.totals, x - one / 2, x + one / 2));
  }

  // To the next row that lies at least so many pixels further; the view follows.
  step(pixels) {
    if (!this.hasStack) return;
    const [from, to] = this.shownView, width = this.plotArea()?.width || 1000, one = (to - from) / width;
    const start = this.cursor ?? this.peakRow(), direction = Math.sign(pixels), reach = this.x[start] + pixels * one;
    let row = rowAt(this.x, this.totals, reach - one / 2, reach + one / 2);
    if (row === start || Math.sign(row - start) !== direction) row = Math.min(this.x.length - 1, Math.max(0, start + direction));
    const x = this.x[row];
    if (x < from || x > to) this.setView([from + (x < from ? x - from : x - to), to + (x < from ? x - from : x - to)]);
    this.setCursor(row);
  }

  peakRow() {
    let best = 0;
    for (let i = 1; i < this.totals.length; i++) if (this.totals[i] > this.totals[best]) best = i;
    return best;
  }

  setCursor(row) {
    this.cursor = row;
    this.showCursor();
  }

  showCursor() {
    const { rule, tip, readout } = this.parts, row = this.cursor, area = this.plotArea();
    const [from, to] = this.shownView;
    const shown = row !== null && area && this.x[row] >= from && this.x[row] <= to;
    rule.hidden = tip.hidden = !shown;
    if (!shown) return;
    const box = this.holder.getBoundingClientRect(), left = area.left - box.left + (area.width * (this.x[row] - from)) / (to - from);
    rule.style.left = `${left}px`;
    tip.replaceChildren(...this.tipRows(row));
    tip.style.left = `${left > box.width / 2 ? left - tip.offsetWidth - 12 : left + 12}px`;
    readout.textContent = `${this.whenText(row)}: ${formatBytes(this.totals[row])} (${exactBytes(this.totals[row])})`;
  }

  whenText(row) {
    // A snapshot's rows are the states after its entries; the first is the start.
    if (this.data.source === "snapshot") return this.entryText(row);
    const event = `event ${grouped(this.columns.number[row] + 1)} of ${grouped(this.columns.total)}`;
    return this.data.axis === "time" ? `${(this.columns.time[row] / this.unit[1]).toFixed({ s: 6, ms: 3, ns: 0 }[this.unit[0]] ?? 3)} ${this.unit[0]}, ${event}` : event;
  }

  entryText(row) {
    const entry = this.columns.number[row] - 1, last = grouped(this.columns.total - 2);
    const where = entry < 0 ? "at the start" : `after entry ${grouped(entry)} of ${last}`;
    return this.data.axis === "time" ? `${(this.columns.time[row] / this.unit[1]).toFixed(3)} ${this.unit[0]}, ${where}` : where;
  }

  tipRows(row) {
    const parts = [...this.shown].reverse().filter((index) => this.columns.values[index][row] !== 0).map((index) => {
      const { name } = this.columns.series[index], bytes = this.columns.values[index][row];
      return el("tr", {}, el("td", {}, swatch(name), name), el("td", { class: "number" }, formatBytes(bytes)), el("td", { class: "number quiet" }, exactBytes(bytes)));
    });
    const total = el("tr", { class: "sum" }, el("td", {}, this.hidden.size ? "shown" : "total"), el("td", { class: "number" }, formatBytes(this.totals[row])), el("td", { class: "number quiet" }, exactBytes(this.totals[row])));
    const table = el("table", {}, el("tbody", {}, parts, total));
    colorSwatches(table, this.colorOf);
    return [el("p", {}, this.whenText(row)), table];
  }

  // ------------------------------------------------------------------------------------------------------ view
  setView(view) {
    const [least, most] = this.fullView;
    this.view = null;
    if (view && view[1] - view[0] < (most - least) * 0.999) {
      const width = Math.max(view[1] - view[0], (most - least) * 1e-7);
      const from = Math.min(Math.max(view[0], least), most - width);
      this.view = [from, from + width];
    }
    return this.draw();
  }
  zoom(factor, center = null) {
    const [from, to] = this.shownView, at = center ?? (this.cursor === null ? (from + to) / 2 : this.x[this.cursor]);
    return this.setView([at - (at - from) * factor, at + (to - at) * factor]);
  }
  zoomToPeak() {
    const row = this.peakRow(), [from, to] = this.fullView, width = (to - from) / 40;
    this.setView([this.x[row] - width / 2, this.x[row] + width / 2]).then(() => this.setCursor(row));
  }
  setMode(mode) {
    const old = this.shownView, zoomed = this.view !== null, find = this.x;
    const ends = old.map((x) => Math.min(find.length - 1, Math.max(0, upperBound(find, x) - 1)));
    this.mode = mode;
    this.place();
    return this.setView(zoomed ? ends.map((row) => this.x[row]) : null);
  }
  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.select();
    return this.draw();
  }
}

const translucent = (color, alpha) => {
  const hex = /^#(..)(..)(..)$/.exec(color);
  return hex ? `rgba(${hex.slice(1).map((part) => parseInt(part, 16)).join(",")},${alpha})` : color;
};

// Ticks at round numbers of a binary unit.
const byteTicks = (top) => {
  const unit = [...UNITS].reverse().find(([, one]) => top >= one) ?? UNITS[0];
  const rough = top / unit[1] / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough), tickvals = [], ticktext = [];
  for (let tick = 0; tick * step * unit[1] <= top * 0.97; tick++) {
    tickvals.push(tick * step * unit[1]);
    ticktext.push(tick ? `${Number((tick * step).toPrecision(6))} ${unit[0]}` : "0");
  }
  return { tickmode: "array", tickvals, ticktext };
};

