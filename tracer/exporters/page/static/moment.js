// What was in use at the chosen moment: by category, as a tree, and as a table. All three follow the timeline.

// A snapshot knows neither modules nor operators: a stack's deciding frame stands for them.
const LEVELS = { profile: "module, operator and line", snapshot: "file, function and line" };

class MomentSection {
  constructor(data, columns, moments, view, colorOf, timeline) {
    Object.assign(this, { data, columns, moments, view, colorOf, timeline });
    this.what = "came";
    this.controls = new TreeControls(moments, data.source, (paths) => this.arrange(paths), (text) => this.icicle.search(text));
    this.paths = this.controls.partPaths;
    this.icicle = new Icicle(view, this.paths, colorOf, `What was in use by ${LEVELS[data.source]}. The table below has the same numbers.`);
    this.parts = {
      when: el("p", { class: "when", role: "status" }), tools: el("div", { class: "tools" }), breakdown: el("div", { class: "breakdown" }),
      small: el("p", { class: "quiet small" }), check: el("div"), switch: el("div", { class: "tools" }), heading: el("h3"),
    };
    this.table = this.makeTable();
    const { when, tools, breakdown, small, check } = this.parts;
    section("peak", "What was in use",
      el("div", { class: "moment" }, when, tools),
      el("div", { class: "split" }, breakdown,
        el("div", { class: "map-side" }, this.parts.switch, this.controls.element, this.icicle.element, this.icicle.status,
          el("p", { class: "quiet small how" }, `By ${LEVELS[data.source]}, or by call stack where there is one; the width is bytes. A click opens and chooses, the arrow keys move, Backspace goes out.`))),
      el("div", { class: "blocks" }, this.parts.heading, this.filters, this.table.element, small, check));
    view.listen((change) => this.changed(change));
    window.addEventListener("beforeprint", this.print = () => this.table.showAll(true));
    this.update();
  }

  changed(change) {
    if ("row" in change || "other" in change) this.update();
    else if ("part" in change) {
      this.icicle.draw();
      this.filter();
    }
  }

  // Everything of the moment, or of the two, anew.
  update() {
    const { pair } = this.view, found = pair ? { rows: this.moments.between(...pair), smallBytes: 0 } : this.moments.at(this.view.row);
    this.rows = found.rows;
    const bytesOf = pair ? (row) => row[this.what] : (row) => row.bytes;
    this.showTools(pair);
    this.showWhen(pair);
    this.showBreakdown(pair);
    this.showIcicle(pair, bytesOf);
    this.smallBytes = found.smallBytes;
    this.parts.heading.textContent = pair ? "What came and what went" : "Every block in use";
    this.filter();
  }

  // ------------------------------------------------------------------------------------------------------- words
  get isPeak() { return this.view.row === this.view.peak; }
  counted(row) {
    // The peak is what the report says that it is.
    if (row === this.view.peak) return this.data.peak.bytes;
    return this.columns.counted ? this.columns.counted[row] : this.timeline.columns.values.reduce((sum, column) => sum + column[row], 0);
  }
  nameOfMoment(row) {
    const where = this.timeline?.placeText(row);
    return `${this.timeline ? this.timeline.whenText(row) : ""}${where ? ` (${where})` : ""}`;
  }

  showWhen(pair) {
    const { when } = this.parts, size = (row) => `${formatBytes(this.counted(row))} (${exactBytes(this.counted(row))})`;
    if (pair) {
      const [from, to] = pair, change = this.counted(to) - this.counted(from);
      when.replaceChildren(el("strong", {}, "From "), this.nameOfMoment(from), el("strong", {}, " to "), this.nameOfMoment(to), `: ${formatBytes(this.counted(from))} became ${formatBytes(this.counted(to))}, ${change < 0 ? "" : "+"}${formatBytes(change)}.`);
      return;
    }
    const name = this.nameOfMoment(this.view.row);
    when.replaceChildren(el("strong", {}, this.isPeak ? "At the peak" : "Chosen moment"), `${name ? `, ${name}` : ""}: ${size(this.view.row)}`);
  }

