// The words first, then, when plotly has arrived, the drawings.

const setTheme = (theme) => {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", theme === "dark");
  button.textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", theme === "dark" ? "Switch to light colours" : "Switch to dark colours");
};

const showNavigation = () => {
  const names = { timeline: "Timeline", peak: "Peak", lost: "Lost track", time: "Time", run: "Run" };
  const there = Object.keys(names).filter((id) => !document.getElementById(id).hidden);
  const alarm = document.querySelector(".alarming");
  const links = [...(alarm ? [[alarm.id, alarm.querySelector("h2").textContent]] : []), ...there.map((id) => [id, names[id]])];
  document.getElementById("nav").append(...links.map(([id, name]) => el("a", { href: `#${id}` }, name)));
};

const showWords = (data) => {
  document.getElementById("title").textContent = data.title;
  document.getElementById("subtitle").textContent = data.subtitle;
  showAnswer(data);
  const map = data.peak && data.peak.bytes ? showPeak(data.peak, data.source) : null;
  showLostTrack(data.lostTrack);
  showTime(data);
  showRun(data);
  showSections(data.sections);
  return map;
};

const showProblem = (text) => document.getElementById("answer").append(el("p", { class: "check bad" }, text));

const start = async () => {
  const data = readData(), plotly = loadPlotly();
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(prefersDark.matches ? "dark" : "light");
  const colorOf = makeColors(data.categories, data.timeline.series);
  const map = showWords(data);
  const color = () => colorSwatches(document.body, colorOf);
  color();
  for (const table of document.querySelectorAll("table")) table.addEventListener("shown", () => colorSwatches(table, colorOf));
  const columns = await unpackTimeline(data.timeline);
  const empty = !columns.total && !columns.lines.length;
  const timeline = empty ? null : timelineSection(data, columns, colorOf);
  color();
  showNavigation();
  await plotly;
  const drawMap = () => (map ? drawTreemap(map, data.peak, colorOf, data.source) : null);
  const draw = () => {
    color();
    return Promise.all([timeline?.draw(), drawMap()]);
  };
  await timeline?.draw();
  if (timeline) followDrags(timeline);
  // The first chart is seen before the second one is drawn, which most people have to scroll to.
  await painted();
  performance.mark("first-chart");
  await drawMap();
  watch(draw, prefersDark);
  await painted();
  performance.mark("all-charts");
  document.documentElement.dataset.drawn = "true";
};

// Of a frame's callbacks the second one's comes when the first frame is on the screen. A tab in the background has none.
const painted = () => new Promise((done) => {
  setTimeout(done, 250);
  requestAnimationFrame(() => requestAnimationFrame(done));
});

const watch = (draw, prefersDark) => {
  const change = (theme) => {
    setTheme(theme);
    return draw();
  };
  document.getElementById("theme").addEventListener("click", () => change(isDark() ? "light" : "dark"));
  prefersDark.addEventListener("change", () => change(prefersDark.matches ? "dark" : "light"));
  // Paper is white, and as wide as paper.
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.body.classList.add("on-paper");
    change("light");
  });
  window.addEventListener("afterprint", () => {
    document.body.classList.remove("on-paper");
    change(before);
  });
  let width = window.innerWidth, waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      if (width !== window.innerWidth) draw();
      width = window.innerWidth;
    }, 150);
  });
};

start().catch((error) => {
  showProblem(`This page could not be drawn: ${error.message}. It needs a browser of 2023 or later.`);
  throw error;
});
