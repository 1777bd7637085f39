// Numbers, rates and times in words, the same on every page. Another language is another entry of `languages`.

const en = { ago: (time) => `${time} ago`, now: "now" };

const languages = { en };

const wanted = navigator.languages.map((tag) => tag.split("-")[0]).find((tag) => tag in languages);
export const language = wanted ?? "en";
export const { ago, now } = languages[language];

/** Stands where nothing is known. */
export const UNKNOWN = "–";

const formats = new Map();

/** Writes a number with so many digits after the point, or with fewer if there are `least`. */
export function number(value, digits = 0, least = digits) {
  const key = `${digits} ${least}`;
  const known = formats.get(key) ?? new Intl.NumberFormat(language, { minimumFractionDigits: least, maximumFractionDigits: digits });
  formats.set(key, known);
  return known.format(value);
}

export function list(names) {
  return new Intl.ListFormat(language, { type: "conjunction" }).format(names);
}

function scaled(value, units, least = 1) {
  const power = value < 1000 ? 0 : Math.min(Math.floor(Math.log10(value) / 3), units.length - 1);
  const figure = value / 1000 ** power;
  return `${number(figure, power && figure < 100 ? 1 : 0, power && figure < 100 ? least : 0)} ${units[power]}`;
}

const RATES = ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"];

/** Rate in bits per second. Below a kilobit it is none: probes alone. */
export function rate(bits) {
  return bits < 1000 ? "0 Mbit/s" : scaled(bits, RATES);
}

/** A round rate, for an axis. */
export function roundRate(bits) {
  return scaled(bits, RATES, 0);
}

export function bytes(count) {
  return scaled(count, ["B", "kB", "MB", "GB", "TB"]);
}

export function millis(value) {
  return value == null ? UNKNOWN : `${number(value, value < 100 ? 1 : 0)} ms`;
}

export function percent(fraction, digits = 0) {
  return fraction == null ? UNKNOWN : `${number(fraction * 100, digits)} %`;
}

/** A share, with a decimal only where it says something: 62.5 % beside 37.5 %. */
export function share(fraction) {
  return `${number(fraction * 100, 1, 0)} %`;
}

export function span(ms) {
  const steps = [[86_400_000, "d"], [3_600_000, "h"], [60_000, "min"], [1000, "s"]];
  const [size, unit] = steps.find(([size]) => ms >= size) ?? steps.at(-1);
  return `${number(Math.floor(ms / size))} ${unit}`;
}

/** Time of day, with the date if it is not today. */
export function moment(unixMs, seconds = false) {
  const at = new Date(unixMs);
  const today = at.toDateString() === new Date().toDateString();
  const day = today ? {} : { day: "numeric", month: "short" };
  return at.toLocaleString(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(seconds ? { second: "2-digit" } : {}), ...day });
}

/** Fills the texts that index.html leaves empty. */
export function fillTexts(root, texts) {
  document.documentElement.lang = language;
  for (const node of root.querySelectorAll("[data-text]")) node.textContent = texts[node.dataset.text];
  for (const node of root.querySelectorAll("[data-label]")) node.setAttribute("aria-label", texts[node.dataset.label]);
}