  showTools(pair) {
    const { view } = this;
    if (!this.timeline) return;
    const focused = document.activeElement?.closest?.(".moment .tools") ? document.activeElement.textContent : null;
    this.parts.tools.replaceChildren(
      button("\u2190 Previous", "The moment before, as the left arrow key on the timeline", () => this.step(-1)), button("Next \u2192", "The next moment", () => this.step(1)),
      ...(this.isPeak ? [] : [button("Back to the peak", null, () => view.set({ row: view.peak }))]),
      view.other === null
        ? button("Compare with another moment", "Keeps this moment; then choose the other one on the timeline", () => view.set({ other: view.row }))
        : button("Stop comparing", null, () => view.set({ other: null })),
      ...(location.protocol === "about:" ? [] : [button("Copy link", "The address of this page at what it shows", (event) => { view.keepNow?.(); copyText(location.href, event.currentTarget, "Copied"); })]));
    if (focused) [...this.parts.tools.children].find((one) => one.textContent === focused)?.focus();
    this.parts.switch.replaceChildren(...(pair ? ["came", "went"].map((what) => el("button", {
      type: "button", class: "button", "aria-pressed": this.what === what,
      onclick: () => { this.what = what; this.update(); },
    }, what === "came" ? "What came" : "What went")) : []));
  }

  step(by) { this.view.set({ row: Math.min(this.columns.number.length - 1, Math.max(0, this.view.row + by)) }); }

