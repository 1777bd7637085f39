// The page: one stream of snapshots and events, and the parts that show them.

import { BondView } from "./bond.js";
import { setText, showProblems, showVerdict } from "./dom.js";
import { EventList } from "./events.js";
import { FlowView } from "./flows.js";
import { fillTexts } from "./format.js";
import { PauseControls, RuleView } from "./pauses.js";
import { followStream, Freshness, get, offerActions, openSession } from "./session.js";
import { texts } from "./texts.js";
import { Rates, UplinkView, verdict } from "./uplinks.js";

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
const events = new EventList(({ kind, uplink, text, evidence }) => ({
  kind: texts.kinds[kind] ?? kind,
  subject: uplink,
  text,
  why: evidence,
  loud: ANNOUNCED.includes(kind),
}));

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

function addEvents(added) {
  const news = events.add(added);
  if (news.some(({ kind }) => OF_RULES.includes(kind))) ruleView.refresh();
  if (news.some(({ kind }) => ANNOUNCED.includes(kind))) flowView.again();
}

offerActions(session, texts);
followStream("/v1/stream", addEvents, showSnapshot);
