// A canvas with a byte axis and labels that are text of the page, on which the timeline is drawn.

const PLOT_FLOOR = 0.105;

class Plot {
  constructor() {
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.labels = el("div", { class: "labels" });
    this.element = el("div", { class: "plot" }, this.canvas, this.labels);
    this.area = { left: 0, top: 0, width: 0, height: 0, right: 0, bottom: 0 };
  }

  get width() { return Math.max(50, this.element.clientWidth - this.margin - 14); }
  get margin() { return this.element.clientWidth < 560 ? 60 : 78; }

  // An empty canvas as large as its place. `view` is what the horizontal axis shows, `bytes` what the vertical one does,
  // from its lowest to its highest byte, and the lowest part of the height, `floor`, is for the ribbon of steps.
  begin(view, [low, top], floor) {
    const { clientWidth: width, clientHeight: height } = this.element;
    this.scale = Math.min(2, window.devicePixelRatio || 1);
    this.canvas.width = Math.round(width * this.scale);
    this.canvas.height = Math.round(height * this.scale);
    this.pen = this.otherPen ?? this.canvas.getContext("2d");
    this.pen.scale(this.scale, this.scale);
    const left = this.margin, right = width - 14, bottom = height - 44;
    Object.assign(this, { view, low, top, area: { left, top: 6, width: right - left, height: bottom - 6, right, bottom } });
    this.base = bottom - floor * this.area.height;
    this.labels.replaceChildren();
  }

  // Whatever is drawn meanwhile is drawn by another pen.
  drawsInto(pen, draw) {
    this.otherPen = pen;
    try {
      draw();
    } finally {
      this.otherPen = null;
    }
  }

  x(value) { return this.area.left + ((value - this.view[0]) / (this.view[1] - this.view[0])) * this.area.width; }
  // What lies below the axis' lowest byte ends at its lower edge.
  y(bytes) { return Math.min(this.base, this.base - ((bytes - this.low) / (this.top - this.low)) * (this.base - this.area.top)); }
  byteAt(y) { return this.low + ((this.base - y) / (this.base - this.area.top)) * (this.top - this.low); }
  // In the ribbon; shares of the whole height, from below.
  ribbonY(share) { return this.area.bottom - share * this.area.height; }
  value(x) { return this.view[0] + ((x - this.area.left) / this.area.width) * (this.view[1] - this.view[0]); }

  inside(draw) {
    const { pen, area } = this;
    pen.save();
    pen.beginPath();
    pen.rect(area.left, area.top, area.width, area.height);
    pen.clip();
    draw(pen);
    pen.restore();
  }

  // Text at a point; `align` is what of the text lies there.
  label(text, x, y, { align = "center", name = "" } = {}) {
    const shift = { left: "0", center: "-50%", right: "-100%" }[align];
    this.labels.append(el("span", { class: name, style: { left: `${x}px`, top: `${y}px`, transform: `translate(${shift}, -50%)`} }, text));
  }

  // A staircase: each value holds until the next position.
  stairs(pen, x, y, rows, end) {
    rows.forEach((row, i) => {
      if (i) pen.lineTo(x(row), y(rows[i - 1]));
      pen.lineTo(x(row), y(row));
    });
    if (rows.length) pen.lineTo(end, y(rows[rows.length - 1]));
  }

  byteAxis() {
    const { pen, area } = this;
    pen.strokeStyle = cssColor("--grid");
    pen.lineWidth = 1;
    for (const [value, text] of byteTicks(this.low, this.top)) {
      const y = Math.round(this.y(value)) + 0.5;
      pen.beginPath();
      pen.moveTo(area.left, y);
      pen.lineTo(area.right, y);
      pen.stroke();
      this.label(text, area.left - 8, y, { align: "right", name: "tick" });
    }
  }

  // Ticks at round numbers.
  xAxis({ title, whole }) {
    const { pen, area } = this, [from, to] = this.view;
    const rough = (to - from) / Math.max(2, area.width / 110), power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(whole ? 1 : 0, power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999));
    const decimals = Math.max(0, Math.min(9, -Math.floor(Math.log10(step) + 1e-9)));
    pen.strokeStyle = cssColor("--edge");
    pen.beginPath();
    for (let tick = Math.ceil(from / step); tick * step <= to; tick++) {
      const x = Math.round(this.x(tick * step)) + 0.5;
      pen.moveTo(x, area.bottom);
      pen.lineTo(x, area.bottom + 4);
      const [before, behind] = (tick * step).toFixed(whole ? 0 : decimals).split(".");
      this.label(`${grouped(before)}${behind ? `.${behind}` : ""}`, x, area.bottom + 13, { name: "tick" });
    }
    pen.stroke();
    this.label(title, area.left + area.width / 2, area.bottom + 33, { name: "tick title" });
  }
}

// Ticks at round numbers of a binary unit: of what is shown, not of how high up it lies.
const byteTicks = (low, top) => {
  const unit = [...UNITS].reverse().find(([, one]) => top - low >= one) ?? UNITS[0];
  const rough = (top - low) / unit[1] / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough), ticks = [];
  for (let tick = Math.ceil(low / unit[1] / step); tick * step * unit[1] <= low + (top - low) * 0.97; tick++) {
    ticks.push([tick * step * unit[1], tick ? `${Number((tick * step).toPrecision(12))} ${unit[0]}` : "0"]);
  }
  return ticks;
};

