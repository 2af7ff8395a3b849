// What the allocator did on the way to a moment, and what it would do with one more request.

// Sizes of torch's allocator, as `tracer/block_sizes.py` has them with their source.
const ROUND_TO = 512, SMALL_REQUEST = 1024 ** 2, SMALL_SEGMENT = 2 * 1024 ** 2, LARGE_SEGMENT = 20 * 1024 ** 2, LARGE_REQUEST = 10 * 1024 ** 2;
const segmentSize = (bytes) => (bytes <= SMALL_REQUEST ? SMALL_SEGMENT : bytes < LARGE_REQUEST ? LARGE_SEGMENT : Math.ceil(bytes / SMALL_SEGMENT) * SMALL_SEGMENT);
const MOST_CHANGES = 6;
const hex = (number) => `0x${number.toString(16)}`;

// A stream and its pool, whichever blocks are in it; `page_space` in blocks.py writes the name.
const withoutSize = (home) => home.replace(/, segments for small blocks$/, "");

// Free pieces of a segment, by address.
const freePieces = (segment, moments) => {
  const pieces = [];
  let at = segment.start;
  for (const block of [...segment.blocks, null]) {
    const until = block === null ? segment.end : moments.address[block];
    if (until > at) pieces.push({ start: at, end: until, segment });
    if (block !== null) at = Math.max(at, until + moments.allocated[block]);
  }
  return pieces;
};
const pieceAt = (segments, moments, address) => {
  const segment = segments.find((one) => one.start <= address && address < one.end);
  return segment ? freePieces(segment, moments).find((piece) => piece.start <= address && address < piece.end) ?? null : null;
};

class AllocatorSteps {
  constructor(space) {
    this.space = space;
    this.changes = el("ul", { class: "changes" });
    this.title = el("h3", { role: "status" });
    const go = (by, when) => () => this.go(by, when);
    this.tools = el("div", { class: "tools", role: "group", "aria-label": "Step by step" },
      button("\u2190 Before", "To the moment before", go(-1, () => true)), button("Next \u2192", "To the next moment", go(1, () => true)),
      button("\u2190 Segment change", "To where segments were reserved or released before", go(-1, (row) => this.segmentRows.has(row))),
      button("Segment change \u2192", "To where segments are reserved or released next", go(1, (row) => this.segmentRows.has(row))));
    this.wanted = el("input", { type: "text", value: "512 MiB", size: 10, "aria-label": "Size of a request", spellcheck: "false" });
    this.verdict = el("p", { role: "status" });
    this.wanted.addEventListener("input", () => this.judge());
    const streams = [...new Set(space.space.homes.map(withoutSize))];
    this.stream = el("select", { "aria-label": "Stream of the request", hidden: streams.length < 2 }, streams.map((name) => el("option", { value: name }, `on ${name}`)));
    this.stream.addEventListener("change", () => this.judge());
    this.element = el("div", { class: "allocator" }, this.tools, this.title, this.changes,
      el("p", { class: "question" }, el("label", {}, "Would a request of ", this.wanted, " fit at this moment?"), " ", this.stream), this.verdict);
  }

  // Rows at which what is reserved changes, but for the first of which anything is known.
  get segmentRows() {
    const { first, last, knownFrom } = this.space.space;
    this.rowsOfSegments ??= new Set([...first, ...last].filter((row) => row > knownFrom && row < this.space.numRows));
    return this.rowsOfSegments;
  }

  go(by, wanted) {
    const { view, numRows } = this.space;
    for (let row = view.row + by; row >= 0 && row < numRows; row += by) {
      if (!wanted(row)) continue;
      view.set({ row });
      return;
    }
  }

  show(row, segments) {
    this.segments = segments;
    const { space, columns } = this.space, isKnown = row > space.knownFrom, before = isKnown ? this.space.segments(row - 1) : [];
    const skipped = isKnown ? columns.number[row] - columns.number[row - 1] : 0, found = isKnown ? this.found(row, before, segments) : [];
    this.title.textContent = !isKnown ? "Nothing is known of what the allocator did before." : skipped > 1 ? `In the ${grouped(skipped)} events since the moment before` : "What the allocator did here";
    const more = found.length - MOST_CHANGES;
    this.changes.replaceChildren(...found.slice(0, MOST_CHANGES).map((words) => el("li", {}, words)),
      ...(more > 0 ? [el("li", { class: "quiet" }, `and ${grouped(more)} more`)] : []), ...(isKnown && !found.length ? [el("li", { class: "quiet" }, "Nothing that this page knows block by block.")] : []));
    this.judge();
  }

  // Sentences on each segment and block that came or went.
  found(row, before, after) {
    const { space, moments } = this.space, words = [];
    const range = (i) => `${formatBytes(space.bytes[i])} at ${hex(space.address[i])} (${space.homes[space.home[i]]})`;
    for (let i = 0; i < space.first.length; i++) {
      if (space.first[i] === row) words.push(`Reserved ${space.expandable[i] ? "pages of an expandable segment" : "a segment"}: ${range(i)}.`);
      if (space.last[i] === row) words.push(`Released to the device: ${range(i)}.`);
    }
    for (let i = upperBound(moments.first, row - 1), end = upperBound(moments.first, row); i < end; i++) if (moments.last[i] > row) words.push(this.allocated(i, before, after));
    for (let i = 0; i < moments.last.length; i++) if (moments.last[i] === row && moments.first[i] < row) words.push(this.freed(i, before, after));
    return words;
  }

