// Tables that sort by their headers, which are buttons.

// Where a table's row is a card, fewer of them are shown at first.
const isNarrow = () => window.innerWidth <= 560;

// columns: {label, value(row), cell(row), numeric}. Ties keep the order in which the rows came. On a narrow screen a row
// has a line for each of its cells.
const sortableTable = ({ caption, columns, rows, sortedBy = 0, limit = isNarrow() ? 8 : 25, isChosen = () => false }) => {
  const state = { column: sortedBy, descending: columns[sortedBy].numeric ?? false, rows, all: false };
  const body = el("tbody"), more = el("p", { class: "more" });
  const headers = columns.map((column, index) => {
    const arrow = el("span", { class: "arrow", "aria-hidden": "true" });
    const sort = () => {
      state.descending = state.column === index ? !state.descending : (column.numeric ?? false);
      state.column = index;
      show();
    };
    return el("th", { scope: "col", class: column.numeric ? "number" : null }, el("button", { type: "button", onclick: sort }, column.numeric ? [arrow, column.label] : [column.label, arrow]));
  });
  const compare = (a, b) => {
    const { value } = columns[state.column], [left, right] = [value(a), value(b)];
    // What is not known comes last either way.
    if (left === null || right === null) return (left === null) - (right === null);
    const order = typeof left === "number" ? left - right : left < right ? -1 : left > right ? 1 : 0;
    return state.descending ? -order : order;
  };
  const inOrder = () => [...state.rows].sort(compare);
  const show = () => {
    headers.forEach((header, index) => header.setAttribute("aria-sort", index !== state.column ? "none" : state.descending ? "descending" : "ascending"));
    const sorted = inOrder();
    const shown = state.all ? sorted : sorted.slice(0, limit);
    body.replaceChildren(...shown.map((row) =>
      el("tr", { class: isChosen(row) ? "is-chosen" : null }, columns.map((column) => el("td", { class: column.numeric ? "number" : null, "data-label": column.label }, column.cell(row) ?? "")))));
    const left = sorted.length - shown.length;
    more.replaceChildren(...(left ? [button(`Show ${grouped(left)} more`, null, () => showAll(true))] : []));
    table.dispatchEvent(new CustomEvent("shown"));
  };
  const showAll = (all) => {
    state.all = all;
    show();
  };
  const table = el("table", {}, el("caption", { class: "unseen" }, caption), el("thead", {}, el("tr", {}, headers)), body);
  const update = (newRows) => {
    state.rows = newRows;
    show();
  };
  show();
  return { show, sorted: inOrder, element: el("div", { class: "scroll folds", tabindex: "0", role: "region", "aria-label": caption }, table, more), table, update, showAll };
};

const barTrack = (bytes, whole) => el("span", { class: "bar-track", "aria-hidden": "true" }, el("span", { class: "bar-fill", style: { width: `${whole ? (100 * bytes) / whole : 0}%` } }));
const barCell = (bytes, whole) => el("span", { class: "bar-cell" }, barTrack(bytes, whole), el("span", { class: "bar-text" }, formatBytes(bytes)));