  // -------------------------------------------------------------------------------------------------- categories
  showBreakdown(pair) {
    const { breakdown } = this.parts, sums = new Map();
    const add = (name, numbers) => sums.set(name, numbers.map((value, i) => value + (sums.get(name)?.[i] ?? 0)));
    for (const row of this.rows) add(row.category, pair ? [row.came, row.went, row.change] : [row.bytes]);
    const rows = [...sums].filter(([, numbers]) => numbers.some((value) => value)).sort((a, b) => Math.abs(b[1][b[1].length - 1]) - Math.abs(a[1][a[1].length - 1]));
    if (!rows.length) {
      breakdown.replaceChildren(el("p", { class: "quiet" }, pair ? "Nothing came and nothing went." : "Nothing was in use."));
      return;
    }
    const totals = rows.reduce((sum, [, numbers]) => sum.map((value, i) => value + numbers[i]), rows[0][1].map(() => 0));
    const heads = pair ? ["Came", "Went", "Change"] : ["Size", "Bytes", "Share"];
    const cells = (numbers) => (pair
      ? numbers.map((value, i) => el("td", { class: "number", title: exactBytes(value) }, i === 2 ? signed(value) : formatBytes(value)))
      : [el("td", { class: "number" }, formatBytes(numbers[0])), el("td", { class: "number quiet exact" }, grouped(numbers[0])), el("td", { class: "number" }, percent(numbers[0], totals[0]))]);
    const check = pair ? null : this.sumCheck(totals[0], this.counted(this.view.row), "categories");
    breakdown.replaceChildren(el("table", {},
      el("caption", { class: "unseen" }, "By category"),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Category"), heads.map((head) => el("th", { scope: "col", class: `number${head === "Bytes" ? " exact" : ""}` }, head)))),
      el("tbody", {}, rows.map(([name, numbers]) => el("tr", {}, el("th", { scope: "row" }, swatch(name), name, this.meaning(name)), cells(numbers)))),
      el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "Sum"), cells(totals)))), ...(check ? [check] : []));
    colorSwatches(breakdown, this.colorOf);
  }

  // Beside the name, for whoever reads it for the first time.
  meaning(name) {
    const { meaning } = this.data.categories[name] ?? {};
    return meaning ? el("span", { class: "quiet small meaning" }, meaning) : null;
  }

  sumCheck(sum, whole, what) {
    const name = this.isPeak ? "the peak" : "what the allocator counts";
    return sum === whole
      ? el("p", { class: "check good" }, `\u2713 The ${what} sum to ${name}, ${exactBytes(whole)}.`)
      : el("p", { class: "check bad" }, `\u2717 The ${what} sum to ${exactBytes(sum)}, ${name} is ${exactBytes(whole)}: ${exactBytes(Math.abs(whole - sum))} ${sum < whole ? "are missing" : "too many"}.`);
  }

  // Of all rows, so that it says so where not all of them are shown.
  showCheck(pair, smallBytes, hidden) {
    const { check, small } = this.parts;
    const sum = this.rows.reduce((total, row) => total + (pair ? row.change : row.bytes), 0);
    small.textContent = this.moments.smallerThan ? `Blocks below ${formatBytes(this.moments.smallerThan)} are known by kind, module and line only${pair ? ": of them the difference came or went" : `: ${formatBytes(smallBytes)} at this moment`}.` : "";
    small.hidden = !small.textContent;
    const grown = pair ? this.counted(pair[1]) - this.counted(pair[0]) : 0;
    check.replaceChildren(pair
      ? (sum === grown ? el("p", { class: "check good" }, `\u2713 What came less what went is the change, ${exactBytes(grown)}.`)
        : el("p", { class: "check bad" }, `\u2717 What came less what went is ${exactBytes(sum)}, the allocator's count changed by ${exactBytes(grown)}.`))
      : this.sumCheck(sum, this.counted(this.view.row), hidden ? `rows, with the ${grouped(hidden)} that the filter hides,` : "rows"));
  }

  // -------------------------------------------------------------------------------------------------------- tree
  arrange(paths) {
    this.paths = paths;
    this.icicle.arrange(paths, this.controls.by === "parts");
    this.update();
  }

  showIcicle(pair, bytesOf) {
    const whole = this.rows.reduce((sum, row) => sum + bytesOf(row), 0);
    const name = pair ? `What ${this.what}` : this.isPeak ? "Peak" : "In use";
    this.icicle.show(this.rows, this.moments.groups, `${name}, ${formatBytes(whole)}`, bytesOf);
  }

  // ------------------------------------------------------------------------------------------------------- table
  makeTable() {
    const { data } = this, isSnapshot = data.source === "snapshot", pairColumns = () => [
      { label: "Change", numeric: true, value: (row) => row.change, cell: (row) => this.sizeCell(row, signed(row.change)) },
      { label: "Came", numeric: true, value: (row) => row.came, cell: (row) => formatBytes(row.came) },
      { label: "Went", numeric: true, value: (row) => row.went, cell: (row) => formatBytes(row.went) },
    ];
    const columns = (pair) => [
      ...(pair ? pairColumns() : [{ label: "Size", numeric: true, value: (row) => row.bytes, cell: (row) => this.sizeCell(row, formatBytes(row.bytes), row.bytes) }]),
      { label: "Blocks", numeric: true, isCount: true, value: (row) => row.count, cell: (row) => grouped(row.count) },
      { label: "Category", value: (row) => row.category, cell: categoryCell },
      ...(isSnapshot ? snapshotColumns : profileColumns)(this.moments.stacks),
      { label: "Source", value: (row) => row.file && `${row.file}:${String(row.line ?? 0).padStart(7, "0")}`, text: (row) => (row.file ? lineText(row.file, row.line) : ""), cell: (row) => this.lineCell(row) },
    ];
    const isChosen = (row) => this.view.part !== null && this.view.part.group === row.group;
    this.columnsOf = columns;
    const make = (pair) => sortableTable({ caption: pair ? "Blocks that came and went" : "Blocks in use", columns: columns(pair), rows: [], isChosen });
    this.tables = { moment: make(false), pair: make(true) };
    for (const { table } of Object.values(this.tables)) table.addEventListener("shown", () => colorSwatches(table, this.colorOf));
    const holder = el("div", {}, this.tables.moment.element, this.tables.pair.element);
    this.count = el("p", { class: "quiet small", role: "status" });
    this.text = el("input", { type: "search", placeholder: isSnapshot ? "Filter: function, file, category" : "Filter: module, operator, file, name", "aria-label": "Filter rows by text" });
    this.category = el("select", { "aria-label": "Filter rows by category" });
    this.only = el("span", {});
    this.filters = el("div", { class: "filters" }, this.text, this.category, this.only, editorChoice(), this.copyButton(), this.count);
    this.text.addEventListener("input", () => this.filter());
    this.category.addEventListener("change", () => this.filter());
    return { element: holder, showAll: (all) => Object.values(this.tables).forEach((table) => table.showAll(all)) };
  }

  // The rows that are shown, in their order.
  copyButton() {
    return button("Copy as table", "As Markdown, and as a table for a spreadsheet", (event) => {
      const { pair } = this.view;
      copyTable(this.columnsOf(Boolean(pair)), (pair ? this.tables.pair : this.tables.moment).sorted(), event.currentTarget);
    });
  }

  filter() {
    const { pair, part } = this.view, { rows } = this, chosen = this.category.value;
    const names = [...new Set(rows.map((row) => row.category))];
    const options = names.includes(chosen) || !chosen ? names : [...names, chosen];
    this.category.replaceChildren(el("option", { value: "" }, "All categories"), ...options.map((name) => el("option", { value: name }, name)));
    this.category.value = chosen;
    this.only.replaceChildren(...(part ? [el("button", { type: "button", class: "chip only", "aria-label": `Show all again, not only ${part.label}`, onclick: () => this.view.set({ part: null }) }, `only ${part.label} \u00d7`)] : []));
    const words = this.text.value.toLowerCase().split(/\s+/).filter((word) => word);
    const shown = rows.filter((row) => (!chosen || row.category === chosen) && (!part || part.group !== undefined || part.has[row.group]) && words.every((word) => haystack(row).includes(word)));
    const bytesOf = pair ? (row) => row.change : (row) => row.bytes;
    const bytes = shown.reduce((sum, row) => sum + bytesOf(row), 0), blocks = shown.reduce((sum, row) => sum + row.count, 0);
    const whole = this.counted(this.view.row);
    this.count.textContent = `${grouped(shown.length)} of ${grouped(rows.length)} rows, ${blocksText(blocks)}, ${formatBytes(bytes)} (${exactBytes(bytes)})${pair ? "" : `, ${percent(bytes, whole)} of ${this.isPeak ? "the peak" : "what was in use"}`}.`;
    this.most = shown.reduce((most, row) => Math.max(most, bytesOf(row)), 0);
    this.lines = new Map();
    for (const row of rows.filter(({ file }) => file)) {
      const key = `${row.file}:${row.line}`, line = this.lines.get(key) ?? { rows: 0, bytes: 0 };
      this.lines.set(key, { rows: line.rows + 1, bytes: line.bytes + bytesOf(row) });
    }
    this.tables.moment.element.hidden = Boolean(pair);
    this.tables.pair.element.hidden = !pair;
    (pair ? this.tables.pair : this.tables.moment).update(shown);
    this.showCheck(pair, this.smallBytes, rows.length - shown.length);
  }

  // The size is a button: the row is shown on the timeline and in the tree.
  sizeCell(row, text, bytes = null) {
    const isChosen = this.view.part?.group === row.group;
    return el("button", { type: "button", class: "bar-cell", "aria-pressed": isChosen, title: "Show it on the timeline and in the tree", onclick: () => this.chooseRow(row) }, bytes === null ? null : barTrack(bytes, this.most), el("span", { class: "bar-text" }, text));
  }
  chooseRow(row) {
    if (this.view.part?.group === row.group) {
      this.view.set({ part: null });
      return;
    }
    const path = this.paths[row.group], part = makePart(this.moments.groups, this.labelOf(row), (group) => group.group === row.group);
    this.icicle.path = path.split(PATH_SEPARATOR).slice(0, -2).join(PATH_SEPARATOR);
    this.view.set({ part: Object.assign(part, { path, group: row.group }) });
  }
  labelOf(row) { return row.name ?? placeText(row) ?? makerOf(row) ?? row.category; }

  // Where a line has several rows, also what it holds in all of them: the number that the headline speaks of.
  lineCell(row) {
    const cell = row.caller_file
      ? [sourceCell(row.file, row.line), el("span", { class: "quiet small" }, "from ", sourceCell(row.caller_file, row.caller_line))]
      : [sourceCell(row.file, row.line)];
    const line = row.file ? this.lines.get(`${row.file}:${row.line}`) : null;
    if (line && line.rows > 1) cell.push(el("span", { class: "quiet small" }, `this line in ${line.rows} rows: ${formatBytes(line.bytes)}`));
    return el("span", { class: "two" }, cell);
  }
}

