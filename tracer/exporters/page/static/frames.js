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
