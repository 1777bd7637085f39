// The uplinks: the sentence on top, a card for each, and the chart of all together.

import { Chart, Samples } from "./chart.js";
import { element, keyed, setText } from "./dom.js";
import { DAY_VIEW, Day } from "./history.js";
import { bytes, millis, moment, percent, rate, share, span } from "./format.js";
import { pauseWords } from "./pauses.js";
import { texts } from "./texts.js";

/** Device of the bond, whose packets travel over the other uplinks. */
const BOND_DEVICE = "braid-bond";
const WRONG = ["down", "dead", "portal", "degraded"];
const USABLE = ["up", "degraded"];
/** Colours of the style sheet. */
const COLOURS = 6;

/** Rates of each uplink by name, from the counters of successive snapshots. */
export class Rates {
  rows = new Map();
  before = null;

  /** Takes a snapshot. */
  add(snapshot) {
    const carried = totals(snapshot);
    const elapsed = this.before && snapshot.up_ms - this.before.at;
    for (const [name, now] of carried) {
      const row = this.rows.get(name) ?? { down: new Samples(), up: new Samples() };
      this.rows.set(name, row);
      const old = this.before?.carried.get(name);
      // Counters begin anew with the daemon.
      if (!old || elapsed <= 0 || now.rx < old.rx || now.tx < old.tx) continue;
      // Snapshots after an event follow closely; a rate of so short a time says little.
      if (elapsed < 500) continue;
      row.down.add(snapshot.up_ms, ((now.rx - old.rx) * 8000) / elapsed);
      row.up.add(snapshot.up_ms, ((now.tx - old.tx) * 8000) / elapsed);
    }
    if (!this.before || elapsed < 0 || elapsed >= 500) {
      if (elapsed < 0) this.rows.clear();
      this.before = { at: snapshot.up_ms, carried };
    }
  }

  of(name) {
    return this.rows.get(name);
  }
}

/** Returns the bytes that each uplink has carried, with those of the bond's links over it. */
function totals({ uplinks, bond }) {
  const all = new Map(uplinks.map(({ name, rx_bytes, tx_bytes }) => [name, { rx: rx_bytes, tx: tx_bytes }]));
  for (const link of bond?.links ?? []) {
    const carried = all.get(link.uplink);
    if (carried) {
      carried.rx += link.rx_bytes;
      carried.tx += link.tx_bytes;
    }
  }
  return all;
}

