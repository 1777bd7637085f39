// The flows: the story of one destination, and the largest flows.

import { element, setText, table } from "./dom.js";
import { bytes, rate, share, span, UNKNOWN } from "./format.js";
import { texts } from "./texts.js";

/** Flows that are listed, at first and after "Show more". */
const FIRST = 12;
const MOST = 100;
/** Time between two lists, in milliseconds. */
const PACE = 5000;
/** Addresses of a name that are asked about. */
const MOST_ADDRESSES = 4;
/** Addresses of Braid's own device, which this machine's flows have (docs/operating.md). */
const OWN = ["192.0.0.8", "64:ff9b:1:6272::8"];
const NUMBERS = { icmp: 1, tcp: 6, udp: 17, icmpv6: 58 };

export class FlowView {
  constructor(get) {
    this.get = get;
    this.before = new Map();
    this.most = FIRST;
    this.more = document.getElementById("more-flows");
    this.more.addEventListener("click", () => {
      this.most = MOST;
      this.list();
    });
    this.story = document.getElementById("story");
    this.count = document.getElementById("flows-count");
    this.find = document.getElementById("find");
    this.table = makeTable((flow) => this.explainFlow(flow));
    document.getElementById("flows-table").append(this.table.node);
    const form = document.getElementById("ask");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(form.elements.destination.value, Number(form.elements.protocol.value));
    });
    let typed;
    this.find.addEventListener("input", () => {
      clearTimeout(typed);
      typed = setTimeout(() => this.list(), 300);
    });
    // Nobody asks for a table that nobody sees.
    new IntersectionObserver(([entry]) => {
      const seen = entry.isIntersecting && !this.seen;
      this.seen = entry.isIntersecting;
      if (seen) this.list();
    }).observe(document.getElementById("flows"));
    setInterval(() => this.seen && !document.hidden && this.list(), PACE);
  }

  async list() {
    const find = this.find.value.trim();
    let answer;
    try {
      answer = await this.get("/v1/flows", { limit: this.most, ...(find ? { find } : {}) });
    } catch (failure) {
      setText(this.count, failure.message);
      return;
    }
    if (find !== this.find.value.trim()) return;
    const now = performance.now();
    const known = new Map();
    for (const flow of answer.flows) {
      const sample = { now, total: flow.tx_bytes + flow.rx_bytes, rate: null };
      const old = this.before.get(keyOf(flow));
      // Two lists that follow closely say little about a rate.
      const close = old && now - old.now < 500;
      if (old && !close) sample.rate = (Math.max(0, sample.total - old.total) * 8000) / (now - old.now);
      known.set(keyOf(flow), close ? old : sample);
      flow.rate = known.get(keyOf(flow)).rate;
    }
    this.before = known;
    setText(this.count, answer.matching ? texts.flowsCount(answer.flows.length, answer.matching) : texts.noFlows);
    this.table.node.hidden = !answer.matching;
    this.more.hidden = answer.matching <= answer.flows.length || this.most === MOST;
    this.table.fill(answer.flows);
  }

  explainFlow({ remote, protocol, inner }) {
    const [address, port] = parted(remote);
    const question = { destination: address, protocol: NUMBERS[protocol] ?? Number(protocol) };
    if (port) question.port = port;
    const [source, source_port] = parted(inner);
    if (!OWN.includes(source)) question.source = source;
    if (source_port) question.source_port = source_port;
    this.tell(() => this.get("/v1/explain", question).then((answer) => [answer]), true);
  }

  ask(typed, protocol) {
    const found = parted(typed.trim());
    if (!found) return this.show([element("p", { className: "error", textContent: texts.notUnderstood })]);
    const [host, port] = found;
    const question = { protocol, ...(port ? { port } : {}) };
    this.tell(async () => {
      if (isAddress(host)) return [await this.get("/v1/explain", { ...question, destination: host })];
      const { name, addresses } = await this.get("/v1/lookup", { name: host });
      const asked = addresses.slice(0, MOST_ADDRESSES).map((destination) => this.get("/v1/explain", { ...question, destination, domain: name }));
      return Promise.all(asked);
    }, false);
  }

  /** Asks the last question again: an uplink has changed. */
  again() {
    if (this.asked) this.tell(this.asked, false);
  }

  async tell(ask, focus) {
    this.asked = ask;
    try {
      const answers = await ask();
      this.show(answers.map(story));
    } catch (failure) {
      this.show([element("p", { className: "error", textContent: failure.message })]);
    }
    if (focus) {
      this.story.scrollIntoView({ block: "start" });
      this.story.focus({ preventScroll: true });
    }
  }

  show(nodes) {
    this.story.replaceChildren(...nodes);
  }
}

