// The network: the drawing of switches and links, and the table that has the same figures.

import { element, keyed, setAttributes, setText, shape, table } from "./dom.js";
import { millis, moment, number, percent, rate, UNKNOWN } from "./format.js";
import { arrange, fit, separate } from "./layout.js";
import { texts } from "./texts.js";

/** Links that the table has room for. */
const MOST_ROWS = 100;
/** Switches above which they are drawn as dots without words. */
const MOST_NAMED = 60;
/** Characters of a name that a switch in the drawing has room for. */
const NAME_CHARS = 14;
/** Pixels: of a letter, of a switch's height, between the two directions of a link, of a direction that is full. */
const LETTER = 7.4;
const NAME_HEIGHT = 28;
const BESIDE = 4;
const WIDEST = 7;
/** Length from which on a link has room for its label; of a label's letter, and its height. Pixels. */
const LABELLED = 118;
/** Links above which only those that are down have a label. */
const MOST_LABELLED = 24;
const LABEL_LETTER = 6.6;
const LABEL_HEIGHT = 18;
/** Colours of the style sheet. */
const COLOURS = 6;
/** Load from which on a link counts as busy, and as full. */
const BUSY = 0.5;
const FULL = 0.9;
/** Links that are added, as a part of all, after which the whole network is placed anew. */
const PLACED_ANEW = 0.2;

/** Writes a latency; in a network of switches it may be a part of a millisecond. */
export function latency(ms) {
  return ms != null && ms < 1 ? `${number(ms, 2)} ms` : millis(ms);
}

const loadOf = (way) => (way?.capacity_bit_s ? Math.min(1, way.used_bit_s / way.capacity_bit_s) : 0);
const tone = (load) => (load >= FULL ? "full" : load >= BUSY ? "busy" : "calm");
const device = (port, name) => (port.startsWith(`${name}:`) ? port.slice(name.length + 1) : port);

/** Returns the cables of a snapshot: both directions of each, or since when and why it is down. */
export function cables(snapshot) {
  const found = new Map();
  const take = (way, change) => {
    const [one, other] = [way.source, way.target].sort();
    const key = `${one} ${other}`;
    const [a, b] = way.source === one ? [way.source_switch, way.target_switch] : [way.target_switch, way.source_switch];
    const known = found.get(key) ?? { key, a, b, ports: [device(one, a), device(other, b)], lost: null };
    found.set(key, known);
    change(known, way.source === one);
  };
  for (const way of snapshot.links) take(way, (cable, there) => (cable[there ? "there" : "back"] = way));
  for (const loss of snapshot.lost_links) {
    take(loss, (cable) => {
      // One direction may be back before the other.
      if (!cable.there || !cable.back) cable.lost = { since: snapshot.unix_ms - loss.lost_ms, why: loss.why };
    });
  }
  const alike = new Map();
  for (const cable of found.values()) {
    cable.load = Math.max(loadOf(cable.there), loadOf(cable.back));
    cable.latency = (cable.there ?? cable.back)?.latency_ms;
    cable.state = cable.lost ? "lost" : cable.there?.stale || cable.back?.stale ? "unobserved" : "works";
    const both = `${cable.a} – ${cable.b}`;
    cable.name = both;
    alike.set(both, (alike.get(both) ?? 0) + 1);
  }
  // Parallel cables are told apart by their ports.
  for (const cable of found.values()) if (alike.get(cable.name) > 1) cable.name = `${cable.name} (${cable.ports[0]})`;
  return [...found.values()].sort((one, other) => one.a.localeCompare(other.a) || one.b.localeCompare(other.b) || one.key.localeCompare(other.key));
}

/** Returns a switch's name as the drawing has room for it. A datapath id is known by its last digits. */
function shortName(name) {
  const known = /^[0-9a-f]{16}$/.test(name) ? name.replace(/^0+(?=.)/, "") : name;
  return known.length > NAME_CHARS ? `…${known.slice(1 - NAME_CHARS)}` : known;
}

