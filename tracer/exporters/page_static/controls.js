// The timeline's section: buttons, legend, keys and mouse around the drawing.

const KEYS_HELP = "Arrow keys move from event to event, with Shift further; + and - zoom, 0 shows all, P goes to the peak.";

const timelineSection = (data, columns, colorOf) => {
  const timeline = new Timeline(data, columns, colorOf);
  timeline.holder = el("div", { class: "plot" });
  timeline.parts = {
    rule: el("div", { class: "rule", hidden: true }),
    tip: el("div", { class: "tip", hidden: true }),
    readout: el("p", { class: "readout quiet", "aria-live": "polite" }, KEYS_HELP),
  };
  const frame = el("div", { class: "frame", tabindex: "0", role: "group", "aria-label": `Memory over time. ${KEYS_HELP}` },
    timeline.holder, timeline.parts.rule, timeline.parts.tip);
  listen(timeline, frame);
  const section = document.getElementById("timeline");
  section.append(
    el("div", { class: "head" }, el("h2", { id: "timeline-title" }, "Memory over time"), toolbar(timeline)),
    legend(timeline), frame, el("div", { class: "below" }, phaseKey(data), timeline.parts.readout));
  section.hidden = false;
  return timeline;
};

const toolbar = (timeline) => {
  const button = (label, title, onclick) => el("button", { type: "button", class: "button", title, onclick }, label);
  const pan = button("Pan", "Drag moves the view instead of zooming into it", () => {
    timeline.drag = timeline.drag === "zoom" ? "pan" : "zoom";
    pan.setAttribute("aria-pressed", timeline.drag === "pan");
    timeline.draw();
  });
  pan.setAttribute("aria-pressed", "false");
  const order = button("By event", "One step to the right per event instead of by the clock: busy moments get room", () => {
    timeline.setMode(timeline.byTime ? "order" : "time");
    order.setAttribute("aria-pressed", !timeline.byTime);
  });
  order.setAttribute("aria-pressed", "false");
  const canOrder = timeline.hasStack && timeline.data.axis === "time";
  return el("div", { class: "tools", role: "toolbar", "aria-label": "View" },
    timeline.hasStack ? button("Zoom to peak", "Key P", () => timeline.zoomToPeak()) : null,
    button("+", "Zoom in", () => timeline.zoom(0.5)), button("\u2212", "Zoom out", () => timeline.zoom(2)),
    pan, button("Whole run", "Key 0; also a double click", () => timeline.setView(null)), canOrder ? order : null);
};

// Each category's button shows what it held at the peak, and takes it out of the stack.
const legend = (timeline) => {
  const { columns } = timeline, peak = timeline.hasStack ? timeline.peakRow() : -1;
  const chip = (name, mark, value) => {
    const button = el("button", { type: "button", class: "chip", "aria-pressed": "true", title: "Show or hide" }, mark, el("span", {}, name), el("span", { class: "quiet" }, value));
    button.addEventListener("click", () => timeline.toggle(name).then(() => button.setAttribute("aria-pressed", !timeline.hidden.has(name))));
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

const listen = (timeline, frame) => {
  frame.addEventListener("mousemove", (event) => timeline.point(event.clientX));
  frame.addEventListener("mouseleave", () => timeline.setCursor(null));
  frame.addEventListener("wheel", (event) => {
    const area = timeline.plotArea();
    if (!(event.ctrlKey || event.metaKey) || !area) return;
    event.preventDefault();
    const [from, to] = timeline.shownView;
    timeline.zoom(event.deltaY > 0 ? 1.25 : 0.8, from + ((to - from) * (event.clientX - area.left)) / area.width);
  }, { passive: false });
  frame.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 40 : 1;
    const actions = {
      ArrowRight: () => timeline.step(far), ArrowLeft: () => timeline.step(-far), "+": () => timeline.zoom(0.5), "=": () => timeline.zoom(0.5),
      "-": () => timeline.zoom(2), 0: () => timeline.setView(null), p: () => timeline.zoomToPeak(), P: () => timeline.zoomToPeak(), Escape: () => timeline.setCursor(null),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, event.key)) return;
    event.preventDefault();
    actions[event.key]();
  });
};

// Plotly says so when a drag has changed the range; what is drawn then follows it.
const followDrags = (timeline) => {
  timeline.holder.on?.("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change) timeline.setView([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    else if ("xaxis.range" in change) timeline.setView(change["xaxis.range"]);
    else if (change["xaxis.autorange"]) timeline.setView(null);
  });
  timeline.holder.on?.("plotly_doubleclick", () => { timeline.setView(null); return false; });
};

