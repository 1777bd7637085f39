// The page: one stream of snapshots and events, and the parts that show them.

import { BondView } from "./bond.js";
import { element, keyed, setText, showProblems, showVerdict } from "./dom.js";
import { FlowView } from "./flows.js";
import { fillTexts, moment } from "./format.js";
import { PauseControls, RuleView } from "./pauses.js";
import { Freshness, get, offerActions, openSession, send } from "./session.js";
import { texts } from "./texts.js";
import { Rates, UplinkView, verdict } from "./uplinks.js";

/** Events that are kept, and those shown before anybody asks for more. */
const MOST_EVENTS = 200;
const FIRST_EVENTS = 12;
/** Kinds of events that are announced as they come, and those that may change a rule. */
const ANNOUNCED = ["verdict", "uplink-gone", "uplink-back", "uplink-paused", "uplink-resumed", "rule-paused", "rule-resumed", "bond"];
const OF_RULES = ["rule-paused", "rule-resumed", "reloaded"];

fillTexts(document, texts);
const $ = (id) => document.getElementById(id);
const session = await openSession();
const freshness = new Freshness(texts.lost);
const rates = new Rates();
const uplinkView = new UplinkView(rates, get, new PauseControls(session));
const bondView = new BondView();
const ruleView = new RuleView(session);
const flowView = new FlowView(get);
let events = [];
let shownEvents = FIRST_EVENTS;

setText($("sentence"), texts.waiting);

function showSnapshot(snapshot) {
  freshness.renew();
  rates.add(snapshot);
  showVerdict(verdict(snapshot));
  // The sentence on top says what is wrong with an uplink.
  showProblems(snapshot.health.filter(({ code, fix }) => fix || !code.startsWith("uplink-")), texts.mend);
  uplinkView.show(snapshot);
  bondView.show(snapshot.bond);
  setText($("about"), texts.about(snapshot.version, snapshot.policy, texts.roles[session.role]));
}

function showEvents() {
  const newest = events.slice(-shownEvents).reverse();
  const make = (event) =>
    element(
      "li",
      {},
      element("time", { dateTime: new Date(event.unix_ms).toISOString(), textContent: moment(event.unix_ms, true) }),
      element("span", { className: "soft", textContent: texts.kinds[event.kind] ?? event.kind }),
      element("p", {}, event.uplink ? element("strong", { textContent: `${event.uplink} ` }) : null, event.text, event.evidence ? element("span", { className: "soft", textContent: ` – ${event.evidence}` }) : null),
    );
  keyed(document.querySelector("ol.events"), newest, ({ number }) => number, make, () => {});
  $("more-events").hidden = events.length <= shownEvents;
}

function addEvents(news) {
  const last = events.at(-1)?.number ?? 0;
  const fresh = news.filter(({ number }) => number > last);
  const first = !events.length;
  events = [...events, ...fresh].slice(-MOST_EVENTS);
  showEvents();
  // Those of before the page was opened are no news.
  if (!first && fresh.some(({ kind }) => OF_RULES.includes(kind))) ruleView.refresh();
  const loud = first ? [] : fresh.filter(({ kind }) => ANNOUNCED.includes(kind));
  if (!loud.length) return;
  flowView.again();
  setText($("news"), loud.map(({ uplink, text, evidence }) => [uplink, text, evidence].filter(Boolean).join(", ")).join(". "));
}

/** Opens the stream, and again when it is closed for good. Browsers mend broken connections themselves. */
function follow() {
  const stream = new EventSource("/v1/stream");
  let waiting = [];
  stream.addEventListener("event", ({ data }) => waiting.push(JSON.parse(data)));
  stream.addEventListener("snapshot", ({ data }) => {
    // A frame's events come right before its snapshot.
    if (waiting.length) addEvents(waiting);
    waiting = [];
    showSnapshot(JSON.parse(data));
  });
  stream.addEventListener("error", () => {
    if (stream.readyState !== EventSource.CLOSED) return;
    // Without a session the answer to this request leads to the login form.
    send("GET", "/session").catch(() => {}).finally(() => setTimeout(follow, 2000));
  });
}

$("more-events").addEventListener("click", () => {
  shownEvents = MOST_EVENTS;
  showEvents();
});

offerActions(session, texts);
follow();