export class NetworkView {
  places = new Map();
  placedLinks = new Set();
  route = { name: "", paths: [] };
  snapshot = null;
  at = null;
  words = "";

  constructor() {
    this.svg = document.getElementById("drawing");
    this.layers = Object.fromEntries(["ribbons", "links", "labels", "nodes"].map((name) => [name, this.svg.appendChild(shape("g", { class: name }))]));
    const legend = document.getElementById("drawing-legend");
    for (const [kind, text] of Object.entries(texts.legend)) legend.append(element("li", {}, element("span", { className: `stroke ${kind}` }), text));
    this.table = makeTable();
    document.getElementById("links-table").append(this.table.node);
    addEventListener("resize", () => this.draw());
  }

  show(snapshot) {
    this.snapshot = snapshot;
    this.cables = cables(snapshot);
    const order = { lost: 0, unobserved: 1, works: 2 };
    const sorted = [...this.cables].sort((one, other) => order[one.state] - order[other.state] || (this.cables.length > MOST_ROWS ? other.load - one.load : 0));
    const shown = sorted.slice(0, MOST_ROWS);
    setText(document.getElementById("links-count"), texts.linksCount(shown.length, sorted.length));
    this.table.node.hidden = !shown.length;
    this.table.fill(shown);
    this.draw();
  }

  /** Draws these paths into the network, each with its switches, its share and the number of its colour. */
  follow(route) {
    this.route = route;
    this.drawRoute();
  }

  draw() {
    const { snapshot } = this;
    if (!snapshot) return;
    const lost = new Map(snapshot.lost_switches.map((each) => [each.name, each]));
    const here = new Set(snapshot.switches.map(({ name }) => name));
    const names = [...new Set([...here, ...lost.keys(), ...this.cables.flatMap(({ a, b }) => [a, b])])].sort();
    this.place(names, snapshot.edges.map((edge) => edge.switch));
    const { clientWidth: width, clientHeight: height } = this.svg;
    if (!width) return;
    setAttributes(this.svg, { viewBox: `0 0 ${width} ${height}` });
    const named = names.length <= MOST_NAMED;
    const widest = named ? Math.max(2, ...names.map((name) => shortName(name).length)) : 1;
    const box = [widest * LETTER + 24, NAME_HEIGHT + 24];
    const found = fit(new Map(names.map((name) => [name, this.places.get(name)])), width, height, named ? [box[0] / 2 + 8, 46] : [16, 16]);
    this.at = named ? separate(found, box, width, height) : found;
    const down = this.cables.filter(({ state }) => state === "lost").length;
    this.words = texts.drawingWords(here.size, this.cables.length, down);
    this.drawCables(this.at, named);
    this.drawRoute();
    this.drawSwitches(names, this.at, here, lost, named);
  }

  /** Finds places for what has none. A network that has grown much is placed anew. */
  place(names, ends) {
    const links = new Map(this.cables.map((cable) => [cable.key, [cable.a, cable.b]]));
    const fresh = [...links.keys()].filter((key) => !this.placedLinks.has(key));
    const unplaced = names.filter((name) => !this.places.has(name));
    if (!fresh.length && !unplaced.length) return;
    const anew = fresh.length > PLACED_ANEW * this.placedLinks.size || unplaced.length * 2 > names.length;
    if (!anew && !unplaced.length) return;
    const placed = arrange(names, [...links.values()], ends, anew ? new Map() : this.places);
    for (const [name, point] of placed) this.places.set(name, point);
    for (const key of links.keys()) this.placedLinks.add(key);
  }

