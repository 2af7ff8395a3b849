// The sections that are words, bars and tables.

const section = (id, title, ...children) => {
  const element = document.getElementById(id);
  element.append(el("div", { class: "head" }, el("h2", { id: `${id}-title` }, title)), ...children.filter((child) => child));
  element.hidden = false;
  return element;
};

const showAnswer = (data) => {
  const [first, ...others] = data.headline;
  const breakdown = data.peak?.breakdown ?? [];
  document.getElementById("answer").append(...[
    el("h1", {}, first),
    ...others.map((sentence) => el("p", { class: "lead" }, sentence)),
    data.peak && breakdown.length ? compositionBar(data.peak, breakdown) : null,
  ].filter((child) => child));
};

const compositionBar = (peak, breakdown) => {
  const whole = breakdown.reduce((sum, share) => sum + Math.max(0, share.bytes), 0);
  const shares = breakdown.filter((share) => share.bytes > 0);
  const label = shares.map((share) => `${share.name} ${percent(share.bytes, whole)}`).join(", ");
  return el("div", { class: "composition", role: "img", "aria-label": `The peak by category: ${label}` },
    shares.map((share) => {
      const part = swatch(share.name, "part");
      part.style.flexGrow = String(share.bytes / whole);
      part.title = `${share.name} ${formatBytes(share.bytes)}, ${percent(share.bytes, whole)}`;
      return part;
    }));
};

// ------------------------------------------------------------------------------------------------------ the peak
// A snapshot knows neither modules nor operators: a stack's deciding frame stands for them.
const LEVELS = { profile: "module, operator and line", snapshot: "file, function and line" };
const showPeak = (peak, source) => {
  const map = el("div", { class: "peak-map", role: "img", "aria-label": `The peak by ${LEVELS[source]}. The table below has the same numbers.` });
  const hasMap = peak.rows.length > 0 && peak.bytes > 0;
  section("peak", "What was in it",
    el("div", { class: hasMap ? "split" : "" }, breakdownTable(peak),
      hasMap ? el("div", { class: "map-side" }, map, el("p", { class: "quiet small" }, `By ${LEVELS[source]}; the area is bytes.`, el("span", { class: "how" }, " Click a title to go in, the path above to come out."))) : null),
    hasMap ? peakTable(peak, source) : el("p", { class: "quiet" }, "Which blocks were alive is not known for this recording."));
  return hasMap ? map : null;
};

const breakdownTable = (peak) => {
  const sum = peak.breakdown.reduce((total, share) => total + share.bytes, 0);
  const rows = peak.breakdown.filter((share) => share.bytes !== 0);
  if (!peak.breakdown.length) return el("p", { class: "quiet" }, "The peak's categories are not known.");
  return el("div", { class: "breakdown" }, el("table", {},
    el("caption", { class: "unseen" }, "The peak by category"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Category"), el("th", { scope: "col", class: "number" }, "Size"), el("th", { scope: "col", class: "number" }, "Bytes"), el("th", { scope: "col", class: "number" }, "Share"))),
    el("tbody", {}, rows.map((share) => el("tr", {},
      el("th", { scope: "row" }, swatch(share.name), share.name), el("td", { class: "number" }, formatBytes(share.bytes)),
      el("td", { class: "number quiet" }, grouped(share.bytes)), el("td", { class: "number" }, percent(share.bytes, peak.bytes))))),
    el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "Sum"), el("td", { class: "number" }, formatBytes(sum)), el("td", { class: "number" }, grouped(sum)), el("td", { class: "number" }, percent(sum, peak.bytes))))),
    sumCheck(sum, peak.bytes, "categories"));
};

const sumCheck = (sum, peakBytes, what) => sum === peakBytes
  ? el("p", { class: "check good" }, `\u2713 The ${what} sum to the peak, ${exactBytes(peakBytes)}.`)
  : el("p", { class: "check bad" }, `\u2717 The ${what} sum to ${exactBytes(sum)}, the peak is ${exactBytes(peakBytes)}: ${exactBytes(Math.abs(peakBytes - sum))} ${sum < peakBytes ? "are missing" : "too many"}.`);

