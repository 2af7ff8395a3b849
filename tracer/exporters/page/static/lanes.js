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

  // A colour for each name, by its bytes; the rest of the names share greys.
  colorOfName(name) {
    if (this.by === "kind") return this.colorOf(name);
    if (!this.colors.has(this.by)) {
      const { groups, group, bytes } = this.moments, sums = new Map();
      for (let i = 0; i < group.length; i++) {
        const one = this.nameOf(groups[group[i]]);
        sums.set(one, (sums.get(one) ?? 0) + bytes[i]);
      }
      const largest = [...sums].sort((a, b) => b[1] - a[1]).slice(0, RANK_COLORS.length);
      this.colors.set(this.by, new Map(largest.map(([one], rank) => [one, RANK_COLORS[rank]])));
    }
    return this.colors.get(this.by).get(name) ?? "#9aa1aa";
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
    // Column after column, each from its top: so that what one block fills lies together, and is filled at once.
    const painted = new Uint32Array(width * height), ids = new Int32Array(width * height).fill(NOTHING);
    const packed = this.packedColors(timeline.chosen.part), rest = packedColor(cssColor("--rest"), 1);
    this.rows = new Int32Array(width);
    // What is in use, in the order in which it was made: thousands, so that what has no pixel of its own costs little.
    const live = new Int32Array(first.length);
    let count = 0, next = 0;
    for (let column = 0; column < width; column++) {
      const from = plot.value(area.left + column / scale), row = rowAt(timeline.x, timeline.totals, from, plot.value(area.left + (column + 1) / scale));
      this.rows[column] = row;
      if (column > 0 && row === this.rows[column - 1]) {
        // The same moment: as the column before it.
        for (const part of [painted, ids]) part.copyWithin(column * height, (column - 1) * height, column * height);
        continue;
      }
      const bottom = (column + 1) * height;
      // The total is that of all kinds, whichever of them are hidden in the stack.
      let level = Math.max(0, this.rest[row]), low = heightOf(level);
      fill(bottom - low, bottom, REST, rest);
      for (; next < first.length && first[next] <= row; next++) live[count++] = next;
      let kept = 0, nextPixel = lowest + (low + 0.5) / perByte;
      for (let i = 0; i < count; i++) {
        const block = live[i];
        if (last[block] <= row) continue;
        live[kept++] = block;
        level += bytes[block];
        if (level < nextPixel || low >= height) continue;
        const end = heightOf(level), color = packed[group[block]];
        fill(bottom - end, bottom - low, block, color);
        // A darker edge on top keeps two blocks of one colour apart.
        if (end - low > 3) painted[bottom - end] = darker(color);
        low = Math.max(low, end);
        nextPixel = lowest + (low + 0.5) / perByte;
      }
      count = kept;
    }
    function heightOf(upTo) {
      return Math.max(0, Math.min(height, Math.round((upTo - lowest) * perByte)));
    }
    function fill(start, end, id, color) {
      painted.fill(color, start, end);
      ids.fill(id, start, end);
    }
    Object.assign(this, { ids, width, height });
    // An image is not clipped or scaled, and knows nothing of what lies below it.
    const layer = document.createElement("canvas");
    layer.width = width;
    layer.height = height;
    layer.getContext("2d").putImageData(turned(painted, pen.createImageData(width, height)), 0, 0);
    pen.drawImage(layer, area.left, area.top, area.width, plot.base - area.top);
  }

  // Bytes in use that belong to no block in the file, at each kept row.
  get rest() {
    return this.restOfRows ??= (() => {
      const { first, last, bytes } = this.moments, sums = cumulate(this.columns.values, this.columns.number.length), changes = new Float64Array(this.columns.number.length + 1);
      for (let i = 0; i < first.length; i++) {
        changes[first[i]] += bytes[i];
        changes[last[i]] -= bytes[i];
      }
      let ofBlocks = 0;
      return sums[sums.length - 1].map((total, row) => total - (ofBlocks += changes[row]));
    })();
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
    return column >= 0 && column < this.width && line >= 0 && line < this.height ? this.ids[column * this.height + line] : NOTHING;
  }

  // The blocks over a point of the axis, from below, each with the middle of its height.
  over(timeline, x) {
    const { area, scale } = timeline.plot, column = Math.min(this.width - 1, Math.max(0, Math.floor((x - area.left) * scale))), found = [];
    for (let line = this.height - 1; line >= 0; ) {
      const top = column * this.height, block = this.ids[top + line];
      let end = line;
      while (end > 0 && this.ids[top + end - 1] === block) end--;
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
      [group.name, makerOf(group), group.shape && `${group.dtype} ${group.shape}`].filter((one) => one).join(", "),
      group.module, placeText(group) && `${placeText(group)}${group.caller_file ? `, from ${lineText(shortPath(group.caller_file), group.caller_line)}` : ""}`,
      first === 0 ? "there at the start of what is shown" : `made by ${timeline.whenText(first)}`, ends,
    ];
    const head = el("p", {}, swatch(group.category), `${group.category} ${formatBytes(moments.bytes[block])} (${exactBytes(moments.bytes[block])})`);
    colorSwatches(head, this.colorOf);
    return [head, ...lines.filter((line) => line).map((line) => el("p", { class: "line" }, line))];
  }
}

// The image of pixels that lie column after column; in squares, so that both stay in the processor's cache.
const turned = (painted, image) => {
  const { width, height } = image, pixels = new Uint32Array(image.data.buffer), side = 32;
  for (let left = 0; left < width; left += side)
    for (let top = 0; top < height; top += side)
      for (let column = left; column < Math.min(width, left + side); column++)
        for (let line = top; line < Math.min(height, top + side); line++) pixels[line * width + column] = painted[column * height + line];
  return image;
};

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
