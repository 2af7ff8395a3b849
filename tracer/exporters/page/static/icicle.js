// The tree drawn from its root downwards, each node as wide as its bytes. A node is a button: it opens, and is chosen.

const TILE = 26, LEAST_WIDTH = 7, MAX_DEPTH = 48;

class Icicle {
  constructor(view, paths, colorOf, title) {
    Object.assign(this, { view, paths, colorOf, title });
    this.element = el("div", { class: "icicle", role: "tree", "aria-label": title });
    this.status = el("p", { class: "quiet small", role: "status" });
    this.path = "";
    this.rest = null;
    this.width = 0;
    this.joins = true;
    this.wanted = [];
    this.element.addEventListener("keydown", (event) => this.key(event));
  }

  // Rows of a moment; `bytesOf` says which of their numbers counts.
  show(rows, groups, rootLabel, bytesOf = (row) => row.bytes) {
    this.groups = groups;
    this.root = buildTree(rows, this.paths, bytesOf);
    Object.assign(this.root, { label: rootLabel, rows: rows.filter((row) => bytesOf(row) > 0), bytesOf });
    this.rest = null;
    this.draw(this.width);
  }

  // The tree anew, by other labels. Frames of a stack stay apart, also where each has one caller only.
  arrange(paths, joins) {
    Object.assign(this, { paths, joins });
    this.path = "";
  }

  // Marks what has all of the words in its name, and says how much lies at or below such names.
  search(text) {
    this.wanted = text.toLowerCase().split(/\s+/).filter((word) => word);
    this.draw();
    if (!this.wanted.length) return;
    const found = this.root.rows.filter((row) => this.labelsOf(row).some((label) => this.isWanted(label))), bytes = found.reduce((sum, row) => sum + this.root.bytesOf(row), 0);
    this.status.textContent = `Found ${formatBytes(bytes)} (${exactBytes(bytes)}), ${percent(bytes, this.root.bytes)}.`;
  }
  labelsOf(row) { return this.paths[row.group].split(PATH_SEPARATOR); }
  isWanted(label) { return this.wanted.length > 0 && this.wanted.every((word) => label.toLowerCase().includes(word)); }

  // Opens a node of the tree, as the table does for a chosen row.
  open(path) {
    this.path = path;
    this.rest = null;
    this.draw();
  }

  // Asking for the width makes the browser lay out all that has just changed, so a new moment takes the old one.
  draw(known = 0) {
    if (!this.root) return;
    this.width = known || this.element.clientWidth;
    const width = this.width || 600, focused = document.activeElement?.closest?.(".icicle") === this.element ? document.activeElement.dataset.path : null;
    const open = findNode(this.root, this.path), above = lineage(this.root, open);
    this.tiles = [];
    this.deepest = above.length + MAX_DEPTH;
    above.forEach((node, depth) => this.tile(node, 0, width, depth, depth < above.length - 1));
    if (this.rest) {
      this.tile(this.rest, 0, width, above.length, true);
      this.below(this.rest, 0, width, above.length + 1);
    } else this.below(open, 0, width, above.length);
    const deepest = this.tiles.reduce((most, tile) => Math.max(most, tile.depth), 0);
    this.element.style.height = `${(deepest + 1) * TILE}px`;
    this.element.replaceChildren(...this.tiles.map((tile) => tile.element));
    this.current = this.tiles.find((tile) => tile.node.path === focused) ?? this.tiles[above.length - 1 + (this.rest ? 1 : 0)];
    this.tiles.forEach((tile) => { tile.element.tabIndex = tile === this.current ? 0 : -1; });
    if (focused !== null) this.current?.element.focus({ preventScroll: true });
    this.say((this.current ?? this.tiles[0])?.node);
  }