/** Returns the sentence on top: how it is, in words, and what is behind it. */
export function verdict({ uplinks, health }) {
  const names = (found) => found.map(({ name }) => name);
  // A paused one stands in if no other works.
  const usable = uplinks.filter(({ state, share }) => USABLE.includes(state) || (state === "paused" && share > 0));
  const wrong = uplinks.filter(({ state }) => WRONG.includes(state));
  const waiting = uplinks.filter(({ state }) => state === "standby");
  const paused = uplinks.filter(({ state }) => state === "paused");
  const standing = [[texts.waits, waiting], [texts.arePaused, paused]].filter(([, found]) => found.length).map(([say, found]) => say(names(found)));
  const carried = usable.length ? texts.carriedBy(names(usable)) : texts.carriedByNone;
  if (!wrong.length) {
    const works = usable.length === 1 ? texts.oneWorks(usable[0].name) : texts.allWork(names(usable));
    if (!usable.length) return { state: "bad", sentence: texts.noInternet, reasons: [carried, ...standing] };
    const calm = !health.length;
    return { state: calm ? "good" : "warn", sentence: calm ? texts.allWell : texts.attention, reasons: [[works, ...standing].join(" ")] };
  }
  const since = ({ since_unix_ms: at }) => at && moment(at);
  const told = (uplink) => texts.wrong[uplink.state](uplink.name, since(uplink));
  const [first] = wrong;
  if (!usable.length) return { state: "bad", sentence: texts.noInternet, reasons: wrong.map((uplink) => `${told(uplink)} ${capital(uplink.why)}.`) };
  const mild = wrong.every(({ state }) => state === "degraded");
  const state = mild ? "warn" : "bad";
  if (wrong.length === 1) return { state, sentence: told(first), reasons: [`${capital(first.why)}.`, [carried, ...standing].join(" ")] };
  return { state, sentence: texts.several(wrong.length), reasons: [...wrong.map((uplink) => `${told(uplink)} ${capital(uplink.why)}.`), carried] };
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The cards and the charts. */
export class UplinkView {
  constructor(rates, get, controls) {
    this.rates = rates;
    this.controls = controls;
    this.day = new Day(get);
    this.spans = document.querySelectorAll("#traffic [data-span]");
    for (const button of this.spans) button.addEventListener("click", () => this.choose(button));
    this.cards = document.querySelector("#uplinks .cards");
    this.legend = document.querySelector("#traffic .legend");
    this.charts = ["down", "up"].map((way) => ({
      way,
      chart: new Chart(document.getElementById(`${way}-chart`), true),
      title: document.getElementById(`${way}-title`),
      words: document.getElementById(`${way}-words`),
    }));
  }

  /** Shows the time of this button: the last minutes, or the last day. */
  async choose(chosen) {
    for (const button of this.spans) button.setAttribute("aria-pressed", String(button === chosen));
    this.day.shown = chosen.dataset.span === "day";
    if (this.snapshot) await this.refresh();
  }

  async refresh() {
    await this.day.refresh(this.snapshot.uplinks.map(({ name }) => name));
    this.show(this.snapshot);
  }

  show(snapshot) {
    const { uplinks, up_ms: now } = snapshot;
    if (snapshot !== this.snapshot) {
      this.snapshot = snapshot;
      this.day.refresh(uplinks.map(({ name }) => name));
    }
    const numbered = uplinks.map((uplink, i) => ({ ...uplink, colour: `s${i % COLOURS}` }));
    keyed(this.cards, numbered, ({ name }) => name, (uplink) => makeCard(uplink, this.controls), (card, uplink) => this.updateCard(card, uplink, now));
    const { shown: day } = this.day;
    // The history has the bond's packets as the bond's; live they count for the uplinks that carry them.
    const lines = numbered.filter(({ device }) => day || device !== BOND_DEVICE);
    keyed(this.legend, lines, ({ name }) => name, ({ name, colour }) => element("li", {}, element("span", { className: `swatch ${colour}` }), name), () => {});
    for (const { way, chart, title, words } of this.charts) {
      const from = day ? this.day : this.rates;
      const series = lines.map(({ name, colour }) => ({ samples: from.of(name)[way], className: colour }));
      const most = day ? chart.draw(series, snapshot.unix_ms, DAY_VIEW) : chart.draw(series, now);
      const live = numbered.filter(({ device }) => device !== BOND_DEVICE);
      const total = live.reduce((sum, { name }) => sum + this.rates.of(name)[way].last, 0);
      setText(title, `${way === "down" ? texts.download : texts.upload} ${rate(total)}`);
      setText(words, texts.chartWords(rate(most)));
    }
  }

  updateCard(card, uplink, now) {
    const { parts } = card;
    const { down, up } = this.rates.of(uplink.name);
    card.dataset.state = uplink.state;
    setText(parts.state, texts.states[uplink.state]);
    setText(parts.since, uplink.since_unix_ms ? texts.since(moment(uplink.since_unix_ms)) : "");
    // That an uplink works needs no reason; it is among the details.
    parts.whyLine.hidden = uplink.state === "up";
    setText(parts.why, uplink.pause ? pauseWords(uplink.pause) : uplink.why);
    this.controls.update(parts.pause, uplink);
    setText(parts.down, rate(down.last));
    setText(parts.up, rate(up.last));
    setText(parts.downCapacity, capacity(uplink.rx_capacity));
    setText(parts.upCapacity, capacity(uplink.tx_capacity));
    parts.chart.draw([{ samples: down, className: uplink.colour }], now);
    parts.svg.setAttribute("aria-label", texts.chart(uplink.name, rate(down.last)));
    setText(parts.rtt, millis(uplink.rtt_ms));
    setText(parts.jitter, millis(uplink.jitter_ms));
    setText(parts.loss, percent(uplink.loss, 1));
    setText(parts.share, share(uplink.share));
    showQuota(parts, uplink);
    keyed(parts.details, details(uplink), ([term]) => term, ([term]) => element("div", {}, element("dt", { textContent: term }), element("dd")), (row, [, said]) => setText(row.lastElementChild, said));
  }
}

function makeCard({ name, colour }, controls) {
  const parts = { pause: controls.forUplink(name) };
  const text = (key, tag, className) => (parts[key] = element(tag, { className }));
  parts.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  parts.svg.setAttribute("role", "img");
  parts.svg.classList.add("spark");
  parts.chart = new Chart(parts.svg, false);
  parts.meter = element("meter", { min: 0, max: 1, high: 0.8, "aria-label": texts.quota });
  parts.quota = element("div", { className: "quota", hidden: true }, text("quotaText", "span", ""), parts.meter);
  parts.details = element("dl");
  parts.whyLine = element("p", { className: "why" }, text("why", "span", ""));
  const way = (arrow, label, key) =>
    element("div", { className: "way" }, element("span", { className: "label", textContent: label }), element("span", { className: "figure" }, element("span", { "aria-hidden": "true", textContent: `${arrow} ` }), text(key, "span", "rate")), text(`${key}Capacity`, "span", "soft"));
  const fact = (label, key) => element("div", {}, element("dt", { textContent: label }), text(key, "dd", ""));
  const card = element(
    "article",
    { className: "card", "aria-label": name },
    element("header", {}, element("h3", {}, element("span", { className: `swatch ${colour}` }), name), element("p", { className: "badge" }, element("span", { className: "sign", "aria-hidden": "true" }), text("state", "span", "state"), " ", text("since", "span", "soft"))),
    parts.whyLine,
    element("div", { className: "ways" }, way("↓", texts.download, "down"), way("↑", texts.upload, "up")),
    parts.svg,
    element("dl", { className: "facts" }, fact(texts.roundTrip, "rtt"), fact(texts.jitter, "jitter"), fact(texts.loss, "loss"), fact(texts.share, "share")),
    parts.quota,
    element("details", {}, element("summary", { textContent: texts.details }), parts.details),
    parts.pause,
  );
  card.parts = parts;
  return card;
}

function capacity(known) {
  return known ? texts.capacity[known.basis](rate(known.rate_bit_s), span(known.age_ms)) : texts.capacityUnknown;
}

function showQuota(parts, { quota_bytes: all, quota_used_bytes: used }) {
  parts.quota.hidden = all == null;
  if (all == null) return;
  setText(parts.quotaText, `${texts.quota}: ${texts.quotaUsed(bytes(used), bytes(all), percent(used / all))}`);
  parts.meter.value = used / all;
}

function details(uplink) {
  const rows = [[texts.device, uplink.device], [texts.evidence, uplink.why]];
  if (uplink.ipv4) rows.push(["IPv4", texts.via(uplink.ipv4.address, uplink.ipv4.gateway)]);
  if (uplink.ipv6) rows.push(["IPv6", texts.via(uplink.ipv6.address, uplink.ipv6.gateway)]);
  const known = [[texts.roundTrip, uplink.rtt_known], [texts.jitter, uplink.jitter_known], [texts.loss, uplink.loss_known]];
  for (const [name, found] of known) if (found) rows.push([name, texts.knownBy[found.basis](span(found.age_ms))]);
  rows.push([texts.mtu, bytes(uplink.mtu)], [texts.tier, String(uplink.tier)], [texts.weight, String(uplink.weight)]);
  rows.push([texts.received, bytes(uplink.rx_bytes)], [texts.sent, bytes(uplink.tx_bytes)]);
  return rows;
}
