// Numbers, names and places for people. Text goes into the page as text nodes.

const UNITS = [["B", 1], ["KiB", 1024], ["MiB", 1024 ** 2], ["GiB", 1024 ** 3], ["TiB", 1024 ** 4]];

// The same rule as `format_bytes` in units.py.
const formatBytes = (bytes) => {
  const size = Math.abs(bytes), sign = bytes < 0 ? "-" : "";
  if (size < 1024) return `${sign}${size} B`;
  const unit = UNITS.slice(1).find(([, one]) => size < one * 1023.995) ?? UNITS[4];
  const number = size / unit[1];
  // Of two equally near, Python takes the even one and JavaScript the larger: 8.125 is 8.12.
  return `${sign}${((number * 8) % 4 === 1 ? number - 0.001 : number).toFixed(2)} ${unit[0]}`;
};
const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
const exactBytes = (bytes) => `${grouped(bytes)} B`;
// The space does not break, so that the sign stays beside its number.
const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)}\u00a0%` : "-");
const blocksText = (count) => `${grouped(count)} ${count === 1 ? "block" : "blocks"}`;

const timeUnit = (spanNs) => {
  for (const unit of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) if (spanNs >= 2 * unit[1]) return unit;
  return ["ns", 1];
};
const stepName = (name) => name.replace(/^ProfilerStep#(\d+)/, (_, number) => `step ${Number(number) + 1}`);

const FALLBACK_COLORS = ["#7a9e9f", "#b07aa1", "#9c755f", "#59a14f", "#edc948", "#76b7b2"];
const makeColors = (categories) => {
  const others = new Map();
  return (name) => {
    if (Object.hasOwn(categories, name)) return isDark() ? categories[name].dark : categories[name].light;
    if (!others.has(name)) others.set(name, FALLBACK_COLORS[others.size % FALLBACK_COLORS.length]);
    return others.get(name);
  };
};
// Colours by rank, for what has no colour of its own: lines, modules. They differ in lightness too.
const RANK_COLORS = ["#3b6fb6", "#e0a030", "#2f8f6b", "#c2548c", "#7fb2e5", "#d1495b", "#b9a7e0", "#4f9d4a", "#e38d6a", "#1f7a8c", "#d3c25b", "#7a4b9c"];
const cssColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Swatches follow the theme: they know their category and are coloured again when it changes.
const swatch = (name, extra = "") => el("span", { class: `swatch ${extra}`, "data-category": name, "aria-hidden": "true" });
const colorSwatches = (root, colorOf) => {
  for (const one of root.querySelectorAll("[data-category]")) one.style.backgroundColor = colorOf(one.dataset.category);
};

// Long names break behind their dots, slashes and underscores.
const breakable = (text) => String(text).split(/(?<=[./:_])(?=[^./:_])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
const shortPath = (file) => file.replace(/\\/g, "/").split("/").slice(-2).join("/");

const copyText = async (text, copier, done = "copied") => {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { style: { position: "fixed", opacity: "0" } });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    copier.focus();
  }
  said(copier, done);
};

// A line of source; a notebook's cell is no file: `train.py:14`, `cell 3, line 14`.
const lineText = (file, line) => (!line ? file : /^cell \d+$/.test(file) ? `${file}, line ${line}` : `${file}:${line}`);

const sourceCell = (file, line) => {
  if (!file) return el("span", { class: "quiet" }, "no Python frame");
  const whole = lineText(file, line), shown = lineText(shortPath(file), line);
  const place = el("a", { href: editorLink(file, line), title: whole, class: "place", "data-file": file, "data-line": line || "" }, breakable(shown));
  const copy = el("button", { type: "button", class: "copy", "aria-label": `Copy ${whole}` }, "copy");
  copy.addEventListener("click", () => copyText(whole, copy));
  return el("span", { class: "source" }, place, copy);
};

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif';

// What is taken out of the page: its table, and the address of what is shown.

// For chats and issues as Markdown; a spreadsheet takes the same as a table, with bytes as plain numbers.
const tableAsMarkdown = (columns, rows) => {
  const line = (cells) => `| ${cells.map((cell) => String(cell).replaceAll("|", "\\|").replace(/\s+/g, " ")).join(" | ")} |`;
  return [line(columns.map((column) => column.label)), line(columns.map((column) => (column.numeric ? "---:" : "---"))), ...rows.map((row) => line(columns.map((column) => readValue(column, row))))].join("\n");
};
const readValue = (column, row) => {
  const value = column.value(row);
  return value === null || value === undefined ? "" : column.isCount ? grouped(value) : column.numeric ? formatBytes(value) : column.text ? column.text(row) : value;
};
const tableAsHtml = (columns, rows) => new XMLSerializer().serializeToString(el("table", {},
  el("thead", {}, el("tr", {}, columns.map((column) => el("th", {}, column.label)))),
  el("tbody", {}, rows.map((row) => el("tr", {}, columns.map((column) => el("td", {}, String((column.text ? column.text(row) : column.value(row)) ?? ""))))))));

const copyTable = async (columns, rows, copier) => {
  const text = tableAsMarkdown(columns, rows);
  if (navigator.clipboard?.write && window.ClipboardItem) {
    const part = (type, content) => [type, new Blob([content], { type })];
    try {
      await navigator.clipboard.write([new ClipboardItem(Object.fromEntries([part("text/plain", text), part("text/html", tableAsHtml(columns, rows))]))]);
      said(copier, "Copied");
      return;
    } catch { /* a page from a file may only write text */ }
  }
  await copyText(text, copier, "Copied");
};

// A button says for a moment that it has done its work.
const said = (copier, word) => {
  const before = copier.dataset.label ??= copier.textContent;
  copier.textContent = word;
  setTimeout(() => (copier.textContent = before), 1200);
};
