// The words first, then the timeline, then what was in it. Each device has a page of its own in the data.

const SECTIONS = ["answer", "timeline", "peak", "source", "space", "run"];
const NAVIGATION = { timeline: "Timeline", peak: "In use", source: "Source", space: "Segments" };

// Links to all sections, in their order; of a long title its begin.
const showNavigation = () => {
  const there = [...document.querySelectorAll("main > section:not(#answer)")].filter((one) => !one.hidden)
    .map((one) => [one.id, NAVIGATION[one.id] ?? one.querySelector("h2").textContent.replace(/( at |, | \(| beside ).*/s, "").replace(/^The r/, "R")]);
  // The address belongs to the moment, so a link scrolls and leaves it as it is.
  const go = (id) => (event) => {
    event.preventDefault();
    const section = document.getElementById(id), title = section.querySelector("h2");
    section.scrollIntoView();
    title.tabIndex = -1;
    title.focus({ preventScroll: true });
  };
  document.getElementById("nav").replaceChildren(...there.map(([id, name]) => el("a", { href: `#${id}`, onclick: go(id) }, name)));
};

// An empty page for the next device.
const clearPage = () => {
  document.querySelectorAll("main > section").forEach((one) => {
    if (!SECTIONS.includes(one.id)) one.remove();
    else {
      one.replaceChildren();
      one.hidden = one.id !== "answer";
    }
  });
};

const pageSelector = (pages, shown, choose) => {
  if (pages.length < 2) return null;
  const select = el("select", { id: "page" }, pages.map((page, index) => el("option", { value: String(index) }, `${page.device}${page.peak ? `, ${formatBytes(page.peak.bytes)}` : ""}${page.is_alarming && page.peak ? ", out of memory" : ""}`)));
  select.value = String(shown);
  select.addEventListener("change", () => choose(Number(select.value)));
  return el("p", { class: "device" }, el("label", { for: "page" }, "Device "), select);
};

// One device: everything that is shown of it, and how it is drawn again.
class DevicePage {
  constructor(data, colorOf) {
    Object.assign(this, { data, colorOf });
  }

  words(selector) {
    const { data } = this;
    document.getElementById("title").textContent = data.title;
    document.getElementById("subtitle").textContent = [data.device, data.subtitle].filter((part) => part).join(", ");
    showAnswer(data, selector);
    showSources(data.sources ?? []);
    showRun(data);
    showSections(data.sections);
    this.color();
    for (const table of document.querySelectorAll("table")) table.addEventListener("shown", () => colorSwatches(table, this.colorOf));
  }

  color() { colorSwatches(document.body, this.colorOf); }

  async drawTimeline() {
    const { data } = this;
    this.columns = await unpackTimeline(data.timeline);
    this.view = new View(data.peak?.row ?? null);
    if ((this.columns.total && data.timeline.series.length) || this.columns.lines.length) this.timeline = timelineSection(data, this.columns, this.colorOf, this.view);
    this.color();
    showNavigation();
    this.timeline?.draw();
  }

  async drawMoment(address) {
    const { data, columns, timeline, view } = this, hasPeak = data.peak && data.peak.bytes;
    if (!hasPeak) return;
    const moments = data.blocks && data.peak.row !== null ? new Moments(await unpackBlocks(data.blocks)) : null;
    if (!moments) {
      section("peak", "What was in use", el("p", { class: "quiet" }, "Which blocks were alive is not known for this recording."));
      showNavigation();
      return;
    }
    if (address.moment !== null) view.row = rowOfNumber(data, columns, address.moment);
    if (address.other !== null) view.other = rowOfNumber(data, columns, address.other);
    // Before the others, whose changes of the page would have to be laid out for it.
    if (timeline) view.listen((change) => ("part" in change ? timeline.draw() : timeline.showChosen()));
    this.moment = new MomentSection(data, columns, moments, view, this.colorOf, timeline);
    if (data.space && moments.address) this.space = new SpaceSection(await unpackSpace(data.space), moments, columns, view, this.colorOf);
    if (timeline) {
      timeline.moments = moments;
      timeline.search.start(moments);
      timeline.lanes = new Lanes(moments, columns, this.colorOf, data.source);
      timeline.showChosen();
    }
    showNavigation();
    this.color();
  }

  draw() {
    this.color();
    this.timeline?.draw();
    this.moment?.icicle.draw();
    this.space?.draw();
  }
}

const start = async () => {
  const { pages, shown, up } = JSON.parse(document.getElementById("data").textContent), prefersDark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(prefersDark.matches ? "dark" : "light");
  startEditor(up);
  const address = readAddress(), named = pages.findIndex((page) => page.device === address.page);
  let current = null;
  const keepAddress = (page, index) => {
    const { view, columns, data } = page, number = (row) => momentNumber(data, columns, row);
    const isMoved = page.moment && (view.row !== view.peak || view.other !== null);
    writeAddress({ device: index === shown ? null : data.device, t: isMoved ? number(view.row) : null, with: isMoved && view.other !== null ? number(view.other) : null, ...stretchShown(page.timeline) });
  };
  const open = async (index, given = {}) => {
    const page = new DevicePage(pages[index], makeColors(pages[index].categories));
    clearPage();
    current = page;
    page.words(pageSelector(pages, index, (other) => open(other).then(() => document.getElementById("page").focus())));
    await page.drawTimeline();
    performance.mark("first-chart");
    await painted();
    await page.drawMoment({ moment: null, other: null, ...given });
    if (page.timeline && given.byEvent) page.timeline.toggleOrder?.();
    if (page.timeline && given.stretch) page.timeline.setView(given.stretch);
    // A browser takes few changes of an address in a second, and some milliseconds for each.
    let waiting = 0;
    const keep = () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => keepAddress(page, index), 150);
    };
    page.view.listen(keep);
    page.view.keepNow = () => keepAddress(page, index);
    if (page.timeline) page.timeline.whenMoved = keep;
    keepAddress(page, index);
    performance.mark("all-charts");
  };
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea, dialog")) return;
    event.preventDefault();
    current.timeline?.search.focus();
  });
  await open(named < 0 ? shown : named, address);
  watch(() => current.draw(), prefersDark);
  window.addEventListener("hashchange", () => {
    const to = readAddress(), { view, columns, data, moment } = current;
    if (moment && to.moment !== null) view.set({ row: rowOfNumber(data, columns, to.moment), other: to.other === null ? null : rowOfNumber(data, columns, to.other) });
  });
  await painted();
  document.documentElement.dataset.drawn = "true";
};

// What of the timeline is shown, where that is not all of it.
const stretchShown = (timeline) => {
  if (!timeline) return {};
  const digits = (number) => Number(number.toPrecision(9)).toString();
  return { by: timeline.toggleOrder && !timeline.byTime ? "event" : null, view: timeline.view && timeline.view.map(digits).join("~") };
};

// Of a frame's callbacks the second one's comes when the first frame is on the screen. A tab in the background has none.
const painted = () => new Promise((done) => {
  setTimeout(done, 250);
  requestAnimationFrame(() => requestAnimationFrame(done));
});

const watch = (draw, prefersDark) => {
  const change = (theme) => {
    setTheme(theme);
    draw();
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
  document.getElementById("answer").append(el("p", { class: "check bad" }, `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later.`));
  throw error;
});
