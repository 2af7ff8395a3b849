// The sections that are words, bars and tables.

const section = (id, title, ...children) => {
  const element = document.getElementById(id);
  element.append(el("div", { class: "head" }, el("h2", { id: `${id}-title` }, title)), ...children.filter((child) => child));
  element.hidden = false;
  return element;
};

const showLostTrack = (rows) => {
  if (!rows.length) return;
  const most = rows.reduce((largest, row) => Math.max(largest, row.bytes), 0);
  const table = sortableTable({ caption: "Where torch lost track", rows, columns: [
    { label: "Bytes that followed", numeric: true, value: (row) => row.bytes, cell: (row) => barCell(row.bytes, most) },
    { label: "Operator", value: (row) => row.op, cell: (row) => twoLines(row.op) },
    { label: "Module", value: (row) => row.module, cell: (row) => twoLines(row.module) },
    { label: "Source", value: (row) => row.file, cell: (row) => (row.file || row.module ? sourceCell(row.file, row.line) : null) },
  ] });
  section("lost", "Where torch lost track",
    el("p", { class: "quiet" }, "Torch gives a tensor a category by following data from the inputs. At these operators it no longer could, and all that was made from their results has no category of its own."), table.element);
};

// -------------------------------------------------------------------------------------------------------- the time
const PHASES = ["forward", "backward", "optimizer"];

const showTime = (data) => {
  if (!data.timings.length && !data.slowModules.length) return;
  section("time", "Time",
    data.timings.length ? el("div", { class: "timings" }, el("h3", {}, `Each step${data.clock ? `, by ${data.clock}` : ""}`), stepTable(data.timings)) : null,
    data.slowModules.length ? el("div", {}, el("h3", {}, "The slowest modules, and their memory"), moduleTable(data.slowModules)) : null);
};

const stepTotal = (timing) => timing.total_ns ?? PHASES.reduce((sum, phase) => sum + (timing[`${phase}_ns`] ?? 0), 0);
const stepTable = (timings) => {
  const longest = Math.max(...timings.map(stepTotal));
  const bar = (timing) => el("span", { class: "phases", "aria-hidden": "true" },
    PHASES.map((phase) => el("span", { class: phase, style: { width: `${longest ? (100 * (timing[`${phase}_ns`] ?? 0)) / longest : 0}%` } })));
  const head = ["Step", "Forward", "Backward", "Optimizer", "Total"].map((name, index) => el("th", { scope: "col", class: index ? "number" : null }, name));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Time of each step" }, el("table", { class: "steps" },
    el("thead", {}, el("tr", {}, head, el("th", { scope: "col", class: "wide" }, el("span", { class: "unseen" }, "As a bar")))),
    el("tbody", {}, timings.map((timing) => el("tr", {}, el("th", { scope: "row" }, stepName(timing.name)),
      PHASES.map((phase) => el("td", { class: "number" }, el("span", { class: `swatch ${phase}`, "aria-hidden": "true" }), formatMs(timing[`${phase}_ns`]))),
      el("td", { class: "number" }, formatMs(timing.total_ns)), el("td", { class: "wide" }, bar(timing)))))));
};

const moduleTable = (modules) => {
  const bytes = (row) => row.peak_bytes ?? 0, spent = (row) => (row.forward_ns ?? 0) + (row.backward_ns ?? 0);
  const mostBytes = Math.max(...modules.map(bytes)), mostTime = Math.max(...modules.map(spent));
  const time = (phase) => ({ label: phase === "forward" ? "Forward" : "Backward", numeric: true, value: (row) => row[`${phase}_ns`], cell: (row) => formatMs(row[`${phase}_ns`]) });
  const timeBar = (row) => el("span", { class: "phases", "aria-hidden": "true" }, ["forward", "backward"].map((phase) => el("span", { class: phase, style: { width: `${mostTime ? (100 * (row[`${phase}_ns`] ?? 0)) / mostTime : 0}%` } })));
  return sortableTable({ caption: "The slowest modules", rows: modules, sortedBy: 1, folds: false, columns: [
    { label: "Module", value: (row) => row.module, cell: (row) => twoLines(row.module) },
    { label: "Time", numeric: true, value: spent, cell: (row) => el("span", { class: "time-cell" }, timeBar(row), el("span", {}, formatMs(spent(row)))) },
    time("forward"), time("backward"),
    ...(modules.some((row) => row.calls !== null) ? [{ label: "Calls", numeric: true, value: (row) => row.calls, cell: (row) => (row.calls === null ? "-" : grouped(row.calls)) }] : []),
    { label: "At the peak", numeric: true, value: (row) => row.peak_bytes, cell: (row) => (row.peak_bytes === null ? "-" : barCell(row.peak_bytes, mostBytes)) },
  ] }).element;
};

// --------------------------------------------------------------------------------------------------------- the run
const showRun = (data) => {
  if (!data.run.length && !data.notes.length) return;
  section("run", !data.run.length ? "Notes" : data.source === "snapshot" ? "The recording" : "The run",
    data.run.length ? el("dl", {}, data.run.map(([name, value]) => el("div", { class: value.length > 60 || /\S{19}/.test(value) ? "long" : null }, el("dt", {}, name), el("dd", {}, value)))) : null,
    data.notes.length ? el("div", { class: "notes" }, data.run.length ? el("h3", {}, "Notes") : null, el("ul", {}, data.notes.map((note) => el("li", {}, note)))) : null);
};

