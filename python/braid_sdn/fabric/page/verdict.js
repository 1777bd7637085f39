// The sentence on top: how the fabric is, in words, and what is behind it.

import { moment } from "./format.js";
import { cables } from "./network.js";
import { texts } from "./texts.js";

/** Reasons that the top has room for. */
const MOST_REASONS = 4;

/** Returns tone, sentence and reasons for a snapshot. */
export function verdict(snapshot) {
  const all = cables(snapshot);
  const down = all.filter(({ state }) => state === "lost");
  const away = snapshot.lost_switches;
  const served = paths(snapshot);
  if (!snapshot.switches.length) {
    const reasons = away.length ? away.map(({ name, why }) => texts.lostWhy(name, why)) : [texts.noSwitchesWhy];
    return { state: "bad", sentence: texts.noSwitches, reasons: reasons.slice(0, MOST_REASONS) };
  }
  if (!snapshot.planned) return { state: "wait", sentence: texts.finding, reasons: [] };
  const consists = texts.consists(snapshot.switches.length, all.length - down.length);
  if (!down.length && !away.length) {
    const calm = !snapshot.health.length;
    return { state: calm ? "good" : "warn", sentence: calm ? texts.allWell : texts.attention, reasons: [[consists, ...served].join(" ")] };
  }
  const since = (age) => moment(snapshot.unix_ms - age);
  const links = down.map((cable) => ({ name: cable.name, since: moment(cable.lost.since), why: cable.lost.why }));
  const reasons = [...away.map(({ name, why }) => texts.lostWhy(name, why)), ...links.map(({ name, why }) => texts.lostWhy(name, why))];
  let sentence = texts.severalLost(away.length, links.length);
  if (!away.length) sentence = links.length === 1 ? texts.linkLost(links[0].name, links[0].since) : texts.linksLost(links.length);
  else if (!links.length) sentence = away.length === 1 ? texts.switchLost(away[0].name, since(away[0].lost_ms)) : texts.switchesLost(away.length);
  return { state: "bad", sentence, reasons: [...reasons.slice(0, MOST_REASONS), [consists, ...served].join(" ")] };
}

function paths({ pairs, unserved }) {
  const count = pairs.reduce((sum, pair) => sum + pair.paths.length, 0);
  return [pairs.length ? texts.pairsServed(pairs.length, count) : "", unserved.length ? texts.pairsUnserved(unserved.length) : ""].filter(Boolean);
}
