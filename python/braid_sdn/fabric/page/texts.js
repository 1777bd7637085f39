// Every text of the fabric's page. Another language is another entry of `languages` here, and in `format.js`.

import { language, list, number } from "./format.js";

const count = (n, one, many) => `${number(n)} ${n === 1 ? one : many}`;
const switches = (n) => count(n, "switch", "switches");
const links = (n) => count(n, "link", "links");
const paths = (n) => count(n, "path", "paths");

const en = {
  brand: "Braid fabric",
  skip: "Skip to the network",
  sections: "Sections",
  network: "Network",
  paths: "Paths",
  hosts: "Hosts and switches",
  hostsShort: "Hosts",
  changes: "Changes",
  problems: "Needs attention",
  logOut: "Log out",
  more: "Show more",
  mend: "Mend:",
  waiting: "Waiting for the controller …",
  lost: "No connection to the controller. What you see is old; the page keeps trying.",
  done: "Done.",
  failed: (why) => `It did not work: ${why}`,

  finding: "The controller is finding the network.",
  noSwitches: "No switch is connected.",
  noSwitchesWhy: "Switches connect by ovs-vsctl set-controller.",
  allWell: "The fabric is all right.",
  attention: "The fabric works, but something needs attention.",
  linkLost: (name, since) => `The link ${name} has been down since ${since}.`,
  linksLost: (n) => `${links(n)} are down.`,
  switchLost: (name, since) => `The switch ${name} has been away since ${since}.`,
  switchesLost: (n) => `${switches(n)} are away.`,
  severalLost: (n, m) => `${switches(n)} and ${links(m)} are away.`,
  lostWhy: (name, why) => `${name}: ${why}.`,
  consists: (s, l) => `${switches(s)} and ${links(l)} work.`,
  pairsServed: (n, all) => `${count(n, "pair of edges takes", "pairs of edges take")} ${paths(all)}.`,
  pairsUnserved: (n) => `${count(n, "pair of edges has", "pairs of edges have")} no paths of ${n === 1 ? "its" : "their"} own.`,

  drawingWords: (s, l, down) => `${switches(s)}, ${links(l)}${down ? `, ${number(down)} down` : ""}; the table below has the same figures.`,
  drawingRoute: (name) => `The coloured lines are the paths from ${name}.`,
  legend: { calm: "load below half", busy: "half and more", full: "nearly full", lost: "down", unobserved: "not observed" },
  linkLabel: (latency, load) => `${latency} · ${load}`,
  linkWords: (from, to, used, all, latency, packet) => `${from} → ${to}: ${used} of ${all}, ${latency}${packet == null ? "" : `, packets of ${number(packet)} bytes`}`,
  hostsHere: (n) => count(n, "host", "hosts"),
  edgeSilent: (name) => `${name} is silent`,

  links: "Links",
  linksCount: (shown, all) => (all > shown ? `The first ${number(shown)} of ${links(all)}: those that are down, then the busiest` : links(all)),
  linkColumns: { link: "Link", ports: "Ports", latency: "Latency", there: "Load there", back: "Load back", packet: "Packet", state: "State" },
  linkStates: {
    works: () => "works",
    unobserved: () => "not observed: its switch lost the controller",
    lost: (since, why) => `down since ${since}: ${why}`,
  },
  load: (part, all) => `${part} of ${all}`,
  bytes: (n) => `${number(n)} bytes`,

  pairLabel: "Pair of edges",
  pairOption: (source, target, n) => `${source} → ${target} (${paths(n)})`,
  pairUnserved: (source, target) => `${source} → ${target} (no paths)`,
  noPairs: "No two edges are in place, so every flow takes one path through the network.",
  orders: {
    single: () => "One path keeps packets in order.",
    plain: (target, why) => `Packets go on at ${target} as they come: ${why}.`,
    resequence: (target, why) => `${target} puts packets in order: ${why}.`,
  },
  pairSentence: (order, free) => `${order} Free for it: ${free}.`,
  unserved: (why) => `It has no paths of its own: ${why}.`,
  pathColumns: { path: "Path", share: "Share", rate: "Rate now", free: "Free", latency: "Latency", probe: "Last probes", why: "State" },
  used: "used",
  leftOut: (why) => `left out: ${why}`,
  pairRate: (source, target, rate) => `From ${source} to ${target}: ${rate}`,
  chartWords: (max) => `Highest total in the picture: ${max}.`,

  askLabel: "Which way does traffic between two hosts or edges take, and why?",
  from: "From",
  to: "To",
  ask: "Explain",
  explained: (source, target) => `From ${source} to ${target}`,

  findLabel: "Find hosts by address, port, switch or tenant",
  hostsCount: (shown, matching) => (matching > shown ? `The first ${number(shown)} of ${count(matching, "host", "hosts")}` : count(matching, "host", "hosts")),
  hostColumns: { addresses: "Addresses", mac: "MAC", port: "Port", tenant: "Tenant", flood: "Flood limit", silent: "Last heard", forgotten: "Forgotten", act: "Action" },
  forgottenIn: (time) => `in ${time}`,
  static: "never: configured",
  never: "never",
  forget: "Forget",
  forgetThis: (mac) => `Forget ${mac}`,
  forgetSure: (mac) => `The controller forgets ${mac}, and learns it again from its next packet. Forget it?`,
  forgotten: (mac, port) => `${mac} at ${port} is forgotten.`,
  noLimit: "none",
  limitUnknown: (wanted) => `not known: ${wanted} is wanted`,
  limitRefused: (has, wanted) => `${has}: the switch has not taken ${wanted}`,
  limitReached: (limit, dropped) => `${limit}, ${count(Math.ceil(dropped), "packet", "packets")} a second dropped`,
  switches: "Switches",
  switchColumns: { name: "Name", id: "Datapath id", address: "Address", ports: "Ports up", rules: "Rules", echo: "Echo", state: "State" },
  switchStates: { connected: () => "connected", drained: () => "connected, drained by an operator", lost: (since, why) => `away since ${since}: ${why}` },

  tenants: "Tenants",
  tenantColumns: { name: "Name", hosts: "Hosts", used: "Tags in use", tags: "Tags", ports: "Ports" },
  tagsUsed: (n, all) => `${number(n)} of ${number(all)}`,
  otherPorts: "all others",

  kinds: {
    "switch-connected": "Switch",
    "switch-disconnected": "Switch away",
    "link-found": "Link found",
    "link-lost": "Link down",
    "host-learned": "Host",
    "host-forgotten": "Host forgotten",
    "paths-used": "Paths",
    "paths-withdrawn": "No paths",
    problem: "Problem",
    "problem-over": "Problem over",
  },
  events: {
    "switch-connected": ({ switch: name, address }) => [name, `connected from ${address}`],
    "switch-disconnected": ({ switch: name }) => [name, "is not connected any more"],
    "link-found": ({ source, target }) => [`${source} → ${target}`, "works"],
    "link-lost": ({ source, target }) => [`${source} → ${target}`, "is down"],
    "host-learned": ({ mac, port }) => [mac, `is at ${port}`],
    "host-forgotten": ({ mac, port }) => [mac, `is not known at ${port} any more`],
    "paths-used": ({ source, target, paths: ways }) => [`${source} → ${target}`, `takes ${list(ways.split(" ").map((way) => way.replaceAll(">", " → ")))}`],
    "paths-withdrawn": ({ source, target }) => [`${source} → ${target}`, "has no paths any more"],
    problem: ({ subject, text }) => [subject, text],
    "problem-over": ({ subject, code }) => [subject, `${code} is over`],
  },
  about: (generation, role) => `Braid fabric controller · tables of edges: ${number(generation)} · logged in as ${role}`,
  roles: { viewer: "viewer", operator: "operator" },
};

const languages = { en };

export const texts = languages[language];