  drawCables(at, named) {
    const ways = this.cables.flatMap((cable) => {
      if (cable.lost) return [{ key: cable.key, kind: "lost", line: [at.get(cable.a), at.get(cable.b)], width: 2, words: `${cable.name}: ${texts.linkStates.lost(moment(cable.lost.since, true), cable.lost.why)}` }];
      const both = [[cable.there, cable.a, cable.b], [cable.back, cable.b, cable.a]].filter(([way]) => way);
      return both.flatMap(([way, from, to]) => {
        const line = beside(at.get(from), at.get(to), BESIDE);
        const words = texts.linkWords(way.source, way.target, rate(way.used_bit_s), rate(way.capacity_bit_s), latency(way.latency_ms), way.frame_bytes);
        const load = loadOf(way);
        const track = { key: `${way.source} ${way.target}`, kind: cable.state === "works" ? "track" : "unobserved", line, width: named ? WIDEST : 2, words };
        return load < 0.01 ? [track] : [track, { key: `${track.key} load`, kind: tone(load), line, width: Math.max(1.5, (named ? WIDEST : 4) * load), words }];
      });
    });
    const make = () => {
      const line = shape("line");
      line.append(shape("title"));
      return line;
    };
    keyed(this.layers.links, ways, ({ key }) => key, make, (line, { kind, line: [from, to], width, words }) => {
      setAttributes(line, { class: kind, x1: fixed(from[0]), y1: fixed(from[1]), x2: fixed(to[0]), y2: fixed(to[1]), "stroke-width": fixed(width) });
      setText(line.firstChild, words);
    });
    const labelled = this.cables.filter(({ a, b, lost }) => {
      const [from, to] = [at.get(a), at.get(b)];
      return lost || (this.cables.length <= MOST_LABELLED && named && Math.hypot(from[0] - to[0], from[1] - to[1]) >= LABELLED);
    });
    // Parallel cables have one label, that of the busier one.
    const single = new Map();
    for (const cable of labelled) {
      const key = `${cable.a} ${cable.b} ${cable.state}`;
      if (!single.has(key) || single.get(key).load < cable.load) single.set(key, cable);
    }
    const room = this.svg.clientWidth;
    const makeLabel = () => {
      const group = shape("g");
      group.append(shape("rect", { rx: 5 }), shape("text", { "text-anchor": "middle" }));
      return group;
    };
    keyed(this.layers.labels, [...single.values()], ({ key }) => key, makeLabel, (group, cable) => {
      const [box, label] = group.children;
      const [from, to] = [at.get(cable.a), at.get(cable.b)];
      const text = cable.lost ? "✕" : texts.linkLabel(latency(cable.latency), percent(cable.load));
      const width = text.length * LABEL_LETTER + 8;
      const x = Math.min(Math.max((from[0] + to[0]) / 2, width / 2), room - width / 2);
      const y = (from[1] + to[1]) / 2;
      setAttributes(group, { class: cable.state });
      setAttributes(box, { x: fixed(x - width / 2), y: fixed(y - LABEL_HEIGHT / 2), width: fixed(width), height: LABEL_HEIGHT });
      setAttributes(label, { x: fixed(x), y: fixed(y + (cable.lost ? 6 : 4)) });
      setText(label, text);
    });
  }

  drawRoute() {
    const { at } = this;
    if (!at) return;
    setText(document.getElementById("drawing-words"), this.route.paths.length ? `${this.words} ${texts.drawingRoute(this.route.name)}` : this.words);
    const lines = this.route.paths.flatMap(({ switches, share, colour }, i) => {
      const hops = switches.slice(1).map((name, hop) => [switches[hop], name]);
      const known = hops.every((ends) => ends.every((name) => at.has(name)));
      if (!known) return [];
      return hops.map(([from, to]) => ({ key: `${i} ${from} ${to}`, colour, line: beside(at.get(from), at.get(to), 2 * BESIDE + 3 + 4.5 * i), width: 2 + 5 * share }));
    });
    keyed(this.layers.ribbons, lines, ({ key }) => key, () => shape("line"), (line, { colour, line: [from, to], width }) => {
      setAttributes(line, { class: `ribbon s${colour % COLOURS}`, x1: fixed(from[0]), y1: fixed(from[1]), x2: fixed(to[0]), y2: fixed(to[1]), "stroke-width": fixed(width) });
    });
  }

