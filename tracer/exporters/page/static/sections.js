// The sections that are words, bars and tables.

const section = (id, title, ...children) => {
  const element = document.getElementById(id);
  element.append(el("div", { class: "head" }, el("h2", { id: `${id}-title` }, title)), ...children.filter((child) => child));
  element.hidden = false;
  return element;
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
    section(id, one.title.replace(LONG_PATH, "$1"), ...one.sentences.map((sentence) => el("p", {}, sentence)), ...one.tables.map(findingTable));
  });
};

// A cell's text by the kind of its column, see `Column` in tables.py; a text stands in any column as it is.
const CELLS = {
  bytes: formatBytes, change: signed, count: grouped, share: (value) => `${(100 * value).toFixed(1)}\u00a0%`,
  duration: (ns) => (ns / 1e6).toLocaleString("en", { minimumFractionDigits: 3, maximumFractionDigits: 3 }),
};
const SHORT = 13;
const cellText = (value, kind) => (value === null ? "-" : typeof value === "number" ? CELLS[kind](value) : value);

const findingTable = (table) => {
  const kinds = table.columns.map((column) => column.kind), isNumber = kinds.map((kind) => kind in CELLS);
  // On a narrow screen two of these share a line.
  const isShort = table.columns.map((column, index) => column.name !== "" && table.rows.every((row) => typeof row[index] !== "object" && kinds[index] !== "bytes" && cellText(row[index], kinds[index]).length <= SHORT));
  const changes = kinds.indexOf("change"), most = changes < 0 ? 0 : table.rows.reduce((largest, row) => Math.max(largest, Math.abs(row[changes])), 0);
  const cell = (value, index) => {
    if (index === changes && typeof value === "number") return changeCell(value, most);
    if (value !== null && typeof value === "object") return placeCell(value);
    const text = cellText(value, kinds[index]);
    if (isNumber[index]) return el("span", { title: kinds[index] === "bytes" && typeof value === "number" ? exactBytes(value) : null }, text);
    return breakable(text);
  };
  const limit = isNarrow() ? 4 : 15, body = el("tbody");
  const row = (cells) => el("tr", {}, cells.map((value, index) => el("td", { class: [isNumber[index] && "number", isShort[index] && "short", value === "" && "none"].filter(Boolean).join(" ") || null, "data-label": table.columns[index].name }, cell(value, index))));
  const show = (count) => body.replaceChildren(...table.rows.slice(0, count).map(row));
  const more = el("p", { class: "more" });
  const showAll = () => {
    show(table.rows.length);
    more.replaceChildren();
  };
  show(limit);
  if (table.rows.length > limit) {
    more.append(button(`Show ${grouped(table.rows.length - limit)} more`, null, showAll));
    window.addEventListener("beforeprint", showAll);
  }
  return el("div", { class: "finding" }, table.title ? el("h3", {}, table.title) : null,
    el("div", { class: "scroll flows", tabindex: "0", role: "region", "aria-label": table.title || null },
      el("table", {}, el("thead", {}, el("tr", {}, table.columns.map((column, index) => el("th", { scope: "col", class: isNumber[index] ? "number" : null }, column.name)))),
        body, table.footer ? el("tfoot", {}, row(table.footer)) : null)),
    more, table.left ? el("p", { class: "quiet" }, `${grouped(table.left)} more rows have no room here.`) : null);
};

const placeCell = (place) => el("span", { class: "two" }, el("span", {}, breakable(place.words)),
  place.file ? sourceCell(place.file, place.line) : null, place.below.map((line) => el("span", { class: "quiet" }, breakable(line))));

// What went to the left, what came to the right.
const changeCell = (bytes, most) => {
  const half = (isMine) => el("span", { class: "half", "aria-hidden": "true" }, isMine ? el("span", { class: bytes < 0 ? "went" : "came", style: { width: `${most ? (100 * Math.abs(bytes)) / most : 0}%` } }) : null);
  return el("span", { class: "change", title: exactBytes(bytes) }, half(bytes < 0), half(bytes > 0), el("span", { class: "bar-text" }, signed(bytes)));
};
