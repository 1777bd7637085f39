// Every text of the page, and how numbers and times are written. Another language is another entry of `languages`.

const en = {
  skip: "Skip to the uplinks",
  sections: "Sections",
  uplinks: "Uplinks",
  traffic: "Traffic",
  flows: "Where flows go",
  flowsShort: "Flows",
  bond: "Bond",
  events: "Events",
  problems: "Needs attention",
  actions: "Actions",
  logOut: "Log out",
  more: "Show more",
  failback: "Return flows to preferred uplinks",
  reload: "Read the configuration again",
  done: "Done.",
  waiting: "Waiting for the gateway …",
  lost: "No connection to the gateway. What you see is old; the page keeps trying.",

  allWell: "The internet is all right.",
  noInternet: "The internet is down.",
  attention: "The internet works, but something needs attention.",
  oneWorks: (name) => `${name} works.`,
  allWork: (names) => `${list(names)} work.`,
  carriedBy: (names) => `New flows take ${list(names)}.`,
  carriedByNone: "No uplink takes new flows.",
  waits: (names) => `${list(names)} ${names.length > 1 ? "stand" : "stands"} by.`,
  several: (n) => `${n} uplinks do not work as they should.`,
  wrong: {
    down: (name, since) => (since ? `${name} has been down since ${since}.` : `${name} is down.`),
    dead: (name, since) => (since ? `${name} has not answered since ${since}.` : `${name} does not answer.`),
    portal: (name, since) => (since ? `${name} has been waiting for a login since ${since}.` : `${name} waits for a login.`),
    degraded: (name, since) => (since ? `${name} has been working badly since ${since}.` : `${name} works badly.`),
  },
  states: { up: "Up", degraded: "Works badly", standby: "Stands by", portal: "Login needed", dead: "No answer", down: "Down" },

  download: "Download",
  upload: "Upload",
  since: (time) => `since ${time}`,
  evidence: "Evidence",
  capacity: { saturated: (rate, age) => `of ${rate}, measured ${age} ago`, at_least: (rate, age) => `has carried ${rate}, ${age} ago`, transfer: (rate, age) => `of ${rate}, by a transfer ${age} ago` },
  capacityUnknown: "capacity not known yet",
  roundTrip: "Round trip",
  loss: "Loss",
  share: "New flows",
  quota: "Quota",
  quotaUsed: (used, all, percent) => `${used} of ${all} used (${percent})`,
  details: "Details",
  device: "Device",
  mtu: "Largest packet",
  tier: "Tier",
  weight: "Weight",
  sent: "Sent",
  received: "Received",
  via: (address, gateway) => (gateway ? `${address} via ${gateway}` : address),
  unknown: "–",
  chart: (name, down) => `Download by ${name}; ${down} now`,
  chartWords: (max) => `Highest total in the picture: ${max}.`,
  ago: (time) => `${time} ago`,
  nowLabel: "now",
  time: "Time in the charts",
  lastMinutes: "Last minutes",
  lastDay: "Last day",

  askLabel: "Where would a new connection go, and why?",
  protocol: "Protocol",
  ask: "Explain",
  findLabel: "Find flows by address, uplink or reason",
  flowsCount: (shown, matching) => (matching > shown ? `The ${number(shown)} largest of ${number(matching)} flows` : `${number(matching)} ${matching === 1 ? "flow" : "flows"}`),
  noFlows: "No flow matches.",
  flowColumns: { remote: "To", inner: "From", protocol: "Protocol", uplink: "Uplink", rate: "Rate", total: "Total", age: "Age", why: "Why" },
  anyRemote: "anywhere",
  thisMachine: (port) => (port ? `this machine, port ${port}` : "this machine"),
  explainThis: (remote) => `Explain ${remote}`,
  outcome: {
    uplink: (uplink) => `It takes ${uplink}.`,
    shared: (_, names) => `It takes the next of ${list(names)} in turn.`,
    raced: (_, names) => `${list(names)} race for it: it takes the one whose answer comes first.`,
    untouched: () => "Braid leaves it alone: it follows this machine's own routes.",
    blocked: () => "A rule blocks it.",
    refused: () => "It is refused.",
    "no-uplink": () => "It is dropped: no uplink can take it.",
  },
  stages: {
    route: "Route",
    client: "Client",
    rule: "Rules",
    protocol: "Protocol",
    policy: "Policy",
    sticky: "Same site",
    race: "Race",
    slot: "Turn",
    uplink: "Uplink",
  },
  shares: (parts) => list(parts.map(([name, part]) => `${name} ${part}`)),
  suchFlows: (n) => (n === 1 ? "One such flow exists now:" : `${number(n)} such flows exist now:`),
  flowNow: (flow) => `${flow.inner} takes ${flow.uplink}: ${flow.why}`,
  notUnderstood: "Write a name or an address, with a port or without: example.org:443",

  bondStates: { none: "This machine has joined no hub", connecting: "The hub has not answered yet", up: "The bond works", lost: "The hub is out of reach", refused: "The hub refuses this machine", stopped: "The tunnel does not run" },
  bondSentence: (state, why, hub) => `${state}: ${why}. Hub: ${hub}.`,
  linkStates: { trying: "trying", active: "active", returning: "returning", suspect: "silent", quarantined: "set aside", failed: "failed" },
  linkColumns: { link: "Link", state: "State", share: "Share", rate: "Rate", rtt: "Round trip", skew: "Later than the first", queue: "Queue", loss: "Loss", why: "Why" },
  bondOrder: (p50, p99) => `Packets wait ${p50} to be put in order (median), 99 of 100 at most ${p99}.`,
  clear: "not encrypted",

  kinds: {
    started: "Start",
    ended: "End",
    "uplink-taken": "New uplink",
    "uplink-back": "Uplink back",
    "uplink-gone": "Uplink down",
    "uplink-renamed": "Uplink renamed",
    "uplink-changed": "Uplink changed",
    "no-room": "No room",
    verdict: "Uplink state",
    evacuated: "Flows",
    failback: "Flows returned",
    "server-no-migration": "Server",
    "client-limited": "Client limited",
    "client-free": "Client free",
    reloaded: "Configuration",
    "reload-refused": "Configuration",
    "run-began": "Program",
    "run-ended": "Program",
    "bond-joined": "Hub",
    bond: "Bond",
    "bond-link": "Link",
    problem: "Problem",
  },
  mend: "Mend:",
  noEvents: "Nothing has happened yet.",
  about: (version, policy, role) => `Braid ${version} · policy ${policy} · logged in as ${role}`,
  roles: { viewer: "viewer", operator: "operator" },
  failed: (why) => `It did not work: ${why}`,
};

const languages = { en };

const wanted = navigator.languages.map((tag) => tag.split("-")[0]).find((tag) => tag in languages);
export const language = wanted ?? "en";
export const texts = languages[language];

const formats = new Map();

/** Writes a number with so many digits after the point, or with fewer if there are `least`. */
function number(value, digits = 0, least = digits) {
  const key = `${digits} ${least}`;
  const known = formats.get(key) ?? new Intl.NumberFormat(language, { minimumFractionDigits: least, maximumFractionDigits: digits });
  formats.set(key, known);
  return known.format(value);
}

function list(names) {
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
  return value == null ? texts.unknown : `${number(value, value < 100 ? 1 : 0)} ms`;
}

export function percent(fraction, digits = 0) {
  return fraction == null ? texts.unknown : `${number(fraction * 100, digits)} %`;
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
export function fillTexts(root) {
  document.documentElement.lang = language;
  for (const node of root.querySelectorAll("[data-text]")) node.textContent = texts[node.dataset.text];
  for (const node of root.querySelectorAll("[data-label]")) node.setAttribute("aria-label", texts[node.dataset.label]);
}
