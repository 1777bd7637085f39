// The paths of a pair of edges: shares, rates and reasons; and the story of any two hosts or edges.

import { Chart, Samples } from "./chart.js";
import { element, keyed, setText, shape, table } from "./dom.js";
import { rate, share, UNKNOWN } from "./format.js";
import { latency } from "./network.js";
import { texts } from "./texts.js";

/** Colours of the style sheet. */
const COLOURS = 6;
/** Hosts that are offered while an end is typed. */
const MOST_OFFERED = 200;

const nameOf = ({ source, target }) => `${source} → ${target}`;
const wayOf = ({ switches }) => switches.join(" → ");

export class PathView {
  /** Samples of the paths of each pair, by pair and by the path's switches; each path keeps its colour. */
  rates = new Map();
  chosen = null;
  single = null;

  /** `follow` draws paths into the network. */
  constructor(get, follow) {
    this.get = get;
    this.follow = follow;
    this.select = document.getElementById("pair");
    this.select.addEventListener("change", () => this.choose(this.select.value));
    this.sentence = document.getElementById("pair-sentence");
    this.table = makeTable();
    document.getElementById("paths-table").append(this.table.node);
    this.chart = new Chart(document.getElementById("pair-chart"), true);
    this.story = document.getElementById("story");
    document.getElementById("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(document.getElementById("source").value.trim(), document.getElementById("target").value.trim());
    });
  }

  choose(name) {
    this.chosen = name;
    this.single = null;
    this.refresh();
  }

  show(snapshot) {
    this.snapshot = snapshot;
    for (const pair of snapshot.pairs) this.sample(pair, snapshot.unix_ms);
    const known = [...snapshot.pairs, ...snapshot.unserved];
    if (!known.some((pair) => nameOf(pair) === this.chosen)) this.chosen = known.length ? nameOf(known[0]) : null;
    document.getElementById("choose-pair").hidden = !known.length;
    const option = (pair) => (pair.paths ? texts.pairOption(pair.source, pair.target, pair.paths.length) : texts.pairUnserved(pair.source, pair.target));
    keyed(this.select, known, nameOf, (pair) => element("option", { value: nameOf(pair) }), (node, pair) => setText(node, option(pair)));
    if (this.select.value !== this.chosen && this.chosen) this.select.value = this.chosen;
    const ends = [...snapshot.edges.map(({ name }) => name), ...snapshot.hosts.slice(0, MOST_OFFERED).flatMap(({ mac, addresses }) => (addresses.length ? addresses : [mac]))];
    keyed(document.getElementById("ends"), [...new Set(ends)], (end) => end, (end) => element("option", { value: end }), () => {});
    this.refresh();
  }

  sample(pair, now) {
    const rows = this.rates.get(nameOf(pair)) ?? new Map();
    this.rates.set(nameOf(pair), rows);
    for (const path of pair.paths) {
      if (!rows.has(wayOf(path))) rows.set(wayOf(path), { samples: new Samples(), colour: rows.size });
    }
    const live = new Map(pair.paths.map((path) => [wayOf(path), path.rate_bit_s]));
    // A path that is not used any more carries nothing.
    for (const [way, { samples }] of rows) samples.add(now, live.get(way) ?? 0);
  }

  refresh() {
    const { snapshot } = this;
    if (!snapshot) return;
    const pair = snapshot.pairs.find((each) => nameOf(each) === this.chosen);
    const unserved = snapshot.unserved.find((each) => nameOf(each) === this.chosen);
    this.table.node.hidden = !pair;
    document.getElementById("pair-charts").hidden = !pair;
    const said = pair ? texts.pairSentence(texts.orders[pair.order](pair.target, pair.why), rate(pair.capacity_bit_s)) : unserved ? texts.unserved(unserved.why) : texts.noPairs;
    setText(this.sentence, said);
    const rows = this.rates.get(this.chosen) ?? new Map();
    const coloured = (pair?.paths ?? []).map((path) => ({ ...path, colour: rows.get(wayOf(path)).colour }));
    if (pair) {
      this.table.fill([...coloured, ...pair.left_out]);
      const series = [...rows.values()].map(({ samples, colour }) => ({ samples, className: `s${colour % COLOURS}` }));
      const most = this.chart.draw(series, snapshot.unix_ms);
      const total = pair.paths.reduce((sum, path) => sum + path.rate_bit_s, 0);
      setText(document.getElementById("pair-title"), texts.pairRate(pair.source, pair.target, rate(total)));
      setText(document.getElementById("pair-words"), texts.chartWords(rate(most)));
    }
    this.follow(this.single ?? { name: this.chosen ?? "", paths: coloured });
  }

  /** Explains the way between two hosts or edges, and draws it. */
  async ask(source, target) {
    try {
      const answer = await this.get("/v1/fabric/explain", { source, target });
      const { pair, single } = answer;
      if (pair) this.choose(nameOf(pair));
      this.single = !pair && single ? { name: nameOf(answer), paths: [{ switches: single.switches, share: 1, colour: 0 }] } : null;
      this.refresh();
      this.story.replaceChildren(storyOf(answer));
    } catch (failure) {
      this.story.replaceChildren(element("p", { className: "error", textContent: failure.message }));
    }
  }
}

function storyOf({ source, target, steps }) {
  const items = steps.map((textContent) => element("li", { textContent }));
  return element("article", { className: "story" }, element("h3", { textContent: texts.explained(source, target) }), element("ol", { className: "reasons" }, ...items));
}

function makeTable() {
  const column = (key, kind, cell) => ({ title: texts.pathColumns[key], kind, cell });
  return table(
    texts.paths,
    [
      column("path", "name", fillPath),
      column("share", "figure share", fillShare),
      column("rate", "figure rate", ({ rate_bit_s: bits }) => (bits == null ? UNKNOWN : rate(bits))),
      column("free", "figure", ({ capacity_bit_s: bits }) => (bits == null ? UNKNOWN : rate(bits))),
      column("latency", "figure", ({ latency_ms: ms }) => latency(ms)),
      column("probe", "figure", ({ probe_ms: ms }) => latency(ms)),
      column("why", "why", ({ why }) => (why ? texts.leftOut(why) : texts.used)),
    ],
    wayOf,
  );
}

function fillPath(path, cell) {
  if (!cell.firstElementChild) cell.append(element("span"), element("span"));
  cell.firstChild.className = path.colour == null ? "" : `swatch s${path.colour % COLOURS}`;
  setText(cell.lastChild, wayOf(path));
  return null;
}

function fillShare(path, cell) {
  if (path.share == null) return UNKNOWN;
  if (!cell.firstElementChild) cell.replaceChildren(element("span", { className: "bar", "aria-hidden": "true" }, element("span")), element("span"));
  cell.firstChild.firstChild.style.inlineSize = `${Math.round(path.share * 100)}%`;
  setText(cell.lastChild, share(path.share));
  return null;
}
