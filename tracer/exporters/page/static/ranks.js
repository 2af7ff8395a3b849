// The ranks of a job beside each other: a bar for each, as high as its peak, of the colours of what that was.

const RANK_SIGNS = { ran_out: ["\u2715", "ran out of memory"], is_odd: ["\u25b2", "odd one out"], unreadable: ["?", "not readable"], missing: ["\u2013", "no recording"] };
// As high as the axis in page.css.
const RANK_HEIGHT = 168;
const rankSigns = (rank) => Object.keys(RANK_SIGNS).filter((sign) => rank[sign] || rank.state === sign);

class RankSection {
  constructor(ranks, open, pages) {
    Object.assign(this, { ranks, open });
    const typical = ranks.find((rank) => rank.is_typical), worstOfAll = ranks.find((rank) => rank.is_worst);
    this.overTime = pages.length > 1 ? new RanksOverTime(pages, { worst: worstOfAll?.name, typical: typical?.name }, open) : null;
    this.most = ranks.reduce((most, rank) => Math.max(most, rank.bytes), 0);
    this.status = el("div", { class: "rank-status", role: "status" });
    this.bars = ranks.map((rank, index) => this.bar(rank, index));
    const columns = el("div", { class: "rank-bars", role: "group", "aria-label": "Peak by rank. The arrow keys go from rank to rank, Enter opens the page of one that has one." }, this.bars);
    columns.addEventListener("keydown", (event) => this.key(event));
    const worst = ranks.reduce((best, rank, index) => ((rank.ran_out - ranks[best].ran_out || rank.bytes - ranks[best].bytes) > 0 ? index : best), 0);
    section("ranks", "Peak by rank", this.key_(), el("div", { class: "rank-plot" },
      el("div", { class: "rank-axis quiet small", "aria-hidden": "true" }, el("span", {}, formatBytes(this.most)), el("span", {}, formatBytes(this.most / 2)), el("span", {}, "0")), columns), this.status, this.overTime?.element);
    this.choose(worst);
    // Of more ranks than there is room for, the worst is in sight.
    columns.scrollLeft = this.bars[worst].offsetLeft - columns.offsetLeft - columns.clientWidth / 2;
  }

  async drawOverTime() {
    await this.overTime?.unpack();
    this.overTime?.draw();
  }

  bar(rank, index) {
    const signs = rankSigns(rank), height = this.most ? (RANK_HEIGHT * rank.bytes) / this.most : 0;
    const element = el("button", { type: "button", class: `rank-bar${rank.has_page ? " has-page" : ""}`, tabindex: "-1", "aria-label": this.words(rank), title: this.words(rank) },
      el("span", { class: "rank-sign", "aria-hidden": "true" }, signs.map((sign) => RANK_SIGNS[sign][0]).join("")),
      el("span", { class: `rank-level ${rank.state}`, style: { height: `${height}px` }, "aria-hidden": "true" },
        [...rank.kinds].filter((kind) => kind.bytes > 0).map((kind) => {
          const part = swatch(kind.name, "rank-part");
          part.style.flexGrow = String(kind.bytes);
          return part;
        })),
      el("span", { class: "rank-number quiet", "aria-hidden": "true" }, this.numbered(rank, index) ? String(rank.rank ?? index + 1) : ""));
    element.addEventListener("click", () => this.choose(index, true));
    element.addEventListener("focus", () => this.choose(index));
    element.addEventListener("pointerenter", () => this.say(rank));
    element.addEventListener("pointerleave", () => this.say(this.ranks[this.chosen]));
    return element;
  }

  // Every rank of few, of many the round ones.
  numbered(rank, index) {
    const many = this.ranks.length, every = [1, 2, 4, 8, 16, 32, 64, 128].find((step) => many / step <= 16) ?? 256;
    return (rank.rank ?? index) % every === 0;
  }

  words(rank) {
    if (rank.state !== "readable") return `${rank.name}: ${RANK_SIGNS[rank.state][1]}`;
    return [`${rank.name}: ${formatBytes(rank.bytes)}`, ...rankSigns(rank).map((sign) => RANK_SIGNS[sign][1])].join(", ");
  }

  key_() {
    const kinds = [...new Set(this.ranks.flatMap((rank) => rank.kinds.map((kind) => kind.name)))], signs = [...new Set(this.ranks.flatMap(rankSigns))];
    return el("p", { class: "key quiet" }, kinds.map((name) => el("span", {}, swatch(name), name)), signs.map((sign) => el("span", {}, el("span", { class: `rank-sign ${sign}`, "aria-hidden": "true" }, RANK_SIGNS[sign][0]), ` ${RANK_SIGNS[sign][1]}`)));
  }

  choose(index, opens = false) {
    const rank = this.ranks[index];
    if (opens && index === this.chosen && rank.has_page) {
      this.open(rank.name);
      return;
    }
    this.chosen = index;
    this.bars.forEach((bar, at) => {
      bar.tabIndex = at === index ? 0 : -1;
      bar.setAttribute("aria-pressed", at === index);
    });
    this.say(rank);
  }

  // All of one rank in words, with the way to its page.
  say(rank) {
    const like = rank.alike > 1 ? `, like ${grouped(rank.alike - 1)} other${rank.alike > 2 ? "s" : ""}` : "", whole = rank.kinds.reduce((sum, kind) => sum + kind.bytes, 0);
    const kinds = [...rank.kinds].sort((a, b) => b.bytes - a.bytes).slice(0, 4).map((kind) => `${kind.name} ${formatBytes(kind.bytes)} (${percent(kind.bytes, whole)})`).join(", ");
    this.status.replaceChildren(...[
      el("p", {}, el("strong", {}, rank.name), rank.state === "readable" ? `: ${formatBytes(rank.bytes)} (${exactBytes(rank.bytes)})${like}${rankSigns(rank).map((sign) => `; ${RANK_SIGNS[sign][1]}`).join("")}` : `: ${RANK_SIGNS[rank.state][1]}. ${rank.words}`),
      kinds ? el("p", { class: "quiet" }, kinds) : null,
      rank.has_page ? el("button", { type: "button", class: "button", onclick: () => this.open(rank.name) }, `Open ${rank.name}`)
        : rank.state === "readable" ? el("p", { class: "quiet small" }, "Not in this file; its own page: ", el("code", {}, `snapshot ${rank.file} --html page.html`)) : null,
    ].filter((part) => part));
  }

  key(event) {
    const here = this.bars.indexOf(event.target), last = this.bars.length - 1;
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: last }[event.key];
    if (here < 0 || to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.bars[Math.min(last, Math.max(0, to))].focus();
  }
}
