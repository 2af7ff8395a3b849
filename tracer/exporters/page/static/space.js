// The address space at the chosen moment: every segment by pool and stream, with its blocks and its holes, drawn one
// behind the other like a tape that goes on in the next line.

const LINE = 14, LINE_GAP = 3, SEGMENT_GAP = 3, MOST_LINES = 22;

class SpaceSection {
  constructor(space, moments, columns, view, colorOf) {
    Object.assign(this, { space, moments, columns, view, colorOf });
    this.numRows = columns.number.length;
    this.steps = new AllocatorSteps(this);
    this.tapes = el("div", { class: "space" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.words = el("p", {});
    section("space", "Segments", this.words, this.steps.element, this.tapes);
    view.listen((change) => { if ("row" in change || "part" in change) this.draw(); });
    this.draw();
  }

  // Segments at a moment, by address: what is expandable and touches is one. Their blocks, by address too.
  segments(row) {
    const { space, moments } = this, ranges = [];
    for (let i = 0; i < space.first.length; i++) if (space.first[i] <= row && space.last[i] > row) ranges.push(i);
    ranges.sort((a, b) => space.home[a] - space.home[b] || space.address[a] - space.address[b]);
    const found = [];
    for (const i of ranges) {
      const last = found[found.length - 1], end = space.address[i] + space.bytes[i];
      if (last && last.home === space.home[i] && last.expandable && space.expandable[i] && last.end === space.address[i]) last.end = end;
      else found.push({ home: space.home[i], expandable: space.expandable[i] === 1, start: space.address[i], end, blocks: [], used: 0 });
    }
    const byAddress = [...found].sort((a, b) => a.start - b.start), starts = byAddress.map((segment) => segment.start);
    const live = [];
    for (let i = 0, end = upperBound(moments.first, row); i < end; i++) if (moments.last[i] > row) live.push(i);
    live.sort((a, b) => moments.address[a] - moments.address[b]);
    for (const block of live) {
      const segment = byAddress[upperBound(starts, moments.address[block]) - 1];
      if (!segment || moments.address[block] >= segment.end) continue;
      segment.blocks.push(block);
      segment.used += moments.allocated[block];
    }
    return found;
  }

  draw() {
    if (this.view.row < this.space.knownFrom) {
      this.words.textContent = "What was reserved at this moment is not known: the allocator's history begins later.";
      this.tapes.replaceChildren();
      this.steps.show(this.view.row, []);
      return;
    }
    const { row } = this.view, found = this.segments(row), total = found.reduce((sum, one) => sum + one.end - one.start, 0), used = found.reduce((sum, one) => sum + one.used, 0);
    const small = this.moments.smallerThan ? ` Blocks below ${formatBytes(this.moments.smallerThan)} are not drawn, so that their place looks free.` : "";
    const whole = found.filter((segment) => !segment.blocks.length), back = whole.reduce((sum, segment) => sum + segment.end - segment.start, 0);
    const kept = back && back < total - used ? `, ${formatBytes(back)} of it in segments without a block, which empty_cache() gives back, and ${formatBytes(total - used - back)} beside blocks` : back ? ", all of it in segments without a block, which empty_cache() gives back" : total > used ? ", all of it beside blocks, which empty_cache() leaves reserved" : "";
    this.words.textContent = `${grouped(found.length)} ${found.length === 1 ? "segment" : "segments"}, ${formatBytes(total)} reserved (${exactBytes(total)}): ${formatBytes(used)} in use as the allocator rounds it, and ${formatBytes(total - used)} free${kept}.${small}`;
    const width = this.tapes.clientWidth || 600, perByte = (MOST_LINES * width) / Math.max(1, total);
    this.tapes.replaceChildren(...this.space.homes.flatMap((name, home) => {
      const mine = found.filter((segment) => segment.home === home);
      return mine.length ? this.tape(name, mine, width, perByte) : [];
    }), this.tip);
    this.steps.show(row, found);
  }

  // One pool: a canvas of lines.
  tape(name, segments, width, perByte) {
    let at = 0;
    const places = segments.map((segment) => {
      const long = Math.max(3, (segment.end - segment.start) * perByte);
      // A segment that fits into a line is not cut.
      if (long <= width && (at % width) + long > width) at = Math.ceil(at / width) * width;
      const place = { segment, at, long };
      at += long + SEGMENT_GAP;
      return place;
    });
    const lines = Math.ceil(at / width), height = lines * (LINE + LINE_GAP), scale = Math.min(2, window.devicePixelRatio || 1);
    const bytes = segments.reduce((sum, one) => sum + one.end - one.start, 0), used = segments.reduce((sum, one) => sum + one.used, 0);
    const canvas = el("canvas", { width: Math.round(width * scale), height: Math.round(height * scale), style: { height: `${height}px` }, role: "img", "aria-label": `${name}: ${grouped(segments.length)} segments, ${formatBytes(bytes)}, of it ${formatBytes(bytes - used)} free` });
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const hole = cssColor("--tile"), edge = cssColor("--edge"), { part } = this.view, { moments } = this;
    // A stretch of the tape, cut where its lines end.
    const bar = (from, long, color) => {
      pen.fillStyle = color;
      for (let start = from; start < from + long - 1e-6;) {
        const line = Math.floor(start / width + 1e-9), stop = Math.min(from + long, (line + 1) * width);
        pen.fillRect(start - line * width, line * (LINE + LINE_GAP), Math.max(0.4, stop - start), LINE);
        start = stop;
      }
    };
    for (const { segment, at: start, long } of places) {
      const one = long / (segment.end - segment.start);
      bar(start, long, edge);
      bar(start + 0.5, long - 1, hole);
      for (const block of segment.blocks) {
        const group = moments.groups[moments.group[block]];
        pen.globalAlpha = !part || part.has[group.group] ? 1 : 0.25;
        const broad = moments.allocated[block] * one;
        bar(start + (moments.address[block] - segment.start) * one, broad > 3 ? broad - 0.5 : broad, this.colorOf(group.category));
      }
      pen.globalAlpha = 1;
    }
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect(), line = Math.floor((event.clientY - box.top) / (LINE + LINE_GAP));
      this.read(places, line * width + event.clientX - box.left, event);
    });
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    return [el("h3", {}, `${name}: ${grouped(segments.length)} ${segments.length === 1 ? "segment" : "segments"}, ${formatBytes(bytes)}, of it ${formatBytes(bytes - used)} free`), canvas];
  }

