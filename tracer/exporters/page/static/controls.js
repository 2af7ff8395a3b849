// The timeline's section: buttons, legend, keys and mouse around the drawing.

const KEYS_HELP = "A click or the arrow keys choose the moment that is shown below, a drag zooms; W and S zoom, A and D move, P goes to the peak, C compares, ? shows all keys.";
const BLOCKS_HELP = "The up and down arrow keys go from block to block, Enter keeps one with its whole stack; R and F zoom the bytes.";
const KEYS = [
  ["← →", "the moment before and after; with Shift further"],
  ["↑ ↓, Enter", "of each block: the next one, and keep it below with its whole stack"],
  ["W S, + -", "zoom in and out"],
  ["A D", "move the view to the left and right"],
  ["R F", "zoom the bytes in and out"],
  ["T G", "move the bytes up and down"],
  ["0", "show all of both; a double click, too"],
  ["/", "search the blocks; Enter goes to where they were made, with Shift back"],
  ["M", "a drag measures, or zooms again"],
  ["N", "of each block: the next one of the same line as the one that is kept, with Shift the one before"],
  ["P", "the peak"],
  ["C", "compare the chosen moment with another"],
  ["Esc", "let go of what was chosen"],
  ["drag", "zoom into what is framed, of both axes; after “Pan”, move"],
  ["Ctrl and wheel", "zoom; with Shift, the bytes"],
  ["?", "this list"],
];

const timelineSection = (data, columns, colorOf, view) => {
  const timeline = new Timeline(data, columns, colorOf, view);
  timeline.parts = {
    rule: el("div", { class: "rule", hidden: true }),
    chosen: el("div", { class: "rule chosen", hidden: true }),
    other: el("div", { class: "rule chosen other", hidden: true }),
    zoomed: el("div", { class: "zoomed", hidden: true }),
    tip: el("div", { class: "tip", hidden: true }),
    readout: el("p", { class: "readout quiet", "aria-live": "polite" }, KEYS_HELP),
    key: el("p", { class: "key quiet lane-key", hidden: true }),
    keys: keyList(),
  };
  timeline.kept = new KeptBlock(timeline);
  timeline.search = new Search(timeline);
  const { rule, chosen, other, zoomed, tip, readout, key } = timeline.parts;
  const frame = el("div", { class: "frame", tabindex: "0", role: "group", "aria-label": `Memory over time. ${KEYS_HELP}` },
    timeline.plot.element, rule, other, chosen, zoomed, tip);
  timeline.parts.frame = frame;
  listen(timeline, frame);
  const section = document.getElementById("timeline");
  section.append(
    el("div", { class: "head" }, el("h2", { id: "timeline-title" }, timeline.isComparison ? "Both over each other" : "Memory over time"), toolbar(timeline)),
    legend(timeline), key, frame, timeline.kept.element, timeline.parts.keys, el("div", { class: "below" }, phaseKey(data), readout));
  section.hidden = false;
  return timeline;
};

const keyList = () => el("dialog", { class: "keys", "aria-label": "Keys of the timeline" },
  el("table", {}, el("tbody", {}, KEYS.map(([keys, what]) => el("tr", {}, el("th", { scope: "row" }, keys), el("td", {}, what))))),
  el("form", { method: "dialog" }, el("button", { class: "button" }, "Close")));

const toolbar = (timeline) => {
  const drags = { pan: button("Pan", "Drag moves the view instead of zooming into it", () => setDrag("pan")), measure: button("Measure", "Drag measures: how long, what came and went, and the sum of the blocks in a frame; key M", () => setDrag("measure")) };
  // Again: as it was.
  const setDrag = timeline.setDrag = (drag) => {
    timeline.drag = timeline.drag === drag ? "zoom" : drag;
    for (const [name, one] of Object.entries(drags)) one.setAttribute("aria-pressed", timeline.drag === name);
  };
  setDrag("zoom");
  const order = button("By event", "One step to the right per event instead of by the clock: busy moments get room", () => timeline.toggleOrder());
  const canOrder = timeline.hasStack && timeline.data.axis === "time";
  order.setAttribute("aria-pressed", "false");
  if (canOrder) timeline.toggleOrder = () => {
    timeline.setMode(timeline.byTime ? "order" : "time");
    order.setAttribute("aria-pressed", !timeline.byTime);
  };
  return el("div", { class: "tools", role: "toolbar", "aria-label": "View" },
    timeline.hasStack && timeline.data.blocks ? laneControls(timeline) : null,
    timeline.hasStack ? button("Zoom to peak", "Key P", () => timeline.zoomToPeak()) : null,
    button("+", "Zoom in", () => timeline.zoom(0.5), "Zoom in"), button("\u2212", "Zoom out", () => timeline.zoom(2), "Zoom out"),
    drags.pan, timeline.hasStack ? drags.measure : null, button("Show all", "Key 0; also a double click", () => timeline.setView(null, null)), canOrder ? order : null,
    timeline.data.blocks ? timeline.search.input : null, pictureChoice(timeline), button("?", "All keys", () => timeline.parts.keys.showModal(), "All keys"));
};

