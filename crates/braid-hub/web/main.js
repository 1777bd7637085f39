// The hub's page: its clients, its state, and invitations.

import { ClientView } from "./clients.js";
import { element, keyed, setText, shape, showProblems, showVerdict } from "./dom.js";
import { fillTexts, list, moment, number } from "./format.js";
import { attempt, Freshness, get, offerActions, openSession } from "./session.js";
import { texts } from "./texts.js";

/** Pause between two questions to the hub, and time without an answer after which the page is old, in milliseconds. */
const PAUSE = 2000;
const STALE = 8000;
/** Names that the sentence on top has room for. */
const MOST_NAMES = 5;
const HOUR = 3_600_000;
/** Validities to choose from, the default first. */
const VALIDITIES = [[7 * 24 * HOUR, texts.days(7)], [HOUR, texts.hours(1)], [24 * HOUR, texts.days(1)], [30 * 24 * HOUR, texts.days(30)]];
/** Light squares around a QR code (ISO/IEC 18004 §5.3.8). */
const MARGIN = 4;

fillTexts(document, texts);
const $ = (id) => document.getElementById(id);
const session = await openSession();
const freshness = new Freshness(texts.lost, STALE);
const clientView = new ClientView(session, () => ask());
let connected = null;

setText($("sentence"), texts.waiting);
offerActions(session, texts);
$("invite-anchor").hidden = !session.operator;
for (const [value, text] of VALIDITIES) $("valid").append(element("option", { value, textContent: text }));

function verdict(status, clients) {
  const { joined, connected } = status.clients;
  const away = clients.filter((client) => client.state === "joined" && !client.connected).map(({ name }) => name);
  const sentence = joined ? texts.connected(connected, joined) : texts.noClients;
  const missing = away.length > MOST_NAMES ? texts.awayMany(away.length) : texts.away(away);
  const reasons = away.length ? [missing] : [];
  if (status.health.length) return { state: "warn", sentence: texts.attention, reasons: [sentence, ...reasons] };
  return { state: "good", sentence, reasons };
}

/** Announces clients that came or went since the last report. */
function announce(clients) {
  const before = connected;
  connected = new Set(clients.filter((client) => client.connected).map(({ name }) => name));
  if (!before) return;
  const came = [...connected].filter((name) => !before.has(name));
  const left = [...before].filter((name) => !connected.has(name));
  const news = [came.length ? texts.came(came) : "", left.length ? texts.left(left) : ""].filter(Boolean);
  if (news.length) setText($("news"), news.join(". "));
}

function showFacts(node, facts) {
  const make = ([title]) => element("div", {}, element("dt", { textContent: title }), element("dd"));
  keyed(node, facts, ([title]) => title, make, (row, [, value]) => setText(row.lastChild, value));
}

function showHub(status) {
  const facts = texts.facts;
  const previous = status.previous_key ? [[facts.previous, `${status.previous_key.key}, ${moment(status.previous_key.until_unix_ms)}`]] : [];
  showFacts($("hub-facts"), [
    [facts.key, status.key],
    ...previous,
    [facts.listen, list(status.listen)],
    [facts.networks, list(status.networks)],
    [facts.forward, texts.forward[status.forward] ?? status.forward],
    [facts.clients, texts.counts(status.clients)],
    [facts.unrouted, number(status.unrouted_packets)],
  ]);
  for (const [id, counts] of [["handshakes", status.handshakes], ["refusals", status.rejected]]) {
    const some = Object.entries(counts).filter(([, n]) => n).map(([key, n]) => [key.replaceAll("_", " "), number(n)]);
    showFacts($(id), some.length ? some : [[texts.none, ""]]);
  }
  setText($("about"), texts.about(status.version, texts.roles[session.role]));
}

async function ask() {
  const [status, { clients }] = await Promise.all([get("/v1/status"), get("/v1/clients")]);
  freshness.renew();
  showVerdict(verdict(status, clients));
  showProblems(status.health, texts.mend);
  announce(clients);
  clientView.show(clients);
  showHub(status);
}

/** Asks for as long as the page is open; one that nobody sees asks nothing. */
async function follow() {
  // Until the next answer the page says by itself that it is old.
  if (!document.hidden) await ask().catch(() => {});
  setTimeout(follow, PAUSE);
}

/** Draws a QR code, black on white whatever the theme. */
function qrCode(rows, title) {
  const side = rows.length + 2 * MARGIN;
  const squares = rows.flatMap((row, y) => [...row].map((square, x) => (square === "1" ? `M${x + MARGIN},${y + MARGIN}h1v1h-1z` : "")));
  const svg = shape("svg", { class: "qr", role: "img", "aria-label": title, viewBox: `0 0 ${side} ${side}`, "shape-rendering": "crispEdges" });
  svg.append(shape("rect", { width: side, height: side, fill: "#fff" }), shape("path", { fill: "#000", d: squares.join("") }));
  return svg;
}

function showInvitation(invitation) {
  const { name, token, qr_code: rows, expires_unix_ms: expires, warnings } = invitation;
  const copied = element("span", { role: "status" });
  const copy = element("button", { type: "button", className: "quiet", textContent: texts.copy });
  copy.addEventListener("click", () => navigator.clipboard.writeText(token).then(() => setText(copied, texts.copied)));
  $("invitation").replaceChildren(
    element(
      "div",
      { className: "story" },
      element("h3", { textContent: texts.invitation(name, moment(expires)) }),
      element("p", { textContent: texts.once }),
      ...warnings.map((textContent) => element("p", { className: "error", textContent })),
      element("p", { textContent: texts.onMachine }),
      element("pre", {}, element("code", { textContent: `braid join ${token}` })),
      // A clipboard exists only within HTTPS and on the machine itself.
      navigator.clipboard ? element("p", { className: "row" }, copy, copied) : null,
      element("p", {}, `${texts.byPicture} `, element("code", { textContent: "braid join --scan FILE" })),
      rows.length ? qrCode(rows, texts.qrCode(name)) : null,
    ),
  );
  $("invitation").focus();
}

$("invite").addEventListener("submit", async (event) => {
  event.preventDefault();
  const request = { name: $("name").value.trim(), valid_ms: Number($("valid").value) };
  await attempt(event.submitter ?? $("invite").querySelector("button"), $("outcome"), texts, async () => {
    showInvitation(await session.act("POST", "/v1/invitations", request));
    $("name").value = "";
  });
  ask().catch(() => {});
});

follow();
