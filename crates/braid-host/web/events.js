// The list of events: the newest first, some at first and more on request; new ones are said aloud.

import { element, keyed, setText } from "./dom.js";
import { moment } from "./format.js";

/** Events that are kept, and those shown before anybody asks for more. */
const MOST = 200;
const FIRST = 12;

const $ = (id) => document.getElementById(id);

export class EventList {
  events = [];
  shown = FIRST;

  /** `describe` returns an event's kind, subject, text and reason in words, and if it is to be said aloud. */
  constructor(describe) {
    this.describe = describe;
    $("more-events").addEventListener("click", () => {
      this.shown = MOST;
      this.draw();
    });
  }

  /** Takes events in, and returns the news: those of before the page was opened are none. */
  add(news) {
    const last = this.events.at(-1)?.number ?? 0;
    const fresh = news.filter(({ number }) => number > last);
    const first = !this.events.length;
    this.events = [...this.events, ...fresh].slice(-MOST);
    this.draw();
    const unheard = first ? [] : fresh;
    const loud = unheard.map(this.describe).filter((said) => said.loud);
    if (loud.length) setText($("news"), loud.map(({ subject, text, why }) => [subject, text, why].filter(Boolean).join(", ")).join(". "));
    return unheard;
  }

  draw() {
    const newest = this.events.slice(-this.shown).reverse();
    const make = (event) => {
      const { kind, subject, text, why } = this.describe(event);
      return element(
        "li",
        {},
        element("time", { dateTime: new Date(event.unix_ms).toISOString(), textContent: moment(event.unix_ms, true) }),
        element("span", { className: "soft", textContent: kind }),
        element("p", {}, subject ? element("strong", { textContent: `${subject} ` }) : null, text, why ? element("span", { className: "soft", textContent: ` – ${why}` }) : null),
      );
    };
    keyed(document.querySelector("ol.events"), newest, ({ number }) => number, make, () => {});
    $("more-events").hidden = this.events.length <= this.shown;
  }
}