  below(parent, left, width, depth) {
    if (depth >= this.deepest) return;
    const children = largestFirst(parent), one = width / (parent.bytes || 1);
    let at = left;
    children.some((child, index) => {
      const rest = children.slice(index);
      // What is too narrow to be hit is one tile that opens.
      if (child.bytes * one < LEAST_WIDTH && rest.length > 1) {
        const bytes = rest.reduce((sum, node) => sum + node.bytes, 0), shares = new Map();
        for (const node of rest) for (const [category, share] of node.shares) shares.set(category, (shares.get(category) ?? 0) + share);
        const smaller = {
          label: `${grouped(rest.length)} smaller`, path: `${parent.path}${PATH_SEPARATOR}${PATH_SEPARATOR}`, bytes, count: rest.reduce((sum, node) => sum + node.count, 0),
          children: new Map(rest.map((node) => [node.path, node])), category: null, shares, isRest: true,
        };
        if (bytes * one >= 1.5) this.tile(smaller, at, bytes * one, depth);
        return true;
      }
      const { last, label } = this.joins ? joined(child) : { last: child, label: child.label };
      this.tile(last, at, child.bytes * one, depth, false, label);
      this.below(last, at, child.bytes * one, depth + 1);
      at += child.bytes * one;
      return false;
    });
  }

  tile(node, left, width, depth, isAbove = false, label = node.label) {
    const color = node.category ? this.colorOf(node.category) : null, size = formatBytes(node.bytes), isChosen = this.view.part?.path === node.path && node.path !== "";
    const element = el("button", {
      type: "button", class: `tile${isAbove ? " above" : ""}${node.category ? " leaf" : ""}${isChosen ? " is-chosen" : ""}${this.isWanted(label) ? " is-found" : this.wanted.length ? " is-other" : ""}`, role: "treeitem", "aria-level": depth + 1, "aria-selected": isChosen,
      "aria-label": `${label}, ${size}, ${percent(node.bytes, this.root.bytes)}${node.category ? `, ${node.category}` : ""}`, "data-path": node.path,
      style: { left: `${left}px`, width: `${Math.max(1, width - 1)}px`, top: `${depth * TILE}px`, ...(color ? { backgroundColor: color, color: readableOn(color) } : { backgroundImage: this.stripe(node) }) },
    }, width > 34 ? el("span", {}, fittingLabel(label.replace(/^aten::/, ""), width > 130 ? width - 80 : width)) : null, width > 130 && depth > 0 ? el("small", {}, size) : null);
    element.addEventListener("click", () => this.choose(node));
    element.addEventListener("pointerenter", () => this.say(node));
    element.addEventListener("focus", () => this.say(node));
    this.tiles.push({ node, element, depth, left });
  }

  // Of what kinds a module is, below its name.
  stripe(node) {
    let at = 0;
    const stops = [...node.shares].sort((a, b) => b[1] - a[1]).map(([category, bytes]) => {
      const from = at;
      at += (100 * bytes) / (node.bytes || 1);
      return `${this.colorOf(category)} ${from}% ${at}%`;
    });
    return `linear-gradient(to right, ${stops.join(", ")})`;
  }

  choose(node) {
    if (node.isRest) {
      this.rest = node;
      this.path = lineage(this.root, findNode(this.root, node.path)).pop().path;
      this.draw();
      return;
    }
    const isOpen = findNode(this.root, this.path).path === node.path;
    this.rest = null;
    // A leaf has nothing to open; what is open already closes again.
    if (node.children.size) this.path = isOpen && node.path !== "" && this.view.part?.path === node.path ? parentPath(this.root, node) : node.path;
    const { path, label } = this.path === node.path || !node.children.size ? node : findNode(this.root, this.path);
    const part = makePart(this.groups, label, (group) => isInside(this.paths[group.group], path));
    this.view.set({ part: path === "" ? null : Object.assign(part, { path }) });
  }

  say(node) {
    if (!node) return;
    const parts = node.path.split(PATH_SEPARATOR).filter((part) => part);
    const names = parts.length ? parts.join(" \u203a ") : this.root.label;
    const size = node === this.root ? "" : `: ${formatBytes(node.bytes)}`;
    this.status.textContent = `${node.isRest ? `${names} \u203a ${node.label}` : names}${size} (${exactBytes(node.bytes)}), ${percent(node.bytes, this.root.bytes)}, ${blocksText(node.count)}`;
  }

