// The peak as a treemap: module, operator, line, in bytes, coloured by category.

const MAX_TILES = 80;

const treemapNodes = (peak, source) => {
  const nodes = [{ label: `Peak, ${formatBytes(peak.bytes)}`, parent: -1, bytes: 0, category: null }];
  const known = new Map();
  const child = (parent, label, category, more) => {
    const key = JSON.stringify([parent, label, category]);
    if (!known.has(key)) known.set(key, nodes.push({ label, parent, bytes: 0, category, ...more }) - 1);
    return known.get(key);
  };
  const add = (at, bytes) => {
    for (; at >= 0; at = nodes[at].parent) nodes[at].bytes += bytes;
  };
  const rest = { bytes: peak.rest.bytes, groups: peak.rest.groups };
  peak.rows.forEach((row, index) => {
    if (index >= MAX_TILES) {
      rest.bytes += row.bytes;
      rest.groups += 1;
      return;
    }
    const place = row.file && `${shortPath(row.file).split("/").pop()}${row.line ? `:${row.line}` : ""}`;
    const owner = source === "snapshot" ? (row.file ? shortPath(row.file) : "no Python frame") : row.module ?? "outside modules";
    const module = child(0, owner, null);
    const op = child(module, row.op ?? "no operator", null);
    add(child(op, [row.name, place].filter((part) => part).join(", ") || row.category, row.category), row.bytes);
  });
  if (rest.bytes > 0) add(child(0, `${grouped(rest.groups)} smaller groups`, null), rest.bytes);
  return nodes;
};

const pathOf = (nodes, at) => (nodes[at].parent < 0 ? [] : [...pathOf(nodes, nodes[at].parent), nodes[at].label]);

// Black or white, whichever has more contrast. Source: relative luminance, WCAG 2.2.
const readableOn = (color) => {
  const channels = /^#(..)(..)(..)$/.exec(color)?.slice(1).map((hex) => parseInt(hex, 16) / 255) ?? [0.5, 0.5, 0.5];
  const [r, g, b] = channels.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
};

const drawTreemap = (holder, peak, colorOf, source) => {
  const nodes = treemapNodes(peak, source);
  const surface = cssColor("--tile"), ink = cssColor("--ink");
  const trace = {
    type: "treemap",
    ids: nodes.map((_, index) => String(index)),
    parents: nodes.map((node) => (node.parent < 0 ? "" : String(node.parent))),
    labels: nodes.map((node) => plotlyText(node.label)),
    values: nodes.map((node) => node.bytes),
    text: nodes.map((node) => formatBytes(node.bytes)),
    customdata: nodes.map((node, at) =>
      [...pathOf(nodes, at).map(plotlyText), node.category ?? "", `${formatBytes(node.bytes)} (${exactBytes(node.bytes)}), ${percent(node.bytes, peak.bytes)}`]
        .filter((line) => line).join("<br>")),
    branchvalues: "total",
    textinfo: "label+text",
    textfont: { color: nodes.map((node) => (node.category ? readableOn(colorOf(node.category)) : ink)) },
    hovertemplate: "%{customdata}<extra></extra>",
    marker: {
      colors: nodes.map((node) => (node.category ? colorOf(node.category) : surface)),
      line: { color: cssColor("--paper"), width: 1 },
      pad: { t: 19, l: 3, r: 3, b: 3 },
      depthfade: false,
    },
    tiling: { pad: 1 },
    pathbar: { visible: true, thickness: 22, textfont: { color: ink, size: 12 } },
    root: { color: surface },
    maxdepth: 4,
  };
  const layout = {
    width: holder.clientWidth, height: holder.clientHeight,
    margin: { l: 0, r: 0, t: 0, b: 0 },
    paper_bgcolor: "rgba(0,0,0,0)",
    font: { family: FONT, size: 12, color: ink },
    hoverlabel: { bgcolor: cssColor("--raised"), bordercolor: cssColor("--edge"), font: { color: ink, family: FONT, size: 12 }, align: "left", namelength: -1 },
    uniformtext: { minsize: 10, mode: "hide" },
  };
  return Plotly.react(holder, [trace], layout, { displayModeBar: false });
};

