// The fabric's page: one stream of snapshots and changes, and the parts that show them.

import { setText, showProblems, showVerdict } from "./dom.js";
import { EventList } from "./events.js";
import { fillTexts } from "./format.js";
import { HostView } from "./hosts.js";
import { NetworkView } from "./network.js";
import { PathView } from "./paths.js";
import { followStream, Freshness, get, offerActions, openSession } from "./session.js";
import { texts } from "./texts.js";
import { verdict } from "./verdict.js";

/** Changes that are announced as they come. */
const ANNOUNCED = ["switch-disconnected", "switch-connected", "link-lost", "link-found", "paths-used", "paths-withdrawn"];

fillTexts(document, texts);
const session = await openSession();
const freshness = new Freshness(texts.lost);
const networkView = new NetworkView();
const pathView = new PathView(get, (route) => networkView.follow(route));
const hostView = new HostView(session);
const events = new EventList(({ event, fields }) => {
  const [subject, text] = texts.events[event]?.(fields) ?? ["", event];
  return { kind: texts.kinds[event] ?? event, subject, text, why: fields.why, loud: ANNOUNCED.includes(event) };
});

setText(document.getElementById("sentence"), texts.waiting);
offerActions(session, texts);
followStream("/v1/fabric/stream", (news) => events.add(news), (snapshot) => {
  freshness.renew();
  showVerdict(verdict(snapshot));
  showProblems(snapshot.health.map(({ code, subject, text }) => ({ code, text: `${subject}: ${text}` })), texts.mend);
  networkView.show(snapshot);
  pathView.show(snapshot);
  hostView.show(snapshot);
  setText(document.getElementById("about"), texts.about(snapshot.generation, texts.roles[session.role]));
});
