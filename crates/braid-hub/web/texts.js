// Every text of the hub's page. Another language is another entry of `languages` here, and in `format.js`.

import { language, list, number } from "./format.js";

const clients = (n) => `${number(n)} ${n === 1 ? "client" : "clients"}`;

const en = {
  brand: "Braid hub",
  skip: "Skip to the clients",
  sections: "Sections",
  clients: "Clients",
  traffic: "Traffic",
  invite: "Invite a client",
  hub: "This hub",
  problems: "Needs attention",
  logOut: "Log out",
  mend: "Mend:",
  waiting: "Waiting for the hub …",
  lost: "No connection to the hub. What you see is old; the page keeps trying.",
  done: "Done.",
  failed: (why) => `It did not work: ${why}`,

  noClients: "No client has joined yet.",
  connected: (n, all) => (n === all ? `${n === 1 ? "The only client is" : `All ${number(n)} clients are`} connected.` : `${number(n)} of ${clients(all)} ${n === 1 ? "is" : "are"} connected.`),
  attention: "The hub works, but something needs attention.",
  away: (names) => `Not connected: ${list(names)}.`,
  awayMany: (n) => `${clients(n)} not connected.`,
  came: (names) => `${list(names)} connected`,
  left: (names) => `${list(names)} no longer connected`,

  findLabel: "Find clients by name, address or state",
  clientsCount: (shown, matching) => (matching > shown ? `The first ${number(shown)} of ${clients(matching)}` : clients(matching)),
  columns: { name: "Name", state: "State", addresses: "Addresses", links: "Links", down: "To it", up: "From it", total: "Total", quota: "Quota", act: "Action" },
  states: {
    connected: () => "connected",
    never: () => "joined, not seen since the start",
    away: (since) => `away since ${since}`,
    invited: (until) => `invited until ${until}`,
    expired: () => "its token has expired",
    revoked: () => "revoked",
  },
  link: (rtt, part) => `${rtt}, ${part}`,
  spoofed: (n) => `${number(n)} packets with foreign sources dropped`,
  misused: (n) => `its token was tried by other machines ${number(n)} times`,
  capped: (n) => `${number(n)} packets beyond its rate dropped`,
  quota: (used, all) => `${used} of ${all}`,
  revoke: "Revoke",
  revokeThis: (name) => `Revoke ${name}`,
  revokeSure: (name) => `${name} loses its access at once, and needs a new invitation to come back. Revoke it?`,
  revoked: (name) => `${name} is revoked.`,

  toClients: (rate) => `To all clients: ${rate}`,
  fromClients: (rate) => `From all clients: ${rate}`,

  nameLabel: "Name of the client: letters, digits, - _ .",
  validLabel: "Time for which the token may be used",
  hours: (n) => `valid for ${number(n)} ${n === 1 ? "hour" : "hours"}`,
  days: (n) => `valid for ${number(n)} ${n === 1 ? "day" : "days"}`,
  inviteNow: "Invite",
  invitation: (name, until) => `Invitation of ${name}, good once, until ${until}`,
  once: "The hub does not keep the token: it is shown now and never again.",
  onMachine: "On the client's machine:",
  byPicture: "Or with a photograph of this code:",
  qrCode: (name) => `QR code of the token of ${name}`,
  copy: "Copy the token",
  copied: "Copied.",

  facts: { key: "Public key", previous: "Key before", listen: "Listens on", networks: "Inner networks", forward: "Other networks", clients: "Clients", unrouted: "Packets for nobody" },
  forward: { nat: "with the hub's address", routed: "with the client's address", off: "left to the machine" },
  counts: ({ joined, invited, revoked }) => `${number(joined)} joined, ${number(invited)} invited, ${number(revoked)} revoked`,
  handshakes: "Handshakes since the start",
  refusals: "Refused datagrams since the start",
  none: "none",
  about: (version, role) => `Braid ${version} · logged in as ${role}`,
  roles: { viewer: "viewer", operator: "operator" },
};

const languages = { en };

export const texts = languages[language];
