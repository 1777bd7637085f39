// The hosts, which an operator may have forgotten, the switches, and the tenants if there are any.

import { element, setText, table } from "./dom.js";
import { ago, moment, number, rate, span, UNKNOWN } from "./format.js";
import { latency } from "./network.js";
import { attempt } from "./session.js";
import { texts } from "./texts.js";

/** Hosts that the table has room for. */
const MOST_ROWS = 100;

export class HostView {
  hosts = [];

  constructor(session) {
    this.session = session;
    const column = (key, kind, cell) => ({ title: texts.hostColumns[key], kind, cell });
    const columns = [
      column("addresses", "name address", ({ addresses }) => addresses.join(", ") || UNKNOWN),
      column("mac", "address mac", ({ mac }) => mac),
      column("port", "address port", ({ port }) => port),
      column("tenant", "tenant", ({ tenant }) => tenant),
      column("flood", "why flood", floodLimit),
      column("silent", "figure silent", ({ silent_ms: ms }) => (ms == null ? UNKNOWN : ago(span(ms)))),
      column("forgotten", "figure forgotten", (host) => (host.static ? texts.static : host.forgotten_in_ms == null ? texts.never : texts.forgottenIn(span(Math.max(0, host.forgotten_in_ms))))),
    ];
    if (session.operator) columns.push(column("act", "act", (host, cell) => this.fillButton(host, cell)));
    this.table = table(texts.hosts, columns, ({ mac }) => mac);
    document.getElementById("hosts-table").append(this.table.node);
    this.switches = makeSwitchTable();
    document.getElementById("switches-table").append(this.switches.node);
    this.tenants = makeTenantTable();
    document.getElementById("tenants-table").append(this.tenants.node);
    this.find = document.getElementById("find");
    this.find.addEventListener("input", () => this.fill());
  }

  fillButton(host, cell) {
    if (host.static) return "";
    if (cell.firstChild) return null;
    const button = element("button", { type: "button", className: "link", textContent: texts.forget, "aria-label": texts.forgetThis(host.mac) });
    button.addEventListener("click", () => this.forget(host.mac, button));
    cell.append(button);
    return null;
  }

  async forget(mac, button) {
    if (!confirm(texts.forgetSure(mac))) return;
    const outcome = document.getElementById("outcome");
    let answer = null;
    const worked = await attempt(button, outcome, texts, async () => {
      answer = await this.session.act("POST", `/v1/fabric/hosts/${encodeURIComponent(mac)}/forget`);
    });
    if (worked) setText(outcome, texts.forgotten(answer.mac, answer.port));
  }

  show(snapshot) {
    this.hosts = snapshot.hosts;
    // Of a network without tenants or limits these columns would say the same in each row.
    this.table.node.classList.toggle("no-tenants", !snapshot.tenants.length);
    this.table.node.classList.toggle("no-limits", this.hosts.every(({ flood_limit_wanted_bit_s: wanted }) => wanted == null));
    this.fill();
    this.tenants.fill(snapshot.tenants);
    document.getElementById("tenants").hidden = !snapshot.tenants.length;
    const lost = snapshot.lost_switches.map((each) => ({ ...each, since: snapshot.unix_ms - each.lost_ms }));
    this.switches.fill([...lost, ...snapshot.switches]);
    this.switches.node.hidden = !(lost.length + snapshot.switches.length);
  }

  fill() {
    const wanted = this.find.value.trim().toLowerCase();
    const matches = ({ mac, port, tenant, addresses }) => [mac, port, tenant, ...addresses].some((text) => text.toLowerCase().includes(wanted));
    const found = this.hosts.filter(matches);
    const shown = found.slice(0, MOST_ROWS);
    setText(document.getElementById("hosts-count"), texts.hostsCount(shown.length, found.length));
    this.table.node.hidden = !shown.length;
    this.table.fill(shown);
  }
}

/** What a host's port may have flooded by its switch, and what of it is dropped. */
export function floodLimit({ flood_limit_bit_s: has, flood_limit_wanted_bit_s: wanted, flood_dropped_packets_s: dropped }) {
  if (wanted == null) return texts.noLimit;
  const limit = has == null ? texts.limitUnknown(rate(wanted)) : has === wanted ? rate(has) : texts.limitRefused(rate(has), rate(wanted));
  return dropped ? texts.limitReached(limit, dropped) : limit;
}

function makeTenantTable() {
  const column = (key, kind, cell) => ({ title: texts.tenantColumns[key], kind, cell });
  return table(
    texts.tenants,
    [
      column("name", "name", ({ name }) => name),
      column("hosts", "figure", ({ hosts: n }) => number(n)),
      column("used", "figure", ({ tags_used: n, tags_available: all }) => texts.tagsUsed(n, all)),
      column("tags", "tags", ({ tags }) => tags),
      column("ports", "address ports", ({ name, ports }) => (name === "default" ? texts.otherPorts : ports.join(", ") || UNKNOWN)),
    ],
    ({ name }) => name,
  );
}

function makeSwitchTable() {
  const column = (key, kind, cell) => ({ title: texts.switchColumns[key], kind, cell });
  return table(
    texts.switches,
    [
      column("name", "name", ({ name }) => name),
      column("id", "address id", ({ id }) => id),
      column("address", "address", ({ address }) => address ?? UNKNOWN),
      column("ports", "figure", ({ ports_up: n }) => (n == null ? UNKNOWN : number(n))),
      column("rules", "figure", ({ rules: n }) => (n == null ? UNKNOWN : number(n))),
      column("echo", "figure", ({ echo_ms: ms }) => latency(ms)),
      column("state", "why", ({ since, why, drained }) => (since ? texts.switchStates.lost(moment(since, true), why) : texts.switchStates[drained ? "drained" : "connected"]())),
    ],
    ({ id }) => id,
  );
}
