// The timeline's section: buttons, legend, keys and mouse around the drawing.

const KEYS_HELP = "A click or the arrow keys choose the moment that is shown below, Shift with an arrow goes further; + and - zoom, 0 shows all, P goes to the peak, C compares.";
const BLOCKS_HELP = "The up and down arrow keys go from block to block, Enter keeps one with its whole stack.";

const timelineSection = (data, columns, colorOf, view) => {
  const timeline = new Timeline(data, columns, colorOf, view);
  timeline.parts = {
    rule: el("div", { class: "rule", hidden: true }),
    chosen: el("div", { class: "rule chosen", hidden: true }),
    other: el("div", { class: "rule chosen other", hidden: true }),
    zoomed: el("div", { class: "zoomed", hidden: true }),
    tip: el("div", { class: "tip", hidden: true }),
    readout: el("p", { class: "readout quiet", "aria-live": "polite" }, KEYS_HELP),
    kept: el("div", { class: "kept", role: "status", hidden: true }),
    key: el("p", { class: "key quiet lane-key", hidden: true }),
  };
  const { rule, chosen, other, zoomed, tip, readout, key, kept } = timeline.parts;
  const frame = el("div", { class: "frame", tabindex: "0", role: "group", "aria-label": `Memory over time. ${KEYS_HELP}` },
    timeline.plot.element, rule, other, chosen, zoomed, tip);
  listen(timeline, frame);
  const section = document.getElementById("timeline");
  section.append(
    el("div", { class: "head" }, el("h2", { id: "timeline-title" }, "Memory over time"), toolbar(timeline)),
    legend(timeline), key, frame, kept, el("div", { class: "below" }, phaseKey(data), readout));
  section.hidden = false;
  return timeline;
};

const toolbar = (timeline) => {
  const button = (label, title, onclick, spoken = null) => el("button", { type: "button", class: "button", title, "aria-label": spoken, onclick }, label);
  const pan = button("Pan", "Drag moves the view instead of zooming into it", () => {
    timeline.drag = timeline.drag === "zoom" ? "pan" : "zoom";
    pan.setAttribute("aria-pressed", timeline.drag === "pan");
  });
  pan.setAttribute("aria-pressed", "false");
  const order = button("By event", "One step to the right per event instead of by the clock: busy moments get room", () => {
    timeline.setMode(timeline.byTime ? "order" : "time");
    order.setAttribute("aria-pressed", !timeline.byTime);
  });
  order.setAttribute("aria-pressed", "false");
  const canOrder = timeline.hasStack && timeline.data.axis === "time";
  return el("div", { class: "tools", role: "toolbar", "aria-label": "View" },
    timeline.hasStack && timeline.data.blocks ? laneControls(timeline, button) : null,
    timeline.hasStack ? button("Zoom to peak", "Key P", () => timeline.zoomToPeak()) : null,
    button("+", "Zoom in", () => timeline.zoom(0.5), "Zoom in"), button("\u2212", "Zoom out", () => timeline.zoom(2), "Zoom out"),
    pan, button("Whole run", "Key 0; also a double click", () => timeline.setView(null)), canOrder ? order : null);
};

// Kinds as layers, or each block; blocks have a choice of colours.
const laneControls = (timeline, button) => {
  const by = el("select", { "aria-label": "Colour of the blocks", hidden: true },
    [["kind", "by kind"], ["module", timeline.data.source === "snapshot" ? "by file" : "by module"], ["line", "by line"]].map(([value, name]) => el("option", { value }, name)));
  const show = () => {
    if (!timeline.lanes) return;
    timeline.lanes.by = by.value;
    by.hidden = !timeline.showsLanes;
    timeline.draw();
    timeline.parts.kept.hidden = true;
    const named = timeline.showsLanes ? timeline.lanes.named : [], { key } = timeline.parts;
    key.hidden = !named.length;
    key.replaceChildren(...named.map(([name, color]) => el("span", {}, el("span", { class: "swatch", style: { backgroundColor: color }, "aria-hidden": "true" }), name)));
  };
  const blocks = button("Each block", "Every large block by itself, stacked in the order of allocation", () => {
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
    const button = el("button", { type: "button", class: "chip", "aria-pressed": "true", title: "Show or hide" }, mark, el("span", {}, name), el("span", { class: "quiet" }, value));
    button.addEventListener("click", () => {
      timeline.toggle(name);
      button.setAttribute("aria-pressed", !timeline.hidden.has(name));
    });
    return button;
  };
  const used = columns.series.map((series, index) => [series, columns.values[index]]).filter(([, values]) => values.some((value) => value !== 0));
  return el("div", { class: "chips", role: "group", "aria-label": "Categories, with their bytes at the highest point of the stack" },
    timeline.hasStack ? el("span", { class: "quiet small" }, "At the peak:") : null,
    used.map(([series, values]) => chip(series.name, swatch(series.name), formatBytes(values[peak]))),
    columns.lines.map((line) => chip(line.name, el("span", { class: `stroke ${line.name === "reserved" ? "dotted" : ""}`, "aria-hidden": "true" }), "")));
};

const phaseKey = (data) => {
  const kinds = ["forward", "backward", "optimizer"].filter((kind) => data.bands.some((band) => band.kind === kind));
  return kinds.length ? el("p", { class: "key quiet" }, kinds.map((kind) => el("span", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), kind))) : null;
};

