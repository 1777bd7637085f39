// The bond: its state, its links, what each carries and why.

import { element, setText, table } from "./dom.js";
import { millis, percent, rate, share } from "./format.js";
import { texts } from "./texts.js";

export class BondView {
  constructor() {
    this.section = document.getElementById("bond");
    this.anchor = document.getElementById("bond-anchor");
    this.sentence = document.getElementById("bond-sentence");
    this.order = document.getElementById("bond-order");
    const titles = texts.linkColumns;
    const column = (key, kind, cell) => ({ title: titles[key], kind, cell });
    this.links = table(
      texts.bond,
      [
        column("link", "name", ({ uplink, cleartext }) => (cleartext ? `${uplink} (${texts.clear})` : uplink)),
        column("state", "", ({ state }) => texts.linkStates[state]),
        column("share", "figure", shareBar),
        column("rate", "figure", (link) => rate(link.rate_bit_s)),
        column("rtt", "figure", (link) => millis(link.rtt_ms)),
        column("skew", "figure", (link) => millis(link.owd_skew_ms)),
        column("queue", "figure", (link) => millis(link.queue_ms)),
        column("loss", "figure", (link) => percent(link.loss, 1)),
        column("why", "why", ({ why }) => why),
      ],
      ({ id, uplink }) => `${id} ${uplink}`,
    );
    document.getElementById("bond-links").append(this.links.node);
  }

  show(bond) {
    this.section.hidden = this.anchor.hidden = !bond;
    if (!bond) return;
    setText(this.sentence, texts.bondSentence(texts.bondStates[bond.state], bond.why, bond.hub.join(", ")));
    this.links.node.hidden = !bond.links.length;
    this.links.fill(bond.links);
    const { packets } = bond;
    setText(this.order, packets ? texts.bondOrder(millis(packets.reorder_delay_p50_ms), millis(packets.reorder_delay_p99_ms)) : "");
  }
}

function shareBar(link, cell) {
  if (!cell.firstChild) cell.append(element("span", { className: "bar", "aria-hidden": "true" }, element("span")), element("span"));
  cell.firstChild.firstChild.style.inlineSize = `${Math.round(link.share * 100)}%`;
  setText(cell.lastChild, share(link.share));
}
