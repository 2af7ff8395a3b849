// The page's findings: JSON with packed tables in it, which become columns of plain numbers.

// Browsers before 2025 have no `fromBase64`.
const fromBase64 = (base64) => Uint8Array.fromBase64?.(base64) ?? Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

const inflate = async (base64) => {
  const bytes = fromBase64(base64);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

// The inverse of `pack` in blocks.py: eight planes of bytes, lowest first, of the columns' differences.
const unpack = async (table) => {
  const planes = await inflate(table.packed);
  const { rows, columns } = table;
  const size = rows * columns;
  const plane = Array.from({ length: 8 }, (_, k) => planes.subarray(k * size, (k + 1) * size));
  return Array.from({ length: columns }, (_, c) => {
    const column = new Float64Array(rows);
    let value = 0;
    for (let i = 0, at = c * rows; i < rows; i++, at++) {
      const low = plane[0][at] | (plane[1][at] << 8) | (plane[2][at] << 16) | (plane[3][at] << 24);
      const high = plane[4][at] | (plane[5][at] << 8) | (plane[6][at] << 16) | (plane[7][at] << 24);
      value += high * 4294967296 + (low >>> 0);
      column[i] = value;
    }
    return column;
  });
};

const unpackTimeline = async (timeline) => {
  const [number, time, ...values] = await unpack(timeline.stack);
  const lines = await Promise.all(timeline.lines.map(async (line) => {
    const [, lineTime, lineValues] = await unpack(line);
    return { name: line.name, time: lineTime, values: lineValues };
  }));
  const [counted] = timeline.counted ? await unpack(timeline.counted) : [null];
  const { names = [], levels = null } = timeline.compared ?? {}, sides = levels ? await unpack(levels) : [];
  const compared = names.map((name, index) => ({ name, before: sides[index], after: sides[index + names.length] }));
  return { compared, total: timeline.stack.total, number, time, values, series: timeline.series, lines, counted };
};

const unpackSpace = async (space) => {
  const [first, lasting, address, bytes, home, expandable] = await unpack(space.ranges);
  return { homes: space.homes, knownFrom: space.known_from, first, last: first.map((from, index) => from + lasting[index]), address, bytes, home, expandable };
};

// The order of `TEXT_FIELDS` and `_LINE_FIELDS` in blocks.py.
const TEXT_FIELDS = ["category", "torch_category", "evidence", "phase", "module", "op", "function", "file", "name", "caller_file", "dtype", "shape"];
const LINE_FIELDS = ["line", "caller_line"];

const unpackBlocks = async (packed) => {
  const [columns, [first, lasting, bytes, group], [at, changeGroup, changeBytes, changeCount]] =
    await Promise.all([unpack(packed.groups), unpack(packed.blocks), unpack(packed.changes)]);
  const groups = Array.from({ length: packed.groups.rows }, (_, index) => {
    const row = { group: index };
    TEXT_FIELDS.forEach((name, field) => { row[name] = packed.texts[columns[field][index] - 1] ?? null; });
    LINE_FIELDS.forEach((name, field) => { row[name] = columns[TEXT_FIELDS.length + field][index] || null; });
    return row;
  });
  const [address = null, allocated = bytes] = packed.places ? await unpack(packed.places) : [];
  return {
    address, allocated,
    groups, smallerThan: packed.smaller_than, stacks: packed.stacks,
    first: Uint32Array.from(first), last: Uint32Array.from(lasting, (many, index) => first[index] + many), bytes, group: Uint32Array.from(group),
    changes: { at: Uint32Array.from(at), group: Uint32Array.from(changeGroup), bytes: changeBytes, count: changeCount },
  };
};

