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

const copyTable = async (columns, rows, button) => {
  const text = tableAsMarkdown(columns, rows);
  if (navigator.clipboard?.write && window.ClipboardItem) {
    const part = (type, content) => [type, new Blob([content], { type })];
    try {
      await navigator.clipboard.write([new ClipboardItem(Object.fromEntries([part("text/plain", text), part("text/html", tableAsHtml(columns, rows))]))]);
      said(button, "Copied");
      return;
    } catch { /* a page from a file may only write text */ }
  }
  await copyText(text, button, "Copied");
};

// A button says for a moment that it has done its work.
const said = (button, word) => {
  const before = button.dataset.label ??= button.textContent;
  button.textContent = word;
  setTimeout(() => (button.textContent = before), 1200);
};
