// A stretch of time, or a part of the drawing, measured: how long, what came and went, and what its blocks sum to.

const measured = (timeline, from, to) => {
  const { columns, moments, x, totals } = timeline, [first, last] = [from, to].sort((a, b) => a - b);
  const events = columns.number[last] - columns.number[first], span = timeline.data.axis === "time" ? columns.time[last] - columns.time[first] : null;
  let most = first;
  for (let row = first; row <= last; row++) if (totals[row] > totals[most]) most = row;
  const parts = [span === null ? null : formatSpan(span), `${grouped(events)} ${events === 1 ? "event" : "events"}`];
  if (moments?.canMove) {
    const rows = moments.between(first, last), sum = (what) => rows.reduce((bytes, row) => bytes + row[what], 0);
    parts.push(`${formatBytes(sum("came"))} came and stayed, ${formatBytes(sum("went"))} went, ${signed(sum("came") - sum("went"))}`);
  }
  return `${parts.filter((part) => part).join(", ")}; at most ${formatBytes(totals[most])}, ${timeline.whenText(most)}.`;
};

const formatSpan = (ns) => {
  const [unit, one] = timeUnit(ns / 2 + 1);
  return `${(ns / one).toFixed(3)} ${unit}`;
};

// The blocks that are drawn in a frame, each counted whole.
const framedBlocks = (timeline, left, right, top, bottom) => {
  const { lanes, plot } = timeline, { area, scale } = plot, found = new Set();
  const column = (x) => Math.min(lanes.width - 1, Math.max(0, Math.floor((x - area.left) * scale))), line = (y) => Math.min(lanes.height - 1, Math.max(0, Math.floor((y - area.top) * scale)));
  for (let x = column(left); x <= column(right); x++) for (let y = line(top); y <= line(bottom); y++) found.add(lanes.ids[x * lanes.height + y]);
  const blocks = [...found].filter((block) => block >= 0);
  return `${blocksText(blocks.length)} in the frame, ${formatBytes(blocks.reduce((sum, block) => sum + lanes.moments.bytes[block], 0))} together.`;
};

// What a drag from one point of the plot to another measures; the two moments are compared below.
const measure = (timeline, [x0, y0], [x1, y1], isTall) => {
  const from = timeline.rowAtPixel(Math.min(x0, x1)), to = timeline.rowAtPixel(Math.max(x0, x1));
  if (from === null || to === null) return;
  const framed = timeline.showsLanes && isTall ? `${framedBlocks(timeline, Math.min(x0, x1), Math.max(x0, x1), Math.min(y0, y1), Math.max(y0, y1))} ` : "";
  timeline.setCursor(null);
  if (timeline.moments?.canMove) timeline.chosen.set({ row: to, other: from });
  timeline.parts.readout.textContent = `${framed}${measured(timeline, from, to)}`;
};
