// Elements by code. All text goes in as text: a name that looks like HTML is shown, never run.

const SVG = "http://www.w3.org/2000/svg";

/** Makes an element. `properties` are its properties, or attributes if they have a dash or it is SVG. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

/** Makes an SVG element. */
export function shape(tag, attributes = {}) {
  const made = document.createElementNS(SVG, tag);
  setAttributes(made, attributes);
  return made;
}

export function setAttributes(node, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (node.getAttribute(key) !== String(value)) node.setAttribute(key, value);
  }
}

/** Sets an element's text if it differs, so that nothing is laid out in vain. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Makes the children of a node those of a list: kept by key, in order. `update` gets child and item. */
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => [String(keyOf(item)), item]);
  const stay = new Set(wanted.map(([key]) => key));
  // Those that go make way first: the others would all be moved past them.
  for (const [key, child] of old) if (!stay.has(key)) child.remove();
  let place = parent.firstElementChild;
  for (const [key, item] of wanted) {
    let child = old.get(key);
    if (!child) {
      child = make(item);
      child.dataset.key = key;
    }
    old.delete(key);
    // One that has come down the list is moved once, instead of all that are above it now.
    if (child !== place && child === place?.nextElementSibling) {
      parent.append(place);
      place = child;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
}

/** Makes a table that is a list of cards on a narrow screen. Returns it with a function that fills it. `columns` have a
 *  title, a class, and `cell`, which fills a cell for an item. */
export function table(caption, columns, keyOf) {
  // The roles are said aloud: a table that is laid out as cards would lose them.
  const titles = columns.map(({ title, kind }) => element("th", { scope: "col", role: "columnheader", className: kind ?? "", textContent: title }));
  const head = element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...titles));
  const body = element("tbody", { role: "rowgroup" });
  const whole = element("table", { role: "table" }, element("caption", { className: "unseen", textContent: caption }), head, body);
  const make = () => {
    const cells = columns.map(({ title, kind }) => element("td", { role: "cell", className: kind ?? "", "data-title": title }));
    return element("tr", { role: "row" }, ...cells);
  };
  const update = (row, item) => {
    columns.forEach(({ cell }, i) => {
      const filled = cell(item, row.children[i]);
      if (typeof filled === "string") setText(row.children[i], filled);
    });
  };
  return { node: whole, fill: (items) => keyed(body, items, keyOf, make, update) };
}

/** Lists health problems, each with what mends it; without any the section is hidden. */
export function showProblems(health, mend) {
  const section = document.getElementById("problems");
  section.hidden = !health.length;
  const make = ({ text, fix }) => element("li", {}, element("p", { textContent: text }), fix ? element("p", { className: "soft" }, element("strong", { textContent: mend }), ` ${fix}`) : null);
  keyed(section.querySelector("ul"), health, ({ code, text }) => `${code} ${text}`, make, () => {});
}

/** Shows the sentence on top, its tone, and the reasons below it. */
export function showVerdict({ state, sentence, reasons }) {
  document.getElementById("verdict").dataset.state = state;
  setText(document.getElementById("sentence"), sentence);
  document.title = `${sentence} - Braid`;
  keyed(document.getElementById("reasons"), reasons, (reason) => reason, (reason) => element("p", { textContent: reason }), () => {});
}
