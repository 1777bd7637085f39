// The browser's session: requests in its name, what its role may do, and whether the page is up to date.

import { setText } from "./dom.js";

/** Time without news after which a page says that it is old, in milliseconds. */
const STALE = 3000;

const $ = (id) => document.getElementById(id);

/** Sends a request, and returns the answer; throws the daemon's error in its words. */
export async function send(method, path, { headers = {}, body = null } = {}) {
  const asked = body == null ? { method, headers } : { method, headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, asked);
  if (answer.status === 401) location.reload();
  const read = answer.status === 204 ? null : await answer.json();
  if (answer.ok) return read;
  const { code, text, fix } = typeof read.error === "string" ? { text: read.error } : read.error;
  throw Object.assign(new Error(fix ? `${text} (${fix})` : text), { code });
}

export const get = (path, question = {}) => send("GET", `${path}?${new URLSearchParams(question)}`);

/** Returns the session; `act` sends a request that changes something. */
export async function openSession() {
  const session = await get("/session");
  const act = (method, path, body) => send(method, path, { headers: { "X-CSRF-Token": session.csrf_token }, body });
  return { ...session, act, operator: session.role === "operator" };
}

/** Shows the section of actions, if there is one, to operators, and makes its buttons and that of the end of the session work. */
export function offerActions(session, texts) {
  if ($("actions")) $("actions").hidden = !session.operator;
  for (const button of document.querySelectorAll("[data-post]")) {
    button.addEventListener("click", () => attempt(button, $("outcome"), texts, () => session.act("POST", button.dataset.post)));
  }
  $("logout").addEventListener("click", async () => {
    await session.act("POST", "/logout");
    location.reload();
  });
}

/** Does something that a button asks for, and says in `outcome` how it went: in the words of the button's
 *  `data-outcome`, if it has some. Returns true if it worked. */
export async function attempt(button, outcome, texts, work) {
  button.disabled = true;
  let failure = null;
  let answer = null;
  try {
    answer = await work();
  } catch (error) {
    failure = error;
  }
  const done = () => texts[button.dataset.outcome]?.(answer) ?? texts.done;
  setText(outcome, failure ? texts.failed(failure.message) : done());
  button.disabled = false;
  return !failure;
}

/** Opens a stream of snapshots, each after the events that came before it; and again when it is closed for good.
 *  Browsers mend broken connections themselves. */
export function followStream(path, addEvents, showSnapshot) {
  const stream = new EventSource(path);
  let waiting = [];
  stream.addEventListener("event", ({ data }) => waiting.push(JSON.parse(data)));
  stream.addEventListener("snapshot", ({ data }) => {
    if (waiting.length) addEvents(waiting);
    waiting = [];
    showSnapshot(JSON.parse(data));
  });
  stream.addEventListener("error", () => {
    if (stream.readyState !== EventSource.CLOSED) return;
    // Without a session the answer to this request leads to the login form.
    send("GET", "/session").catch(() => {}).finally(() => setTimeout(() => followStream(path, addEvents, showSnapshot), 2000));
  });
}

/** Says when the page is old. */
export class Freshness {
  heard = 0;

  constructor(text, stale = STALE) {
    setInterval(() => {
      if (!this.heard || performance.now() - this.heard < stale) return;
      setText($("stale"), text);
      $("stale").hidden = false;
      document.body.classList.add("old");
    }, 1000);
  }

  renew() {
    this.heard = performance.now();
    $("stale").hidden = true;
    document.body.classList.remove("old");
  }
}