// Kinds as layers, or each block; blocks have a choice of colours.
const laneControls = (timeline) => {
  const by = el("select", { "aria-label": "Colour of the blocks", hidden: true },
    [["kind", "by kind"], ["module", timeline.data.source === "snapshot" ? "by file" : "by module"], ["line", "by line"]].map(([value, name]) => el("option", { value }, name)));
  const show = () => {
    if (!timeline.lanes) return;
    timeline.lanes.by = by.value;
    by.hidden = !timeline.showsLanes;
    timeline.draw();
    timeline.kept.hide();
    const named = timeline.showsLanes ? timeline.lanes.named : [], { key } = timeline.parts;
    key.hidden = !named.length;
    key.replaceChildren(...named.map(([name, color]) => el("span", {}, el("span", { class: "swatch", style: { backgroundColor: color }, "aria-hidden": "true" }), name)));
  };
  const blocks = button("Each block", "Every block by itself, stacked in the order of allocation", () => {
    timeline.showsLanes = !timeline.showsLanes && timeline.lanes !== null;
    blocks.setAttribute("aria-pressed", timeline.showsLanes);
    timeline.parts.readout.textContent = timeline.showsLanes ? `${KEYS_HELP} ${BLOCKS_HELP}` : KEYS_HELP;
    show();
  });
  blocks.setAttribute("aria-pressed", "false");
  by.addEventListener("change", show);
  return [blocks, by];
};

// Each category's button shows what it held at the peak, and takes it out of the stack.
const legend = (timeline) => {
  const { columns } = timeline, peak = timeline.hasStack ? timeline.peakRow() : -1;
  const chip = (name, mark, value) => {
    const element = el("button", { type: "button", class: "chip", "aria-pressed": "true", title: "Show or hide" }, mark, el("span", {}, name), el("span", { class: "quiet" }, value));
    element.addEventListener("click", () => {
      timeline.toggle(name);
      element.setAttribute("aria-pressed", !timeline.hidden.has(name));
    });
    return element;
  };
  const used = columns.series.map((series, index) => [series, columns.values[index]]).filter(([, values]) => values.some((value) => value !== 0));
  return el("div", { class: "chips", role: "group", "aria-label": "Categories, with their bytes at the highest point of the stack" },
    timeline.hasStack ? el("span", { class: "quiet small" }, "At the peak:") : null,
    used.map(([series, values]) => chip(series.name, swatch(series.name), formatBytes(values[peak]))),
    columns.lines.map((line) => chip(line.name, el("span", { class: `stroke ${DOTTED.includes(line.name) ? "dotted" : ""}`, "aria-hidden": "true" }), "")));
};

const phaseKey = (data) => {
  const kinds = ["forward", "backward", "optimizer"].filter((kind) => data.bands.some((band) => band.kind === kind));
  return kinds.length ? el("p", { class: "key quiet" }, kinds.map((kind) => el("span", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), kind))) : null;
};

// A moment is chosen; with `compare`, what was shown before is what it is compared with.
const choose = (timeline, row, compare = false) => {
  const { chosen } = timeline;
  if (row === null || !timeline.moments) return;
  chosen.set({ row, other: compare ? chosen.other ?? chosen.row : chosen.other });
};