  drawSwitches(names, at, here, lost, named) {
    const hosts = Map.groupBy ? Map.groupBy(this.snapshot.hosts, (host) => host.switch) : grouped(this.snapshot.hosts);
    const nodes = names.map((name) => {
      const edges = this.snapshot.edges.filter((edge) => edge.switch === name);
      const said = [...edges.map((edge) => (edge.answers ? edge.name : texts.edgeSilent(edge.name)))];
      const count = hosts.get(name)?.length ?? 0;
      if (count) said.push(texts.hostsHere(count));
      const away = lost.get(name);
      return { name, at: at.get(name), away: away || !here.has(name), below: said.join(" · "), words: away ? `${name}: ${away.why}` : `${name} ${said.join(", ")}` };
    });
    const make = () => {
      const group = shape("g");
      group.append(shape("title"), shape("rect", { rx: 8 }), shape("text", { "text-anchor": "middle", class: "name" }), shape("text", { "text-anchor": "middle", class: "below" }));
      return group;
    };
    keyed(this.layers.nodes, nodes, ({ name }) => name, make, (group, { name, at: [x, y], away, below, words }) => {
      const [title, box, label, under] = group.children;
      setAttributes(group, { class: away ? "away" : "node" });
      setText(title, words);
      const shown = shortName(name);
      const [width, height] = named ? [Math.max(36, shown.length * LETTER + 18), NAME_HEIGHT] : [8, 8];
      setAttributes(box, { x: fixed(x - width / 2), y: fixed(y - height / 2), width: fixed(width), height, rx: named ? 8 : 4 });
      setAttributes(label, { x: fixed(x), y: fixed(y + 5) });
      setAttributes(under, { x: fixed(x), y: fixed(y + NAME_HEIGHT / 2 + 15) });
      setText(label, named ? (away ? `✕ ${shown}` : shown) : "");
      setText(under, named ? below : "");
    });
  }
}

function grouped(hosts) {
  const found = new Map();
  for (const host of hosts) found.set(host.switch, [...(found.get(host.switch) ?? []), host]);
  return found;
}

const fixed = (value) => Number(value).toFixed(1);

/** Returns a line moved to its right, seen along its direction. */
function beside([x1, y1], [x2, y2], distance) {
  const length = Math.max(1e-6, Math.hypot(x2 - x1, y2 - y1));
  const [ox, oy] = [(-(y2 - y1) / length) * distance, ((x2 - x1) / length) * distance];
  return [[x1 + ox, y1 + oy], [x2 + ox, y2 + oy]];
}

function makeTable() {
  const column = (key, kind, cell) => ({ title: texts.linkColumns[key], kind, cell });
  return table(
    texts.links,
    [
      column("link", "name", ({ name }) => name),
      column("ports", "address", ({ ports }) => ports.join(" – ")),
      column("latency", "figure latency", (cable) => latency(cable.latency)),
      column("there", "figure there", ({ there }, cell) => loadBar(there, cell)),
      column("back", "figure back", ({ back }, cell) => loadBar(back, cell)),
      column("packet", "figure packet", ({ there, back }) => packet(there, back)),
      column("state", "why", ({ state, lost }) => (lost ? texts.linkStates.lost(moment(lost.since, true), lost.why) : texts.linkStates[state]())),
    ],
    ({ key }) => key,
  );
}

/** Returns the largest packet that passes a link, of both directions the smaller one. */
function packet(there, back) {
  const known = [there, back].map((way) => way?.frame_bytes).filter((bytes) => bytes != null);
  return known.length ? texts.bytes(Math.min(...known)) : UNKNOWN;
}

function loadBar(way, cell) {
  if (!way) return UNKNOWN;
  if (!cell.firstElementChild) cell.replaceChildren(element("span", { className: "bar", "aria-hidden": "true" }, element("span")), element("span"));
  const load = loadOf(way);
  cell.firstChild.firstChild.className = tone(load);
  cell.firstChild.firstChild.style.inlineSize = `${Math.round(load * 100)}%`;
  setText(cell.lastChild, texts.load(percent(load), rate(way.capacity_bit_s)));
  return null;
}
