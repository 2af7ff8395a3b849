// The page's findings: JSON with packed tables in it, which become columns of plain numbers.

const readData = () => JSON.parse(document.getElementById("data").textContent);

const fromBase64 = (base64) => {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  // Browsers before 2025.
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
};

const inflate = async (base64) => {
  const bytes = fromBase64(base64);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

// Plotly is packed too, to a third of its size; the page's policy knows it by its hash.
const loadPlotly = async () => {
  const packed = document.getElementById("plotly");
  const text = new TextDecoder().decode(await inflate(packed.textContent));
  packed.replaceWith(el("script", {}, text));
};

// The inverse of `pack` in page_data.py: eight planes of bytes, lowest first, of the columns' differences.
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
  const lines = [];
  for (const line of timeline.lines) {
    const [, lineTime, lineValues] = await unpack(line);
    lines.push({ name: line.name, time: lineTime, values: lineValues });
  }
  return { total: timeline.stack.total, number, time, values, series: timeline.series, lines };
};

