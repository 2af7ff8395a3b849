// Rows of the timeline: which of them a view of so many pixels needs, and which one is under the cursor.

// First index whose value is greater than x; values ascend.
const upperBound = (values, x) => {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
};

// Sums of the columns shown, bottom to top; the last one is the total.
const cumulate = (columns, length) => {
  const sums = [];
  let below = new Float64Array(length);
  for (const column of columns) {
    const sum = new Float64Array(length);
    for (let i = 0; i < length; i++) sum[i] = below[i] + column[i];
    sums.push(sum);
    below = sum;
  }
  return sums;
};

// Of each pixel the first and last row, and the lowest and highest of every column: as `reduce_rows` in data.py.
const rowsInView = (x, columns, from, to, pixels) => {
  const first = Math.max(0, upperBound(x, from) - 1), last = Math.min(x.length, upperBound(x, to) + 1);
  if (last - first <= 4 * pixels) return Uint32Array.from({ length: last - first }, (_, i) => first + i);
  const chosen = new Uint8Array(last - first);
  const scale = pixels / Math.max(x[last - 1] - x[first], 1e-9);
  for (let start = first; start < last; ) {
    const bucket = Math.floor((x[start] - x[first]) * scale);
    let end = start + 1;
    while (end < last && Math.floor((x[end] - x[first]) * scale) === bucket) end++;
    chosen[start - first] = chosen[end - 1 - first] = 1;
    for (const column of end - start > 2 ? columns : []) {
      let low = start, high = start;
      for (let i = start + 1; i < end; i++) {
        if (column[i] < column[low]) low = i;
        else if (column[i] > column[high]) high = i;
      }
      chosen[low - first] = chosen[high - first] = 1;
    }
    start = end;
  }
  const rows = new Uint32Array(chosen.reduce((many, is) => many + is, 0));
  for (let i = 0, at = 0; i < chosen.length; i++) if (chosen[i]) rows[at++] = first + i;
  return rows;
};
// The row that a pixel stands for: the highest in it, or the one that still holds where it has none of its own.
const rowAt = (x, total, from, to) => {
  const start = upperBound(x, from), end = upperBound(x, to);
  if (start >= end) return Math.max(0, start - 1);
  let best = start;
  for (let i = start + 1; i < end; i++) if (total[i] > total[best]) best = i;
  return best;
};

// Rows at which a staircase changes, and its ends: what lies between draws nothing.
const steps = (values, rows) => rows.filter((row, i) => i === 0 || i === rows.length - 1 || values[row] !== values[rows[i - 1]]);

