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

// Sections that come with the data: sentences and tables, as `Section` in model.py describes them.

const showSections = (sections) => {
  sections.forEach((one, index) => {
    const id = `finding-${index}`;
    const element = el("section", { id, "aria-labelledby": `${id}-title`, hidden: true, class: one.is_alarming ? "alarming" : null });
    // What ended the program is said in the answer; its details come behind what was in use.
    document.getElementById(one.is_alarming ? "space" : "run").before(element);
    section(id, one.title, ...one.sentences.map((sentence) => el("p", {}, sentence)), ...one.tables.map(findingTable));
  });
};

// Counts, ratios and times come as text.
const COUNT = /^-?[\d.,]+( (ms|s|%))?$/, SHORT = 13;

const findingTable = (table) => {
  const cells = (index) => table.rows.map((row) => row[index]);
  const isNumber = table.columns.map((_, index) => cells(index).some((cell) => typeof cell === "number") || cells(index).every((cell) => COUNT.test(cell)));
  // On a narrow screen two of these share a line.
  const isShort = table.columns.map((name, index) => name !== "" && cells(index).every((cell) => typeof cell === "string" && cell.length <= SHORT));
  const changes = table.columns.indexOf("change"), most = changes < 0 ? 0 : table.rows.reduce((largest, row) => Math.max(largest, Math.abs(row[changes])), 0);
  const cell = (value, index) => {
    if (index === changes && typeof value === "number") return changeCell(value, most);
    if (typeof value === "number") return el("span", { title: exactBytes(value) }, formatBytes(value));
    if (typeof value === "string") return isNumber[index] ? value : breakable(value);
    return el("span", { class: "two" }, el("span", {}, breakable(value.words)), value.file ? sourceCell(value.file, value.line) : null);
  };
  const limit = isNarrow() ? 4 : 15, body = el("tbody");
  const row = (cells) => el("tr", {}, cells.map((value, index) => el("td", { class: [isNumber[index] && "number", isShort[index] && "short", value === "" && "none"].filter(Boolean).join(" ") || null, "data-label": table.columns[index] }, cell(value, index))));
  const show = (count) => body.replaceChildren(...table.rows.slice(0, count).map(row));
  const more = el("p", { class: "more" });
  const showAll = () => {
    show(table.rows.length);
    more.replaceChildren();
  };
  show(limit);
  if (table.rows.length > limit) more.append(el("button", { type: "button", class: "button", onclick: showAll }, `Show ${grouped(table.rows.length - limit)} more`));
  window.addEventListener("beforeprint", showAll);
  return el("div", { class: "finding" }, el("h3", {}, table.title),
    el("div", { class: "scroll flows", tabindex: "0", role: "region", "aria-label": table.title },
      el("table", {}, el("thead", {}, el("tr", {}, table.columns.map((name, index) => el("th", { scope: "col", class: isNumber[index] ? "number" : null }, name)))), body)),
    more, table.left ? el("p", { class: "quiet" }, `${grouped(table.left)} more rows have no room here.`) : null);
};

// What went to the left, what came to the right.
const changeCell = (bytes, most) => {
  const half = (isMine) => el("span", { class: "half", "aria-hidden": "true" }, isMine ? el("span", { class: bytes < 0 ? "went" : "came", style: { width: `${most ? (100 * Math.abs(bytes)) / most : 0}%` } }) : null);
  return el("span", { class: "change", title: exactBytes(bytes) }, half(bytes < 0), half(bytes > 0), el("span", { class: "bar-text" }, signed(bytes)));
};