function keyOf({ protocol, inner, remote, outer }) {
  return `${protocol} ${inner} ${remote} ${outer}`;
}

function isAddress(host) {
  return host.includes(":") || /^[0-9.]+$/.test(host);
}

/** Returns host and port of a text, which may be "[2001:db8::1]:443"; nothing if it is neither name nor address. */
function parted(text) {
  const both = /^\[([0-9a-f:.]+)\](?::(\d{1,5}))?$/i.exec(text) ?? /^([^\s:/]+)(?::(\d{1,5}))?$/.exec(text);
  if (both) return [both[1], both[2] ? Number(both[2]) : null];
  return /^[0-9a-f:.]+$/i.test(text) ? [text, null] : null;
}

function origin(inner) {
  const [address, port] = parted(inner);
  return OWN.includes(address) ? texts.thisMachine(port) : inner;
}

function story(answer) {
  const names = answer.candidates.map(({ uplink }) => uplink);
  const steps = answer.steps.map(({ stage, text }) => element("li", {}, element("span", { className: "stage", textContent: texts.stages[stage] }), element("span", { textContent: text })));
  // The steps have the state of each.
  const parts = answer.candidates.filter(({ share: part }) => part != null).map(({ uplink, share: part }) => [uplink, share(part)]);
  const flows = answer.flows.slice(0, 5).map((flow) => element("li", { textContent: texts.flowNow(flow) }));
  return element(
    "article",
    { className: "story" },
    element("p", { className: "soft", textContent: answer.question }),
    element("h3", { textContent: texts.outcome[answer.outcome](answer.uplink, names) }),
    parts.length > 1 ? element("p", { textContent: texts.shares(parts) }) : null,
    element("ol", { className: "steps" }, ...steps),
    flows.length ? element("p", { textContent: texts.suchFlows(answer.flows.length) }) : null,
    flows.length ? element("ul", {}, ...flows) : null,
  );
}

function makeTable(explain) {
  const titles = texts.flowColumns;
  const column = (key, kind, cell) => ({ title: titles[key], kind, cell });
  const remote = (flow, cell) => {
    const told = flow.remote ?? texts.anyRemote;
    if (!flow.remote) return told;
    if (!cell.firstChild) cell.append(element("button", { type: "button", className: "link" }));
    const [button] = cell.children;
    button.onclick = () => explain(flow);
    button.setAttribute("aria-label", texts.explainThis(told));
    setText(button, told);
    return null;
  };
  return table(
    texts.flows,
    [
      column("remote", "address to", remote),
      column("inner", "address from", ({ inner }) => origin(inner)),
      column("protocol", "protocol", ({ protocol }) => protocol),
      column("uplink", "name", ({ uplink, previous_uplink: old }) => (old ? `${old} → ${uplink}` : uplink)),
      column("rate", "figure rate", (flow) => (flow.rate == null ? UNKNOWN : rate(flow.rate))),
      column("total", "figure total", (flow) => bytes(flow.tx_bytes + flow.rx_bytes)),
      column("age", "figure age", (flow) => span(flow.age_ms)),
      column("why", "why", ({ why }) => why),
    ],
    keyOf,
  );
}
