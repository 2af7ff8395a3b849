// What the reader has chosen: a moment, another one to compare it with, and a part of the memory. Those who show it
// listen. The address keeps the moments, so that a link leads there.

class View {
  constructor(peak) {
    Object.assign(this, { peak, row: peak, other: null, part: null, listeners: [] });
  }
  listen(listener) { this.listeners.push(listener); }
  set(change) {
    Object.assign(this, change);
    for (const listener of this.listeners) listener(change);
  }
  // The earlier and the later of the two moments.
  get pair() { return this.other === null || this.other === this.row ? null : [Math.min(this.row, this.other), Math.max(this.row, this.other)]; }
}

// Events count from 1; a snapshot's rows are the states after its entries, and the first is the start.
const momentNumber = (data, columns, row) => (data.source === "snapshot" ? columns.number[row] - 1 : columns.number[row] + 1);
const rowOfNumber = (data, columns, number) => {
  const wanted = data.source === "snapshot" ? number + 1 : number - 1;
  return Math.min(columns.number.length - 1, Math.max(0, upperBound(columns.number, wanted) - 1));
};

// An address that somebody wrote since then is not replaced before it is read.
let knownAddress = location.hash;
const readAddress = () => {
  knownAddress = location.hash;
  const parts = new URLSearchParams(location.hash.slice(1)), number = (name) => (/^-?\d{1,15}$/.test(parts.get(name) ?? "") ? Number(parts.get(name)) : null);
  const [from, to] = (parts.get("view") ?? "").split("~").map(Number), stretch = Number.isFinite(from) && to > from ? [from, to] : null;
  return { moment: number("t"), other: number("with"), stretch, byEvent: parts.get("by") === "event", page: parts.get("device") };
};
const writeAddress = (parts) => {
  if (location.hash !== knownAddress) return;
  const given = Object.entries(parts).filter(([, value]) => value !== null);
  const address = given.length ? `#${given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&")}` : location.pathname + location.search;
  if (location.protocol !== "about:") history.replaceState(null, "", address); // a frame of a notebook's has no address
  knownAddress = location.hash;
};

// A part of the memory: a name for people, and a 1 for each group in it.
const makePart = (groups, label, has) => ({ label, has: Uint8Array.from(groups, (group) => (has(group) ? 1 : 0)) });

