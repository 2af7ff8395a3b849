// The first card: what ended the program, the peak and what it was made of.

const showAnswer = (data, devices) => {
  const [first, ...others] = data.said;
  const breakdown = data.peak?.breakdown ?? [];
  document.getElementById("answer").append(...[
    devices,
    data.caveat ? el("p", { class: "caveat" }, data.caveat) : null,
    sentenceOf("h1", first, data.is_alarming ? "alarm" : null),
    ...others.map((sentence) => sentenceOf("p", sentence, "lead")),
    data.peak && breakdown.length ? compositionBar(data, breakdown) : null,
  ].filter((child) => child));
};

// Of a long path its last folder and its file; pointing at the sentence shows all of it.
const LONG_PATH = /(?:[A-Za-z]:|[\w.~@+-]+)?(?:[\/\\][^\s\/\\:()]+)+[\/\\]([^\s\/\\:()]+[\/\\][^\s\/\\:()]+:\d+)/g;
const sentenceOf = (tag, text, name) => {
  const short = text.replace(LONG_PATH, "$1");
  return el(tag, { class: name, title: short === text ? null : text }, short);
};

// In the order of the timeline's layers.
const compositionBar = (data, breakdown) => {
  const whole = breakdown.reduce((sum, share) => sum + Math.max(0, share.bytes), 0);
  const layers = Object.keys(data.categories), layer = ({ name }) => (layers.indexOf(name) + layers.length + 1) % (layers.length + 1);
  const shares = breakdown.filter((share) => share.bytes > 0).sort((a, b) => layer(a) - layer(b));
  const label = shares.map((share) => `${share.name} ${percent(share.bytes, whole)}`).join(", ");
  return el("div", { class: "composition", role: "img", "aria-label": `The peak by category: ${label}` },
    shares.map((share) => {
      const part = swatch(share.name, "part");
      part.style.flexGrow = String(share.bytes / whole);
      part.title = `${share.name} ${formatBytes(share.bytes)}, ${percent(share.bytes, whole)}`;
      return part;
    }));
};
