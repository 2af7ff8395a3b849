// Each block over time, stacked in the order of allocation: one pixel of the screen at a time, so that many thousand
// blocks are drawn as fast as a few. Of blocks that share a pixel the uppermost is seen, in its colour, and zooming the
// bytes takes them apart. What the file has no blocks of is summed at the bottom, and so the heights add up.

const REST = -1, NOTHING = -2;

class Lanes {
  constructor(moments, columns, colorOf, source) {
    Object.assign(this, { moments, columns, colorOf, source });
    this.by = "kind";
    this.colors = new Map();
  }

  // What a group is coloured by.
  nameOf(group) {
    if (this.by === "kind") return group.category;
    if (this.by === "module") return this.source === "snapshot" ? (group.file ? shortPath(group.file) : "no Python frame") : group.module ?? "outside modules";
    return placeText(group) ?? group.name ?? group.category;
  }

  // A colour for each name, by its largest bytes; the rest of the names share greys.
  ranked() {
    const { groups, group, bytes } = this.moments, sums = new Map();
    for (let i = 0; i < group.length; i++) {
      const name = this.nameOf(groups[group[i]]);
      sums.set(name, (sums.get(name) ?? 0) + bytes[i]);
    }
    return [...sums].sort((a, b) => b[1] - a[1]).map(([name]) => name);
  }
  colorOfName(name) {
    if (this.by === "kind") return this.colorOf(name);
    const key = this.by;
    if (!this.colors.has(key)) this.colors.set(key, new Map(this.ranked().slice(0, RANK_COLORS.length).map((one, rank) => [one, RANK_COLORS[rank]])));
    return this.colors.get(key).get(name) ?? "#9aa1aa";
  }
  // The names with colours of their own, for a key.
  get named() {
    if (this.by === "kind") return [];
    this.colorOfName("");
    return [...this.colors.get(this.by)];
  }

  draw(timeline, pen) {
    const { plot } = timeline, { area, scale } = plot, { first, last, bytes, group } = this.moments;
    const width = Math.round(area.width * scale), height = Math.round((plot.base - area.top) * scale), perByte = height / (plot.top - plot.low), lowest = plot.low;
    if (width < 2 || height < 2) return;
    const image = pen.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
    const ids = new Int32Array(width * height).fill(NOTHING);
    const packed = this.packedColors(timeline.chosen.part), rest = packedColor(cssColor("--rest"), 1);
    this.rows = new Int32Array(width);
    let live = [], next = 0;
    for (let column = 0; column < width; column++) {
      const from = plot.value(area.left + column / scale), row = rowAt(timeline.x, timeline.totals, from, plot.value(area.left + (column + 1) / scale));
      if (column === 0 || row !== this.rows[column - 1]) {
        live = live.filter((block) => last[block] > row);
        for (; next < first.length && first[next] <= row; next++) if (last[next] > row) live.push(next);
      } else {
        // The same moment: as the column before it.
        for (let at = column; at < pixels.length; at += width) [pixels[at], ids[at]] = [pixels[at - 1], ids[at - 1]];
        this.rows[column] = row;
        continue;
      }
      this.rows[column] = row;
      let shown = 0;
      for (const block of live) shown += bytes[block];
      // The total is that of all kinds, whichever of them are hidden in the stack.
      let level = Math.max(0, this.total(row) - shown), low = fill(0, level, REST, rest);
      for (const block of live) {
        level += bytes[block];
        low = fill(low, level, block, packed[group[block]]);
      }
      function fill(start, upTo, id, color) {
        const end = Math.min(height, Math.round((upTo - lowest) * perByte));
        for (let y = start; y < end; y++) {
          const at = (height - 1 - y) * width + column;
          // A darker edge on top keeps two blocks of one colour apart.
          pixels[at] = y === end - 1 && end - start > 3 && id !== REST ? darker(color) : color;
          ids[at] = id;
        }
        return Math.max(start, end);
      }
    }
    Object.assign(this, { ids, width, height });
    // An image is not clipped or scaled, and knows nothing of what lies below it.
    const layer = document.createElement("canvas");
    layer.width = width;
    layer.height = height;
    layer.getContext("2d").putImageData(image, 0, 0);
    pen.drawImage(layer, area.left, area.top, area.width, plot.base - area.top);
  }