  read(places, at, event) {
    const place = places.find((one) => at >= one.at && at <= one.at + one.long), { moments, tip } = this;
    tip.hidden = !place;
    if (!place) return;
    const { segment } = place, address = segment.start + ((at - place.at) / place.long) * (segment.end - segment.start);
    const block = segment.blocks.find((one) => moments.address[one] <= address && moments.address[one] + moments.allocated[one] > address);
    const head = `Segment at ${hex(segment.start)}, ${formatBytes(segment.end - segment.start)}, ${formatBytes(segment.end - segment.start - segment.used)} free`;
    if (block === undefined) {
      const before = segment.blocks.filter((one) => moments.address[one] <= address).pop(), behind = segment.blocks.find((one) => moments.address[one] > address);
      const low = before === undefined ? segment.start : moments.address[before] + moments.allocated[before], high = behind === undefined ? segment.end : moments.address[behind];
      tip.replaceChildren(el("p", {}, head), el("p", { class: "line" }, `Free: ${formatBytes(high - low)} at ${hex(low)}`));
    } else {
      const group = moments.groups[moments.group[block]];
      tip.replaceChildren(el("p", {}, head), el("p", { class: "line" }, `${group.category} ${formatBytes(moments.bytes[block])} (${exactBytes(moments.bytes[block])}) at ${hex(moments.address[block])}`), el("p", { class: "line" }, [makerOf(group), placeText(group)].filter((one) => one).join(", ")));
    }
    const box = this.tapes.getBoundingClientRect(), left = event.clientX - box.left + 12;
    Object.assign(tip.style, { left: `${Math.max(0, Math.min(left, box.width - tip.offsetWidth))}px`, top: `${event.clientY - box.top + 16}px` });
  }
}
