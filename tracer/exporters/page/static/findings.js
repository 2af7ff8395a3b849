
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
const COUNT = /^[\d.,]+( (ms|s|%))?$/, SHORT = 13;

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