const listen = (timeline, frame) => {
  listenToMouse(timeline, frame);
  frame.addEventListener("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    const [x, y] = timeline.inPlot(event.clientX, event.clientY), by = event.deltaY || event.deltaX; // Shift turns the wheel sideways
    if (event.shiftKey) timeline.zoomBytes(by > 0 ? 1.25 : 0.8, timeline.plot.byteAt(y));
    else timeline.zoom(by > 0 ? 1.25 : 0.8, timeline.plot.value(x));
  }, { passive: false });
  frame.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 40 : 1, { chosen } = timeline;
    const actions = {
      ...(timeline.showsLanes ? { ArrowUp: () => timeline.moveBlock(1), ArrowDown: () => timeline.moveBlock(-1), Enter: () => timeline.kept.keep() } : {}),
      ArrowRight: () => choose(timeline, timeline.step(far)), ArrowLeft: () => choose(timeline, timeline.step(-far)),
      "+": () => timeline.zoom(0.5), "=": () => timeline.zoom(0.5), "-": () => timeline.zoom(2), 0: () => timeline.setView(null, null),
      w: () => timeline.zoom(0.5), s: () => timeline.zoom(2), a: () => timeline.move(-0.25, 0), d: () => timeline.move(0.25, 0),
      r: () => timeline.zoomBytes(0.5), f: () => timeline.zoomBytes(2), t: () => timeline.move(0, 0.25), g: () => timeline.move(0, -0.25),
      "?": () => timeline.parts.keys.showModal(), "/": () => timeline.search.focus(), m: () => timeline.setDrag("measure"), n: () => timeline.kept.step(event.shiftKey ? -1 : 1),
      p: () => { timeline.zoomToPeak(); choose(timeline, timeline.peakRow()); },
      c: () => chosen.set({ other: chosen.other === null ? chosen.row : null }),
      Escape: () => { timeline.setCursor(null); timeline.kept.hide(); chosen.set({ other: null, part: null }); },
    };
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, key)) return;
    event.preventDefault();
    actions[key]();
  });
};

// A click chooses, a drag zooms or moves the view, and without a button the cursor reads.
const listenToMouse = (timeline, frame) => {
  const { zoomed } = timeline.parts;
  let start = null;
  const end = () => {
    zoomed.hidden = true;
    start = null;
  };
  const heightOf = (event) => {
    const { area, base } = timeline.plot;
    return Math.min(base, Math.max(area.top, start.y + event.clientY - start.atY));
  };
  // A drag along the time zooms the time alone.
  const isTall = (y) => Math.abs(y - start.y) > 24;
  frame.addEventListener("pointerdown", (event) => {
    const [x, y] = timeline.inPlot(event.clientX, event.clientY), { area } = timeline.plot;
    if (event.button === 0 && x >= area.left && x <= area.right) start = { x, y, at: event.clientX, atY: event.clientY, view: timeline.shownView, bytes: timeline.bytes, moved: false };
  });
  frame.addEventListener("pointermove", (event) => {
    if (!start) {
      timeline.point(event.clientX, event.clientY);
      return;
    }
    const { area } = timeline.plot, x = Math.min(area.right, Math.max(area.left, start.x + event.clientX - start.at)), y = heightOf(event);
    if (!start.moved && Math.abs(x - start.x) < 5) return;
    if (!start.moved) frame.setPointerCapture?.(event.pointerId);
    start.moved = true;
    timeline.setCursor(null);
    if (timeline.drag === "pan") {
      const [from, to] = start.view, by = ((start.x - x) / area.width) * (to - from);
      const { plot } = timeline, raise = start.bytes && ((y - start.y) / (plot.base - area.top)) * (start.bytes[1] - start.bytes[0]);
      timeline.setView([from + by, to + by], start.bytes && start.bytes.map((one) => one + raise));
    } else {
      zoomed.hidden = false;
      const tall = isTall(y);
      Object.assign(zoomed.style, { left: `${Math.min(x, start.x)}px`, width: `${Math.abs(x - start.x)}px`, top: tall ? `${Math.min(y, start.y)}px` : "", height: tall ? `${Math.abs(y - start.y)}px` : "", bottom: tall ? "auto" : "" });
    }
  });
  frame.addEventListener("pointerup", (event) => {
    if (!start) return;
    const { x, y, moved } = start, { plot } = timeline, { area } = plot, yEnd = heightOf(event), tall = isTall(yEnd), to = Math.min(area.right, Math.max(area.left, x + event.clientX - start.at));
    end();
    if (!moved) {
      timeline.point(event.clientX, event.clientY);
      choose(timeline, timeline.rowAtPixel(to), event.shiftKey);
      timeline.kept.keep();
    }
    else if (timeline.drag === "measure") measure(timeline, [x, y], [to, yEnd], tall);
    else if (timeline.drag === "zoom") {
      const bytes = tall ? [y, yEnd].sort((a, b) => b - a).map((one) => plot.byteAt(one)) : timeline.bytes;
      timeline.setView([x, to].sort((a, b) => a - b).map((one) => plot.value(one)), bytes);
    }
  });
  frame.addEventListener("pointercancel", end);
  frame.addEventListener("pointerleave", () => { if (!start) timeline.setCursor(null); });
  frame.addEventListener("dblclick", () => timeline.setView(null, null));
};