  total(row) {
    this.totals ??= (() => {
      const sums = cumulate(this.columns.values, this.columns.number.length);
      return sums[sums.length - 1];
    })();
    return this.totals[row];
  }

  packedColors(part) {
    const paper = rgbOf(cssColor("--paper"));
    return Uint32Array.from(this.moments.groups, (group) => {
      const color = this.colorOfName(this.nameOf(group));
      return !part || part.has[group.group] ? packedColor(color, 1) : packedColor(color, 0.25, paper);
    });
  }

  // The block at a point of the plot, REST or NOTHING.
  at(timeline, x, y) {
    const { area, scale } = timeline.plot, column = Math.floor((x - area.left) * scale), line = Math.floor((y - area.top) * scale);
    return column >= 0 && column < this.width && line >= 0 && line < this.height ? this.ids[line * this.width + column] : NOTHING;
  }

  // The blocks over a point of the axis, from below, each with the middle of its height.
  over(timeline, x) {
    const { area, scale } = timeline.plot, column = Math.min(this.width - 1, Math.max(0, Math.floor((x - area.left) * scale))), found = [];
    for (let line = this.height - 1; line >= 0; ) {
      const block = this.ids[line * this.width + column];
      let end = line;
      while (end > 0 && this.ids[(end - 1) * this.width + column] === block) end--;
      if (block >= 0) found.push({ block, y: area.top + (line + end + 1) / 2 / scale });
      line = end - 1;
    }
    return found;
  }

  tip(timeline, x, y, row) {
    const block = this.at(timeline, x, y);
    if (block === NOTHING) return null;
    const { moments } = this;
    if (block === REST) return [el("p", {}, moments.smallerThan ? `Blocks below ${formatBytes(moments.smallerThan)}, and what no block explains, together` : "What no block explains"), el("p", { class: "quiet" }, timeline.whenText(row))];
    const frames = firstFrames(framesOf(moments.stacks, moments.group[block]));
    return [...this.words(timeline, block), ...frames.map((line) => el("p", { class: "line quiet" }, line)), el("p", { class: "line quiet" }, `A click or Enter keeps this below${frames.length ? ", with the whole stack" : ""}.`)];
  }

  // All that is known of a block.
  words(timeline, block) {
    const { moments } = this;
    const group = moments.groups[moments.group[block]], first = moments.first[block], last = moments.last[block];
    const ends = last >= this.columns.number.length ? "never freed in the recording" : `freed by ${timeline.whenText(last)}`;
    const lines = [
      [group.name, group.op, group.shape && `${group.dtype} ${group.shape}`].filter((one) => one).join(", "),
      group.module, placeText(group) && `${placeText(group)}${group.caller_file ? `, from ${lineText(shortPath(group.caller_file), group.caller_line)}` : ""}`,
      first === 0 ? "there at the start of what is shown" : `made by ${timeline.whenText(first)}`, ends,
    ];
    const head = el("p", {}, swatch(group.category), `${group.category} ${formatBytes(moments.bytes[block])} (${exactBytes(moments.bytes[block])})`);
    colorSwatches(head, this.colorOf);
    return [head, ...lines.filter((line) => line).map((line) => el("p", { class: "line" }, line))];
  }
}

const rgbOf = (color) => {
  const hex = /^#(..)(..)(..)$/.exec(color);
  return hex ? hex.slice(1).map((part) => parseInt(part, 16)) : [128, 128, 128];
};
// As the pixels of a canvas have it, on machines whose lowest byte comes first: all that browsers run on.
const packedColor = (color, share, paper = [255, 255, 255]) => {
  const [r, g, b] = rgbOf(color).map((value, i) => Math.round(value * share + paper[i] * (1 - share)));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
};
const darker = (packed) => ((packed & 0xff000000) | (((packed & 0xfefefe) >> 1) + ((packed & 0xfcfcfc) >> 2))) >>> 0;

