// Searching all blocks: those found are a part of the memory, which the timeline shows over time, with a mark where
// each of them was made. Enter goes from mark to mark.

class Search {
  constructor(timeline) {
    Object.assign(this, { timeline, view: timeline.chosen });
    this.input = el("input", { type: "search", class: "find", placeholder: "Search blocks ( / )", "aria-label": "Search blocks", hidden: true });
    this.input.addEventListener("input", () => this.find(this.input.value));
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.step(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") this.clear();
      else return;
      event.preventDefault();
    });
    this.view.listen((change) => { if ("part" in change && !change.part?.isSearch) this.input.value = ""; });
  }

  // Moments are there later than the timeline, and not always.
  start(moments) {
    const { groups, stacks } = moments, frames = (stacks?.frames ?? []).map((frame) => frame.toLowerCase());
    this.moments = moments;
    this.texts = groups.map((group) => `${haystack(group)} ${(stacks?.rows[group.group] ?? []).map((frame) => frames[frame]).join(" ")}`);
    this.input.hidden = false;
  }

  focus() {
    if (this.input.hidden) return;
    this.input.focus();
    this.input.select();
  }

  clear() {
    this.input.value = "";
    this.find("");
    this.timeline.parts.frame.focus();
  }

  find(text) {
    const words = text.toLowerCase().split(/\s+/).filter((word) => word), { moments } = this;
    if (!words.length) {
      this.view.set({ part: null });
      return;
    }
    const part = makePart(moments.groups, `\u201c${text.trim()}\u201d`, ({ group }) => words.every((word) => this.texts[group].includes(word)));
    this.view.set({ part: Object.assign(part, { isSearch: true, starts: this.starts(part.has) }) });
    this.say();
  }

  // The rows at which a block that was found begins, each once.
  starts(has) {
    const { first, group } = this.moments, rows = [];
    for (let i = 0; i < first.length; i++) if (has[group[i]] && rows[rows.length - 1] !== first[i]) rows.push(first[i]);
    return rows;
  }

  // To where the next of them was made, or the one before.
  step(by) {
    const { part, row } = this.view;
    if (!part?.isSearch || !part.starts.length) return;
    const after = upperBound(part.starts, row), before = part.starts[after - 1] === row ? after - 2 : after - 1;
    const at = Math.min(part.starts.length - 1, Math.max(0, by > 0 ? after : before));
    this.timeline.show(part.starts[at]);
    this.view.set({ row: part.starts[at] });
    this.say(at);
  }

  say(at = null) {
    const { part, row } = this.view, { moments, timeline } = this, found = part.has.reduce((sum, has) => sum + has, 0);
    if (!found) {
      timeline.parts.readout.textContent = `No block is called ${part.label}.`;
      return;
    }
    part.course ??= moments.course(part.has, timeline.x.length);
    let most = 0;
    for (let i = 1; i < part.course.length; i++) if (part.course[i] > part.course[most]) most = i;
    timeline.parts.readout.textContent = [`${grouped(found)} of ${grouped(moments.groups.length)} groups of blocks have ${part.label}: ${formatBytes(part.course[row])} at the chosen moment, at most ${formatBytes(part.course[most])}, ${timeline.whenText(most)}.`,
      at === null ? `Enter goes to where they were made, ${grouped(part.starts.length)} moments.` : `Moment ${grouped(at + 1)} of ${grouped(part.starts.length)}, ${timeline.whenText(row)}.`].join(" ");
  }
}

// A mark below the upper edge wherever one of them was made.
const drawFound = (timeline, pen) => {
  const { part } = timeline.chosen, { plot } = timeline;
  if (!part?.isSearch) return;
  pen.fillStyle = cssColor("--accent");
  let last = -1;
  for (const row of part.starts) {
    const x = Math.round(plot.x(timeline.x[row]));
    if (x === last || x < plot.area.left || x > plot.area.right) continue;
    pen.fillRect(x - 1, plot.area.top, 2, 7);
    last = x;
  }
};
