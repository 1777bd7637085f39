// The page: one stream of snapshots and events, and the parts that show them.

import { BondView } from "./bond.js";
import { element, keyed, setText } from "./dom.js";
import { FlowView } from "./flows.js";
import { fillTexts, moment, texts } from "./texts.js";
import { Rates, UplinkView, verdict } from "./uplinks.js";

/** Time without a snapshot after which the page says that it is old, in milliseconds. */
const STALE = 3000;
/** Events that are kept, and those shown before anybody asks for more. */
const MOST_EVENTS = 200;
const FIRST_EVENTS = 12;
/** Kinds of events that are announced as they come. */
const ANNOUNCED = ["verdict", "uplink-gone", "uplink-back", "bond"];

fillTexts(document);
const $ = (id) => document.getElementById(id);

/** Sends a request, and returns the answer; throws the daemon's error in its words. */
async function send(method, path, headers = {}) {
  const answer = await fetch(path, { method, headers });
  if (answer.status === 401) location.reload();
  const body = answer.status === 204 ? null : await answer.json();
  if (answer.ok) return body;
  const { text, fix } = body.error;
  throw new Error(fix ? `${text} (${fix})` : text);
}

const get = (path, question = {}) => send("GET", `${path}?${new URLSearchParams(question)}`);

const rates = new Rates();
const uplinkView = new UplinkView(rates, get);
const bondView = new BondView();
const flowView = new FlowView(get);
const session = await get("/session");
let events = [];
let shownEvents = FIRST_EVENTS;
let heard = 0;

setText($("sentence"), texts.waiting);
$("actions").hidden = session.role !== "operator";

function showSnapshot(snapshot) {
  heard = performance.now();
  $("stale").hidden = true;
  document.body.classList.remove("old");
  rates.add(snapshot);
  showVerdict(snapshot);
  showProblems(snapshot.health);
  uplinkView.show(snapshot);
  bondView.show(snapshot.bond);
  setText($("about"), texts.about(snapshot.version, snapshot.policy, texts.roles[session.role]));
}

function showVerdict(snapshot) {
  const { state, sentence, reasons } = verdict(snapshot);
  $("verdict").dataset.state = state;
  setText($("sentence"), sentence);
  document.title = `${sentence} - Braid`;
  keyed($("reasons"), reasons, (reason) => reason, (reason) => element("p", { textContent: reason }), () => {});
}

function showProblems(all) {
  // The sentence on top says what is wrong with an uplink.
  const health = all.filter(({ code, fix }) => fix || !code.startsWith("uplink-"));
  $("problems").hidden = !health.length;
  const make = ({ text, fix }) => element("li", {}, element("p", { textContent: text }), fix ? element("p", { className: "soft" }, element("strong", { textContent: texts.mend }), ` ${fix}`) : null);
  keyed($("problems").querySelector("ul"), health, ({ code, text }) => `${code} ${text}`, make, () => {});
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

setInterval(() => {
  if (!heard || performance.now() - heard < STALE) return;
  setText($("stale"), texts.lost);
  $("stale").hidden = false;
  document.body.classList.add("old");
}, 1000);

$("more-events").addEventListener("click", () => {
  shownEvents = MOST_EVENTS;
  showEvents();
});

for (const button of document.querySelectorAll("[data-post]")) {
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await send("POST", button.dataset.post, { "X-CSRF-Token": session.csrf_token });
      setText($("outcome"), texts.done);
    } catch (failure) {
      setText($("outcome"), texts.failed(failure.message));
    }
    button.disabled = false;
  });
}

$("logout").addEventListener("click", async () => {
  await send("POST", "/logout", { "X-CSRF-Token": session.csrf_token });
  location.reload();
});

follow();
