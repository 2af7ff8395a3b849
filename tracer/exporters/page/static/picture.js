// The timeline as a file: a drawing of lines (SVG), or its pixels (PNG), with a title and a key, to stand by itself.

const SVG = "http://www.w3.org/2000/svg";
const shape = (tag, attributes, text = null) => {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  return element;
};

// What of a canvas' pen the timeline uses, as elements of a drawing.
class SvgPen {
  constructor(root) {
    Object.assign(this, { root, target: root, path: "", dash: [], globalAlpha: 1, fillStyle: "#000", strokeStyle: "#000", lineWidth: 1, saved: [], clips: 0 });
  }
  scale() {}
  setLineDash(dash) { this.dash = dash; }
  beginPath() { this.path = ""; }
  moveTo(x, y) { this.path += `M${short(x)} ${short(y)}`; }
  // As a canvas does: a line from nowhere begins where it ends.
  lineTo(x, y) { this.path += `${this.path ? "L" : "M"}${short(x)} ${short(y)}`; }
  closePath() { this.path += "Z"; }
  rect(x, y, width, height) { this.path += `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}Z`; }
  fill() { this.add("path", { d: this.path, fill: this.fillStyle }); }
  stroke() { this.add("path", { d: this.path, fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, ...(this.dash.length ? { "stroke-dasharray": this.dash.join(" ") } : {}) }); }
  fillRect(x, y, width, height) { this.add("rect", { x: short(x), y: short(y), width: short(width), height: short(height), fill: this.fillStyle }); }
  save() { this.saved.push(this.target); }
  restore() { this.target = this.saved.pop(); }
  clip() {
    const id = `clip-${(this.clips += 1)}`, clip = shape("clipPath", { id }), inside = shape("g", { "clip-path": `url(#${id})` });
    clip.append(shape("path", { d: this.path }));
    this.target.append(clip, inside);
    this.target = inside;
  }
  createImageData(width, height) { return new ImageData(width, height); }
  drawImage(canvas, x, y, width, height) { this.add("image", { href: canvas.toDataURL(), x, y, width, height, preserveAspectRatio: "none" }); }
  add(tag, attributes) { this.target.append(shape(tag, { ...attributes, ...(this.globalAlpha < 1 ? { opacity: this.globalAlpha } : {}) })); }
}
const short = (number) => Number(number.toFixed(2));

const HEAD_HEIGHT = 52, KEY_LINE = 20;

// What is shown now, as a drawing. `data` has the words.
const timelineSvg = (timeline, data) => {
  const { plot } = timeline, { clientWidth: width, clientHeight: height } = plot.element, ink = cssColor("--ink"), quiet = cssColor("--quiet");
  const body = shape("g", {}), key = keyOf(timeline), text = (x, y, words, more = {}) => shape("text", { x, y, fill: ink, "font-size": 12, ...more }, words);
  let at = 14, line = 0;
  const entries = key.map(([name, color, words]) => {
    const label = `${name}${words ? ` ${words}` : ""}`, long = 7 * label.length + 34;
    if (at + long > width && at > 14) [at, line] = [14, line + 1];
    const y = HEAD_HEIGHT + line * KEY_LINE, group = shape("g", {});
    group.append(shape("rect", { x: at, y: y - 9, width: 10, height: 10, fill: color }), text(at + 16, y, label));
    at += long;
    return group;
  });
  const top = HEAD_HEIGHT + (line + (key.length ? 1 : 0)) * KEY_LINE - 6;
  body.setAttribute("transform", `translate(0 ${top})`);
  plot.drawsInto(new SvgPen(body), () => timeline.draw());
  for (const label of plot.labels.children) {
    const middle = { "0px": "start", "-50%": "middle", "-100%": "end" }[/translate\(([^,]+),/.exec(label.style.transform)?.[1]] ?? "middle";
    body.append(text(parseFloat(label.style.left), parseFloat(label.style.top), label.textContent, { "text-anchor": middle, "dominant-baseline": "central", fill: label.className.includes("tick") ? quiet : ink }));
  }
  timeline.draw();
  const root = shape("svg", { xmlns: SVG, width, height: height + top, viewBox: `0 0 ${width} ${height + top}`, "font-family": FONT });
  root.append(shape("rect", { width, height: height + top, fill: cssColor("--paper") }),
    text(14, 20, data.said[0] ?? data.title, { "font-size": 15, "font-weight": 600 }), text(14, 37, [data.device, data.subtitle].filter((part) => part).join(", "), { fill: quiet }), ...entries, body);
  return root;
};

// Names, colours and bytes of what is drawn.
const keyOf = (timeline) => {
  const named = timeline.showsLanes ? timeline.lanes.named : [], peak = timeline.hasStack ? timeline.peakRow() : -1;
  if (named.length) return named.map(([name, color]) => [name, color, ""]);
  return timeline.shown.filter((index) => timeline.columns.values[index].some((value) => value)).map((index) => {
    const { name } = timeline.columns.series[index];
    return [name, timeline.colorOf(name), formatBytes(timeline.columns.values[index][peak])];
  });
};

const saveFile = (blob, name) => {
  const href = URL.createObjectURL(blob);
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
};

const savePicture = async (timeline, data, kind) => {
  const svg = timelineSvg(timeline, data), text = new XMLSerializer().serializeToString(svg), drawing = new Blob([text], { type: "image/svg+xml" });
  if (kind === "svg") {
    saveFile(drawing, "memory_timeline.svg");
    return;
  }
  const image = new Image(), width = Number(svg.getAttribute("width")), height = Number(svg.getAttribute("height"));
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = el("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  canvas.toBlob((blob) => saveFile(blob, "memory_timeline.png"), "image/png");
};

const pictureChoice = (timeline) => {
  const select = el("select", { "aria-label": "Save the timeline as a picture" }, [["", "Save as \u2026"], ["png", "PNG"], ["svg", "SVG"]].map(([value, name]) => el("option", { value }, name)));
  select.addEventListener("change", () => {
    if (select.value) savePicture(timeline, timeline.data, select.value);
    select.value = "";
  });
  return select;
};
