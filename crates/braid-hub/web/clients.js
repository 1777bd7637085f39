// The clients: a table of them, and the rates of each from successive reports.

import { Chart, Samples } from "./chart.js";
import { element, setText, table } from "./dom.js";
import { bytes, millis, moment, percent, rate, UNKNOWN } from "./format.js";
import { attempt } from "./session.js";
import { texts } from "./texts.js";

/** Clients that the table has room for. */
const MOST_ROWS = 200;

/** Returns a client's state in words. */
function stateOf(client) {
  if (client.connected) return texts.states.connected();
  if (client.state === "joined") return client.last_seen_unix_ms ? texts.states.away(moment(client.last_seen_unix_ms)) : texts.states.never();
  return texts.states[client.state](moment(client.expires_unix_ms ?? 0));
}

function linksOf({ links }) {
  return links.filter(({ remote }) => remote).map(({ rtt_ms: rtt, share }) => texts.link(millis(rtt), percent(share)));
}

/** Returns the reasons to look at a client more closely. */
function remarksOf(client) {
  const counts = [["spoofed", client.spoofed_packets], ["misused", client.token_misuses], ["capped", client.capped_packets]];
  return counts.filter(([, n]) => n).map(([key, n]) => texts[key](n));
}

export class ClientView {
  clients = [];
  before = null;
  rates = new Map();
  totals = { tx: new Samples(), rx: new Samples() };

  constructor(session, changed) {
    this.session = session;
    this.changed = changed;
    const column = (key, kind, cell) => ({ title: texts.columns[key], kind, cell });
    const columns = [
      column("name", "name", ({ name }) => name),
      column("state", "", (client) => [stateOf(client), ...remarksOf(client)].join("; ")),
      column("addresses", "address", ({ addresses }) => addresses.join(", ")),
      column("links", "", (client) => linksOf(client).join("; ") || UNKNOWN),
      column("down", "figure", ({ name }) => this.rateOf(name, "tx")),
      column("up", "figure", ({ name }) => this.rateOf(name, "rx")),
      column("total", "figure", ({ rx_bytes: rx, tx_bytes: tx }) => bytes(rx + tx)),
      column("quota", "figure", ({ quota, quota_used_bytes: used }) => (quota ? texts.quota(bytes(used), quota) : UNKNOWN)),
    ];
    if (session.operator) columns.push(column("act", "act", (client, cell) => this.fillButton(client, cell)));
    this.table = table(texts.clients, columns, ({ name }) => name);
    document.getElementById("clients-table").append(this.table.node);
    this.find = document.getElementById("find");
    this.find.addEventListener("input", () => this.fill());
    this.charts = [["down", "tx", texts.toClients], ["up", "rx", texts.fromClients]].map(([id, key, title]) => ({
      key,
      title,
      node: document.getElementById(`${id}-title`),
      chart: new Chart(document.getElementById(`${id}-chart`), true),
    }));
  }

  rateOf(name, key) {
    const known = this.rates.get(name);
    return known ? rate(known[key]) : UNKNOWN;
  }

  fillButton(client, cell) {
    if (client.state === "revoked") return "";
    if (cell.firstChild) return null;
    const button = element("button", { type: "button", className: "link", textContent: texts.revoke, "aria-label": texts.revokeThis(client.name) });
    button.addEventListener("click", () => this.revoke(client.name, button));
    cell.append(button);
    return null;
  }

  async revoke(name, button) {
    if (!confirm(texts.revokeSure(name))) return;
    const outcome = document.getElementById("revoked");
    let report;
    const worked = await attempt(button, outcome, texts, async () => {
      report = await this.session.act("DELETE", `/v1/clients/${encodeURIComponent(name)}`);
    });
    if (worked) setText(outcome, [texts.revoked(name), ...report.warnings].join(" "));
    this.changed();
  }

  /** Takes a report of the clients. */
  show(clients) {
    const at = performance.now();
    const elapsed = this.before && at - this.before.at;
    const carried = new Map(clients.map(({ name, rx_bytes: rx, tx_bytes: tx }) => [name, { rx, tx }]));
    if (elapsed) {
      const total = { rx: 0, tx: 0 };
      this.rates = new Map();
      for (const [name, now] of carried) {
        const old = this.before.carried.get(name);
        if (!old || now.rx < old.rx || now.tx < old.tx) continue;
        const rates = { rx: ((now.rx - old.rx) * 8000) / elapsed, tx: ((now.tx - old.tx) * 8000) / elapsed };
        this.rates.set(name, rates);
        total.rx += rates.rx;
        total.tx += rates.tx;
      }
      for (const key of ["rx", "tx"]) this.totals[key].add(at, total[key]);
    }
    this.before = { at, carried };
    this.clients = clients;
    this.fill();
    for (const { key, title, node, chart } of this.charts) {
      chart.draw([{ samples: this.totals[key], className: "s0" }], at, { gap: 10_000 });
      setText(node, title(rate(this.totals[key].last)));
    }
  }

  fill() {
    const wanted = this.find.value.trim().toLowerCase();
    const matches = (client) => [client.name, stateOf(client), ...client.addresses].some((text) => text.toLowerCase().includes(wanted));
    const found = this.clients.filter(matches);
    // Whoever is connected comes first; the rest by the time that it was seen.
    found.sort((a, b) => b.connected - a.connected || (b.last_seen_unix_ms ?? 0) - (a.last_seen_unix_ms ?? 0) || a.name.localeCompare(b.name));
    const shown = found.slice(0, MOST_ROWS);
    setText(document.getElementById("clients-count"), texts.clientsCount(shown.length, found.length));
    this.table.node.hidden = !shown.length;
    this.table.fill(shown);
  }
}
