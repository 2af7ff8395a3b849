// What led to a block: the frames of Python, the innermost first, and those of C++ folded behind them.

const framesOf = (stacks, index) => {
  const frames = stacks?.rows[index] ?? [], text = (those) => those.map((frame) => stacks.frames[frame]);
  return { python: text(frames.filter((frame) => stacks.python[frame])), others: text(frames.filter((frame) => !stacks.python[frame])), cut: stacks?.cut[index] ?? 0 };
};

const frameList = (frames) => el("ol", {}, frames.map((frame) => el("li", {}, breakable(frame))));

// All of it; where there is no Python, C++ is not folded.
const wholeStack = ({ python, others, cut }) => [
  python.length ? frameList(python) : null,
  cut ? el("p", { class: "quiet small" }, `${grouped(cut)} more`) : null,
  others.length && python.length ? el("details", { class: "stack" }, el("summary", {}, `${grouped(others.length)} frames of C++`), frameList(others)) : null,
  others.length && !python.length ? frameList(others) : null,
].filter((part) => part);

// To be unfolded in a table's cell.
const stackCell = (stacks, index) => {
  const found = framesOf(stacks, index), many = found.python.length + found.others.length + found.cut;
  if (many < 2) return null;
  const details = el("details", { class: "stack" }, el("summary", {}, `stack, ${grouped(many)} frames`));
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(...wholeStack(found)); });
  return details;
};

// The first few for a hint that is read in passing.
const FEW_FRAMES = 5;
const firstFrames = ({ python, others, cut }) => {
  const first = (python.length ? python : others).slice(0, FEW_FRAMES), left = python.length + others.length + cut - first.length;
  return [...first, ...(left > 0 ? [`and ${grouped(left)} more ${left === 1 ? "frame" : "frames"}`] : [])];
};

// What was in use as a tree: modules inside modules, in them operators and parameters, then lines. A snapshot knows
// neither modules nor operators: its tree goes from files over functions to lines.

const PATH_SEPARATOR = "\u0001";
const functionOf = (row) => row.function ?? "no stack recorded";
const makerOf = (row) => row.op ?? row.function;
const placeText = (row) => (row.file ? lineText(shortPath(row.file).split("/").pop(), row.line) : null);

// The labels that lead to a row, outermost first.
const pathOfRow = (row, source) => {
  if (source === "snapshot") return [row.file ? shortPath(row.file) : "no Python frame", functionOf(row), placeText(row) ?? row.category];
  const modules = !row.module ? ["outside modules"] : row.module.startsWith("(") ? [row.module] : row.module.split(".");
  if (row.name) return [...modules, row.module && row.name.startsWith(`${row.module}.`) ? row.name.slice(row.module.length + 1) : row.name];
  return [...modules, row.op ?? "no operator", placeText(row) ?? row.category];
};

const isInside = (path, ancestor) => ancestor === "" || path === ancestor || path.startsWith(ancestor + PATH_SEPARATOR);

// A tree of rows by one of their numbers. The last label of a path is the category, which is the leaf's colour.
const buildTree = (rows, paths, bytesOf) => {
  const root = { label: "", path: "", bytes: 0, count: 0, children: new Map(), category: null, shares: new Map() };
  for (const row of rows) {
    const bytes = bytesOf(row);
    if (!(bytes > 0)) continue;
    const labels = paths[row.group].split(PATH_SEPARATOR), category = labels.pop();
    let node = root;
    const add = () => {
      node.bytes += bytes;
      node.count += row.count;
      node.shares.set(category, (node.shares.get(category) ?? 0) + bytes);
    };
    add();
    labels.forEach((label, depth) => {
      const isLeaf = depth === labels.length - 1, key = isLeaf ? `${label}${PATH_SEPARATOR}${category}` : label;
      if (!node.children.has(key)) {
        const path = node.path === "" ? key : node.path + PATH_SEPARATOR + key;
        node.children.set(key, { label, path, bytes: 0, count: 0, children: new Map(), category: isLeaf ? category : null, shares: new Map() });
      }
      node = node.children.get(key);
      add();
    });
  }
  return root;
};

// The node of a path, or the nearest that is there.
const findNode = (root, path) => {
  let node = root;
  while (node.path !== path) {
    const next = [...node.children.values()].find((child) => isInside(path, child.path));
    if (!next) break;
    node = next;
  }
  return node;
};

// From the root to a node.
const lineage = (root, node) => {
  const line = [root];
  while (line[line.length - 1].path !== node.path) line.push([...line[line.length - 1].children.values()].find((child) => isInside(node.path, child.path)));
  return line;
};

const largestFirst = (node) => [...node.children.values()].sort((a, b) => b.bytes - a.bytes);

