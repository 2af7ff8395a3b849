// The user's files, with bytes beside the lines that allocated memory.

const showSources = (files) => {
  if (!files.length) return;
  const most = files.reduce((largest, file) => Math.max(largest, ...file.lines.map((line) => line.bytes ?? 0)), 0);
  section("source", "Source, with the bytes of its lines",
    el("p", { class: "quiet" }, "What each line allocated and the peak held, also for its backward; the most that it had in use at once; and where most of what the peak held was freed."),
    ...files.map((file, index) => sourceFile(file, most, index === 0)));
};

const sourceFile = (file, most, isOpen) => {
  const element = el("details", { class: "listing" }, el("summary", {}, breakable(file.file), " ", el("span", { class: "quiet" }, formatBytes(file.bytes))));
  const fill = () => {
    if (element.open && element.children.length === 1) element.append(...[file.note ? el("p", { class: "quiet" }, file.note) : null, listing(file, most)].filter((part) => part));
  };
  element.open = isOpen;
  element.addEventListener("toggle", fill);
  fill();
  return element;
};

const listing = (file, most) => {
  const head = ["At the peak", "Of backward", "Own peak", "Freed", "Line"].map((name, index) => el("th", { scope: "col", class: index < 3 ? "number" : null }, name));
  const rows = file.lines.flatMap((line, index) => {
    const isGap = index > 0 && line.number !== file.lines[index - 1].number + 1;
    return [isGap ? el("tr", { class: "gap" }, el("td", { colspan: "5" }, "\u22ee")) : null, sourceRow(file, line, most)].filter((row) => row);
  });
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": file.file },
    el("table", {}, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows)));
};

const sourceRow = (file, line, most) => {
  const has = line.bytes !== undefined, size = (bytes) => el("td", { class: "number", title: bytes ? exactBytes(bytes) : null }, bytes ? formatBytes(bytes) : "");
  const code = el("td", { class: "code" }, el("a", { class: "place number quiet", href: editorLink(file.file, line.number), "data-file": file.file, "data-line": line.number }, String(line.number)),
    el("code", {}, line.text ?? "(not in the file)"));
  if (!has) return el("tr", {}, [0, 1, 2, 3].map(() => el("td")), code);
  return el("tr", { class: "has-bytes" }, el("td", { class: "number", title: exactBytes(line.bytes) }, line.bytes ? barCell(line.bytes, most) : ""), size(line.backward), size(line.own), el("td", { class: "quiet" }, line.freed), code);
};