  key(event) {
    const here = this.tiles.findIndex((tile) => tile.element === event.target), tile = this.tiles[here];
    if (!tile || event.ctrlKey || event.metaKey || event.altKey) return;
    const level = (depth) => this.tiles.filter((one) => one.depth === depth).sort((a, b) => a.left - b.left);
    const beside = level(tile.depth), index = beside.indexOf(tile);
    const to = {
      ArrowRight: () => beside[index + 1], ArrowLeft: () => beside[index - 1],
      ArrowDown: () => level(tile.depth + 1).find((one) => one.left >= tile.left - 0.5),
      ArrowUp: () => level(tile.depth - 1).reverse().find((one) => one.left <= tile.left + 0.5),
      Home: () => this.tiles[0],
      Backspace: () => { this.choose(findNode(this.root, parentPath(this.root, findNode(this.root, this.path)))); return null; },
      Escape: () => { this.choose(this.root); return null; },
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const next = to();
    if (!next) return;
    tile.element.tabIndex = -1;
    next.element.tabIndex = 0;
    next.element.focus();
  }
}

// A module that only holds another one is drawn together with it.
const joined = (node) => {
  let last = node, label = node.label;
  while (last.children.size === 1) {
    const [child] = last.children.values();
    if (!child.children.size || ![...child.children.values()].some((one) => one.children.size)) break;
    last = child;
    label = `${label}.${child.label}`;
  }
  return { last, label };
};
const parentPath = (root, node) => (node.path === "" ? "" : lineage(root, node).slice(-2)[0].path);

// Black or white, whichever has more contrast. Source: relative luminance, WCAG 2.2.
const readableOn = (color) => {
  const [r, g, b] = rgbOf(color).map((value) => value / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
};

// The tree by call stack: who called, from the outermost frame inwards, or inverted, from the line that allocated outwards.

const LIBRARY_FRAME = /site-packages|dist-packages|[/\\(]lib[/\\]python3|<frozen |<string>/i;

// `function (folder/file.py:12)` with the file's last two folders only.
const shortFrame = (frame) => frame.replace(/\(([^()]*):(\d+)\)$/, (_, file, line) => `(${lineText(shortPath(file), line)})`);

// What of a name a tile of that width has room for: without its folder, or its place, rather than cut within it.
const fittingLabel = (label, width) => {
  const forms = [label, label.replace(/\([^()]*\/([^()/]*:\d+)\)$/, "($1)"), label.replace(/ \([^()]*:\d+\)$/, "")];
  return forms.find((form) => 6.5 * form.length < width) ?? forms[2];
};

// The labels that lead to a group by its stack. C++ is a library's; where every frame is, the innermost stays.
const stackLabels = (stacks, group, hidesLibraries) => {
  const { python, others, cut } = framesOf(stacks, group), frames = python.length ? python : others;
  if (!frames.length) return ["no stack was recorded"];
  const own = hidesLibraries ? python.filter((frame) => !LIBRARY_FRAME.test(frame)) : frames;
  return [...(own.length ? own : frames.slice(0, 1)).map(shortFrame), ...(cut ? ["frames that are left out"] : [])];
};

// Above the tree: what it is arranged by, and a search in it. `show(paths, arrangement)` draws it anew.
class TreeControls {
  constructor(moments, source, show, search) {
    Object.assign(this, { moments, show });
    const arrangements = { parts: source === "snapshot" ? "By file" : "By module", callers: "By caller", inverted: "By allocating line" };
    this.partPaths = moments.groups.map((group) => [...pathOfRow(group, source), group.category].join(PATH_SEPARATOR));
    this.by = "parts";
    this.libraries = el("input", { type: "checkbox", onchange: () => this.choose(this.by) });
    this.hide = el("label", { hidden: true }, this.libraries, " Hide library frames");
    this.text = el("input", { type: "search", placeholder: "Search in the tree", "aria-label": "Search in the tree" });
    this.text.addEventListener("input", () => search(this.text.value));
    const hasStacks = moments.stacks?.rows.some((row) => row.length);
    this.buttons = Object.entries(hasStacks ? arrangements : {}).map(([by, name]) => el("button", { type: "button", class: "button", "aria-pressed": by === this.by, "data-by": by, onclick: () => this.choose(by) }, name));
    this.element = el("div", { class: "tools tree-tools" }, this.buttons, this.text, this.hide);
  }

  choose(by) {
    this.by = by;
    this.hide.hidden = by === "parts";
    for (const button of this.buttons) button.setAttribute("aria-pressed", button.dataset.by === by);
    const { stacks, groups } = this.moments;
    this.show(by === "parts" ? this.partPaths : groups.map(({ group, category }) => {
      const labels = stackLabels(stacks, group, this.libraries.checked);
      return [...(by === "inverted" ? labels : labels.reverse()), category].join(PATH_SEPARATOR);
    }));
  }
}
