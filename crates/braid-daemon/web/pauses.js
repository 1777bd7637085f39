// Pauses: uplinks that are set aside, and rules that are switched off. Everybody sees them; an operator changes them.

import { element, setText, table } from "./dom.js";
import { moment } from "./format.js";
import { attempt, get } from "./session.js";
import { texts } from "./texts.js";

/** Times of a pause that are offered, in hours; 0 lasts until somebody ends it. */
const HOURS = [0, 1, 4, 24];

/** Says since when something is paused, by whom and until when. */
export function pauseWords({ by, since_unix_ms: since, until_unix_ms: until }) {
  return texts.pausedSince(texts.pausedBy[by], moment(since), until ? moment(until) : null);
}

export class PauseControls {
  constructor(session) {
    this.session = session;
  }

  /** Returns the controls of an uplink's card; for a viewer there are none. */
  forUplink(name) {
    if (!this.session.operator) return null;
    const options = HOURS.map((hours) => element("option", { value: hours, textContent: texts.pauseFor(hours) }));
    const span = element("select", { "aria-label": texts.pauseTime(name) }, ...options);
    const button = element("button", { type: "button", className: "quiet" });
    const outcome = element("p", { role: "status" });
    const controls = element("div", { className: "row pause" }, span, button, outcome);
    button.addEventListener("click", () => attempt(button, outcome, texts, () => (controls.paused ? this.resume(name) : this.pause(name, Number(span.value)))));
    return controls;
  }

  /** Shows what may be done about an uplink now. */
  update(controls, { name, pause }) {
    if (!controls) return;
    controls.paused = Boolean(pause);
    const [span, button] = controls.children;
    span.hidden = controls.paused;
    setText(button, pause ? texts.resume : texts.pause);
    button.setAttribute("aria-label", pause ? texts.resumeThis(name) : texts.pauseThis(name));
  }

  async pause(name, hours, force = false) {
    const body = { force, ...(hours ? { for_s: hours * 3600 } : {}) };
    try {
      await this.session.act("POST", `/v1/uplinks/${encodeURIComponent(name)}/pause`, body);
    } catch (failure) {
      // Nobody loses the internet by accident.
      if (failure.code !== "last-uplink" || !confirm(texts.pauseLast(name))) throw failure;
      await this.pause(name, hours, true);
    }
  }

  resume(name) {
    return this.session.act("DELETE", `/v1/uplinks/${encodeURIComponent(name)}/pause`);
  }
}

/** The rules of the configuration. */
export class RuleView {
  constructor(session) {
    this.session = session;
    this.section = document.getElementById("rules");
    this.outcome = document.getElementById("rule-outcome");
    const column = (key, kind, cell) => ({ title: texts.ruleColumns[key], kind, cell });
    const columns = [
      column("name", "name", ({ name }) => name),
      column("use", "", ({ use }) => use),
      column("state", "", ({ paused }) => (paused ? pauseWords(paused) : texts.ruleOn)),
    ];
    if (session.operator) columns.push(column("act", "act", (rule, cell) => this.fillButton(rule, cell)));
    this.table = table(texts.rules, columns, ({ name }) => name);
    document.getElementById("rules-table").append(this.table.node);
    this.refresh();
  }

  async refresh() {
    // The next change of a rule asks again.
    const { rules } = await get("/v1/rules").catch(() => ({ rules: null }));
    if (rules) this.show(rules);
  }

  show(rules) {
    this.section.hidden = !rules.length;
    this.table.fill(rules);
  }

  fillButton({ name, named, paused }, cell) {
    if (!named) return texts.unnamed;
    if (!cell.firstChild) cell.append(element("button", { type: "button", className: "link" }));
    const [button] = cell.children;
    setText(button, paused ? texts.resume : texts.pause);
    button.setAttribute("aria-label", paused ? texts.resumeThis(name) : texts.pauseThis(name));
    button.onclick = () => this.toggle(button, name, paused);
    return null;
  }

  async toggle(button, name, paused) {
    const path = `/v1/rules/${encodeURIComponent(name)}/pause`;
    await attempt(button, this.outcome, texts, async () => {
      const { rules } = paused ? await this.session.act("DELETE", path) : await this.session.act("POST", path, {});
      this.show(rules);
    });
  }
}