const peakTable = (peak, source) => {
  const columns = [
    { label: "Size", numeric: true, value: (row) => row.bytes, cell: (row) => barCell(row.bytes, peak.rows[0].bytes) },
    { label: "Blocks", numeric: true, value: (row) => row.count, cell: (row) => grouped(row.count) },
    { label: "Category", value: (row) => row.category, cell: categoryCell },
    ...(source === "snapshot" ? snapshotColumns(peak) : profileColumns),
    { label: "Source", value: (row) => row.file && `${row.file}:${String(row.line ?? 0).padStart(7, "0")}`, cell: lineCell },
  ];
  const table = sortableTable({ caption: "Blocks at the peak", columns, rows: peak.rows });
  const count = el("p", { class: "quiet small", role: "status" });
  const text = el("input", { type: "search", placeholder: source === "snapshot" ? "Filter: function, file, category" : "Filter: module, operator, file, name", "aria-label": "Filter rows by text" });
  const names = [...new Set(peak.rows.map((row) => row.category))];
  const category = el("select", { "aria-label": "Filter rows by category" }, el("option", { value: "" }, "All categories"), names.map((name) => el("option", { value: name }, name)));
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter((word) => word);
    const rows = peak.rows.filter((row) => (!category.value || row.category === category.value) && words.every((word) => haystack(row).includes(word)));
    const bytes = rows.reduce((sum, row) => sum + row.bytes, 0), blocks = rows.reduce((sum, row) => sum + row.count, 0);
    count.textContent = `${grouped(rows.length)} of ${grouped(peak.rows.length)} rows, ${grouped(blocks)} blocks, ${formatBytes(bytes)} (${exactBytes(bytes)}), ${percent(bytes, peak.bytes)} of the peak.`;
    table.update(rows);
  };
  text.addEventListener("input", filter);
  category.addEventListener("change", filter);
  filter();
  const sum = peak.rows.reduce((total, row) => total + row.bytes, 0) + peak.rest.bytes;
  window.addEventListener("beforeprint", () => table.showAll(true));
  return el("div", { class: "blocks" }, el("h3", {}, "Every block alive at the peak"),
    el("div", { class: "filters" }, text, category, count), table.element,
    peak.rest.groups ? el("p", { class: "quiet" }, `${grouped(peak.rest.groups)} smaller groups, ${formatBytes(peak.rest.bytes)} together, have no room here.`) : null,
    sumCheck(sum, peak.bytes, "rows"));
};

const profileColumns = [
  { label: "Phase", value: (row) => row.phase, cell: (row) => twoLines(row.phase.toLowerCase(), row.step && stepName(row.step)) },
  { label: "Module", value: (row) => row.module, cell: (row) => twoLines(row.module, row.name) },
  { label: "Operator", value: (row) => row.op, cell: (row) => twoLines(row.op, row.shape && `${row.dtype} ${row.shape.join(" x ") || "scalar"}`) },
];
const snapshotColumns = (peak) => {
  const number = new Map(peak.rows.map((row, index) => [row, index]));
  const functionCell = (row) => el("span", { class: "two" }, el("span", {}, breakable(row.op)), stackCell(peak.stacks, number.get(row)));
  return [
    { label: "Made", value: (row) => row.phase, cell: (row) => row.phase },
    { label: "Function", value: (row) => row.op, cell: functionCell },
  ];
};

const haystack = (row) => [row.category, row.torch_category, row.phase, row.step, row.module, row.op, row.file, row.line, row.caller_file, row.caller_line, row.name, row.evidence].join(" ").toLowerCase();
const lineCell = (row) => row.caller_file
  ? el("span", { class: "two" }, sourceCell(row.file, row.line), el("span", { class: "quiet small" }, "from ", sourceCell(row.caller_file, row.caller_line)))
  : sourceCell(row.file, row.line);
const twoLines = (first, second) => el("span", { class: "two" }, first ? el("span", {}, breakable(first)) : el("span", { class: "quiet" }, "-"), second ? el("span", { class: "quiet small" }, breakable(second)) : null);
const categoryCell = (row) => el("span", { class: "two" }, el("span", { class: "nowrap" }, swatch(row.category), row.category),
  row.torch_category && row.torch_category !== row.category ? el("span", { class: "quiet small" }, `torch: ${row.torch_category}`) : null,
  row.evidence ? el("span", { class: "quiet small" }, row.evidence) : null);

const showLostTrack = (rows) => {
  if (!rows.length) return;
  const most = rows.reduce((largest, row) => Math.max(largest, row.bytes), 0);
  const table = sortableTable({ caption: "Where torch lost track", rows, columns: [
    { label: "Bytes that followed", numeric: true, value: (row) => row.bytes, cell: (row) => barCell(row.bytes, most) },
    { label: "Operator", value: (row) => row.op, cell: (row) => twoLines(row.op) },
    { label: "Module", value: (row) => row.module, cell: (row) => twoLines(row.module) },
    { label: "Source", value: (row) => row.file, cell: (row) => sourceCell(row.file, row.line) },
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
  return sortableTable({ caption: "The slowest modules", rows: modules, sortedBy: 1, columns: [
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
  section("run", "The run",
    data.run.length ? el("dl", {}, data.run.map(([name, value]) => el("div", { class: value.length > 60 || /\S{19}/.test(value) ? "long" : null }, el("dt", {}, name), el("dd", {}, value)))) : null,
    data.notes.length ? el("div", { class: "notes" }, el("h3", {}, "What could not be measured"), el("ul", {}, data.notes.map((note) => el("li", {}, note)))) : null);
};