const signed = (bytes) => `${bytes > 0 ? "+" : ""}${formatBytes(bytes)}`;
const profileColumns = (stacks) => [
  { label: "Phase", value: (row) => row.phase, cell: (row) => twoLines(row.phase?.toLowerCase(), row.step && stepName(row.step)) },
  { label: "Module", value: (row) => row.module, cell: (row) => twoLines(row.module, row.name) },
  { label: "Operator", value: (row) => row.op, cell: (row) => el("span", { class: "two" }, twoLines(row.op, row.shape && `${row.dtype} ${row.shape}`), stackCell(stacks, row.group)) },
];
const snapshotColumns = (stacks) => {
  const functionCell = (row) => el("span", { class: "two" }, el("span", {}, breakable(functionOf(row))), stackCell(stacks, row.group));
  return [
    { label: "Made", value: (row) => row.phase, cell: (row) => row.phase || "in the recording" },
    { label: "Function", value: functionOf, cell: functionCell },
  ];
};

const haystack = (row) => [row.category, row.torch_category, row.phase, row.step, row.module, row.op, row.function, row.file, row.line, row.caller_file, row.caller_line, row.name, row.evidence].join(" ").toLowerCase();
const twoLines = (first, second) => el("span", { class: "two" }, first ? el("span", {}, breakable(first)) : el("span", { class: "quiet" }, "-"), second ? el("span", { class: "quiet small" }, breakable(second)) : null);
const categoryCell = (row) => el("span", { class: "two" }, el("span", { class: "nowrap" }, swatch(row.category), row.category),
  row.torch_category && row.torch_category !== row.category ? el("span", { class: "quiet small" }, `torch: ${row.torch_category}`) : null,
  row.evidence ? el("span", { class: "quiet small" }, row.evidence) : null);

