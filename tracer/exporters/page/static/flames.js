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

const stackPaths = (stacks, groups, { inverted, hidesLibraries }) => groups.map(({ group, category }) => {
  const labels = stackLabels(stacks, group, hidesLibraries);
  return [...(inverted ? labels : labels.reverse()), category].join(PATH_SEPARATOR);
});

// Above the tree: what it is arranged by, and a search in it. `show(paths, arrangement)` draws it anew.
class TreeControls {
  constructor(moments, source, show, search) {
    Object.assign(this, { moments, show });
    this.arrangements = { parts: source === "snapshot" ? "By file" : "By module", callers: "By caller", inverted: "By allocating line" };
    this.partPaths = groupPaths(moments.groups, source);
    this.by = "parts";
    this.libraries = el("input", { type: "checkbox", onchange: () => this.choose(this.by) });
    this.hide = el("label", { hidden: true }, this.libraries, " Hide library frames");
    this.text = el("input", { type: "search", placeholder: "Search in the tree", "aria-label": "Search in the tree" });
    this.text.addEventListener("input", () => search(this.text.value));
    const hasStacks = moments.stacks?.rows.some((row) => row.length);
    this.buttons = Object.entries(hasStacks ? this.arrangements : {}).map(([by, name]) => el("button", { type: "button", class: "button", "aria-pressed": by === this.by, "data-by": by, onclick: () => this.choose(by) }, name));
    this.element = el("div", { class: "tools tree-tools" }, this.buttons, this.text, this.hide);
  }

  choose(by) {
    this.by = by;
    this.hide.hidden = by === "parts";
    for (const button of this.buttons) button.setAttribute("aria-pressed", button.dataset.by === by);
    const { stacks, groups } = this.moments;
    this.show(by === "parts" ? this.partPaths : stackPaths(stacks, groups, { inverted: by === "inverted", hidesLibraries: this.libraries.checked }));
  }
}