  name(block) {
    const { moments } = this.space, group = moments.groups[moments.group[block]];
    const maker = placeText(group) || makerOf(group);
    return `${formatBytes(moments.allocated[block])} (${[group.category, maker].filter(Boolean).join(", ")})`;
  }

  allocated(block, before, after) {
    const { moments } = this.space, bytes = moments.allocated[block], address = moments.address[block], was = pieceAt(before, moments, address);
    const head = `Allocated ${this.name(block)} at ${hex(address)}: `;
    if (!was) {
      const left = pieceAt(after, moments, address + bytes);
      return `${head}in memory that was reserved for it${left ? `, of which ${formatBytes(left.end - left.start)} stay free` : ""}.`;
    }
    const size = was.end - was.start;
    return `${head}${size > bytes ? `split off a free piece of ${formatBytes(size)}, of which ${formatBytes(size - bytes)} stay free` : `a free piece of just this size`}.`;
  }

  freed(block, before, after) {
    const { moments } = this.space, bytes = moments.allocated[block], is = pieceAt(after, moments, moments.address[block]), head = `Freed ${this.name(block)}: `;
    if (!is) return `${head}its segment was released, or its place is in use again.`;
    const size = is.end - is.start, whole = size === is.segment.end - is.segment.start ? ", the whole segment" : "";
    return `${head}${size > bytes ? `merged with free memory beside it to a piece of ${formatBytes(size)}` : `a free piece of ${formatBytes(size)}`}${whole}.`;
  }

  // Whether a request is served from what is free, as torch looks for it: the smallest piece that is large enough.
  judge() {
    const bytes = parseBytes(this.wanted.value), { verdict } = this, { moments } = this.space;
    this.wanted.setAttribute("aria-invalid", bytes === null);
    if (bytes === null || !this.segments) {
      verdict.textContent = bytes === null ? "A size is a number and a unit: 512 MiB, 1.5 GiB." : "";
      return;
    }
    const size = Math.ceil(bytes / ROUND_TO) * ROUND_TO, isSmall = size <= SMALL_REQUEST, { homes } = this.space.space;
    // Small requests have segments of their own; an expandable one of the large pool may hold neither.
    const hasSmall = homes.some((name) => name !== withoutSize(name));
    const isOf = (segment) => withoutSize(homes[segment.home]) === this.stream.value && (homes[segment.home] !== withoutSize(homes[segment.home])) === (isSmall && hasSmall);
    const mine = this.segments.filter(isOf), pieces = mine.flatMap((segment) => freePieces(segment, moments)).sort((a, b) => a.end - a.start - (b.end - b.start));
    const room = pieces.find((piece) => piece.end - piece.start >= size), free = pieces.reduce((sum, piece) => sum + piece.end - piece.start, 0), reserved = this.segments.reduce((sum, segment) => sum + segment.end - segment.start, 0);
    if (room) {
      const left = room.end - room.start - size;
      verdict.textContent = `Yes, in reserved memory: the smallest free piece that is large enough has ${formatBytes(room.end - room.start)}, at ${hex(room.start)} (${homes[room.segment.home]})${left ? `; ${formatBytes(left)} of it stay free` : ""}.`;
      return;
    }
    const largest = pieces[pieces.length - 1], grows = mine.some((segment) => segment.expandable), more = grows ? Math.ceil(size / SMALL_SEGMENT) * SMALL_SEGMENT : segmentSize(size);
    const whole = this.segments.filter((segment) => !segment.blocks.length), back = whole.reduce((sum, segment) => sum + segment.end - segment.start, 0);
    verdict.textContent = [
      largest ? `Not in reserved memory: of ${formatBytes(free)} that are free there, in ${grouped(pieces.length)} ${pieces.length === 1 ? "piece" : "pieces"}, the largest piece has ${formatBytes(largest.end - largest.start)}.` : "Not in reserved memory: nothing is free there.",
      `${grows ? `The expandable segment grows by ${formatBytes(more)} at most` : `A segment of ${formatBytes(more)} is asked of the device`}, so that ${formatBytes(reserved)} reserved become ${formatBytes(reserved + more)}.`,
      back ? `If the device has not as much left, ${formatBytes(back)} in ${grouped(whole.length)} ${whole.length === 1 ? "segment" : "segments"} without a block ${whole.length === 1 ? "is" : "are"} given back first; then the request fails.` : "If the device has not as much left, the request fails: no segment is without a block, so that nothing can be given back.",
    ].join(" ");
  }
}

// As people write sizes; null for what is none.
const parseBytes = (text) => {
  const found = /^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*$/i.exec(text), bytes = found && Number(found[1]) * 1024 ** " KMGT".indexOf(found[2].toUpperCase() || " ");
  return bytes && bytes >= 1 ? Math.ceil(bytes) : null;
};