// A moment is chosen; with `compare`, what was shown before is what it is compared with.
const choose = (timeline, row, compare = false) => {
  const { chosen } = timeline;
  if (row === null || !timeline.moments?.canMove) return;
  chosen.set({ row, other: compare ? chosen.other ?? chosen.row : chosen.other });
};

const listen = (timeline, frame) => {
  listenToMouse(timeline, frame);
  frame.addEventListener("wheel", (event) => {
    if (!(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    timeline.zoom(event.deltaY > 0 ? 1.25 : 0.8, timeline.plot.value(timeline.inPlot(event.clientX, 0)[0]));
  }, { passive: false });
  frame.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 40 : 1, { chosen } = timeline;
    const actions = {
      ...(timeline.showsLanes ? { ArrowUp: () => timeline.moveBlock(1), ArrowDown: () => timeline.moveBlock(-1), Enter: () => timeline.keepBlock() } : {}),
      ArrowRight: () => choose(timeline, timeline.step(far)), ArrowLeft: () => choose(timeline, timeline.step(-far)),
      "+": () => timeline.zoom(0.5), "=": () => timeline.zoom(0.5), "-": () => timeline.zoom(2), 0: () => timeline.setView(null),
      p: () => { timeline.zoomToPeak(); choose(timeline, timeline.peakRow()); },
      c: () => chosen.set({ other: chosen.other === null ? chosen.row : null }),
      Escape: () => { timeline.setCursor(null); timeline.parts.kept.hidden = true; chosen.set({ other: null, part: null }); },
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
  frame.addEventListener("pointerdown", (event) => {
    const [x] = timeline.inPlot(event.clientX, event.clientY), { area } = timeline.plot;
    if (event.button === 0 && x >= area.left && x <= area.right) start = { x, at: event.clientX, view: timeline.shownView, moved: false };
  });
  frame.addEventListener("pointermove", (event) => {
    if (!start) {
      timeline.point(event.clientX, event.clientY);
      return;
    }
    const { area } = timeline.plot, x = Math.min(area.right, Math.max(area.left, start.x + event.clientX - start.at));
    if (!start.moved && Math.abs(x - start.x) < 5) return;
    if (!start.moved) frame.setPointerCapture?.(event.pointerId);
    start.moved = true;
    timeline.setCursor(null);
    if (timeline.drag === "pan") {
      const [from, to] = start.view, by = ((start.x - x) / area.width) * (to - from);
      timeline.setView([from + by, to + by]);
    } else {
      zoomed.hidden = false;
      Object.assign(zoomed.style, { left: `${Math.min(x, start.x)}px`, width: `${Math.abs(x - start.x)}px` });
    }
  });
  frame.addEventListener("pointerup", (event) => {
    if (!start) return;
    const { x, moved } = start, { area } = timeline.plot, to = Math.min(area.right, Math.max(area.left, x + event.clientX - start.at));
    end();
    if (!moved) {
      timeline.point(event.clientX, event.clientY);
      choose(timeline, timeline.rowAtPixel(to), event.shiftKey);
      timeline.keepBlock();
    }
    else if (timeline.drag === "zoom") timeline.setView([x, to].sort((a, b) => a - b).map((one) => timeline.plot.value(one)));
  });
  frame.addEventListener("pointercancel", end);
  frame.addEventListener("pointerleave", () => { if (!start) timeline.setCursor(null); });
  frame.addEventListener("dblclick", () => timeline.setView(null));
};

