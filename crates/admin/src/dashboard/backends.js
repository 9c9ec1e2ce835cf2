// The backends and their servers.

import { byId, list, make, setAttribute, setText, show } from "./dom.js";
import { counted, inOrder, latency, perSecond, short } from "./format.js";
import { rateTitle, serverRow, wordOf } from "./server.js";

/** More backends, and servers of a backend, are shown on demand. */
const STEP = 50;
/** Beyond this many backends only those in trouble are open at first. */
const MANY = 20;

let most = STEP;
let latest = null;
byId("filter").addEventListener("input", () => latest && showBackends(latest));

/**
 * Shows each backend. `view` has the status, the history, the changes of health, and whether things
 * may be changed.
 */
export function showBackends(view) {
  latest = view;
  const filter = byId("filter").value.trim().toLowerCase();
  const all = Object.entries(view.status.backends).sort(([a], [b]) => inOrder(a, b));
  const found = all.map(([name, backend]) => ({ name, backend, view, filter, servers: matching(name, backend, filter) }))
    .filter(({ servers }) => !filter || servers.length > 0);
  show(byId("no-backends"), found.length === 0);
  setText(byId("no-backends"), all.length === 0 ? "There is no backend." : "No server matches the filter.");
  const isOpen = (item) => Boolean(filter) || all.length <= MANY || isTroubled(item.backend);
  list(byId("backend-list"), found.slice(0, most), ({ name }) => name, (item) => panel(item, isOpen(item)));
  const more = byId("more-backends");
  show(more, found.length > most);
  setText(more, `Show more: ${counted(found.length - most, "backend")} left`);
  more.onclick = () => {
    most += STEP;
    showBackends(latest);
  };
}

const isTroubled = ({ servers }) => Object.values(servers).some((server) => !server.up || server.ejected);

/** Servers that the filter lets through; in trouble first if there are more than fit. */
function matching(backend, { servers }, filter) {
  const all = Object.entries(servers).map(([name, server]) => ({ name, server, word: wordOf(server) }));
  const text = ({ name, server, word }) => `${backend}/${name} ${server.addr} ${word}`.toLowerCase();
  const found = filter ? all.filter((item) => text(item).includes(filter)) : all;
  const rank = ({ word }) => (found.length > STEP && (word === "up" || word === "backup") ? 1 : 0);
  return found.sort((a, b) => rank(a) - rank(b) || inOrder(a.name, b.name));
}

function panel({ name, backend }, isOpen) {
  let shown = STEP;
  let current = null;
  const [algorithm, health, numbers] = ["facts", "facts", "facts"].map((kind) => make("span", { class: kind }));
  const steer = make("button", { type: "button", class: "change", "data-backend": name, "aria-label": `Steer backend ${name}` }, "Steer");
  const rows = make("tbody", { role: "rowgroup" });
  const more = make("button", { type: "button" });
  const table = make("table", { role: "table", "aria-label": `Servers of ${name}`, class: "servers" }, head(rateTitle(backend)), rows);
  const element = make("details", { class: "backend", open: isOpen },
    make("summary", {}, make("span", { class: "name" }, name), algorithm, health, numbers), steer, table, more);
  const fill = () => {
    if (!element.open || !current) return;
    const { backend, view, servers } = current;
    const item = (server) => ({ ...server, backendName: name, backend, view });
    list(rows, servers.slice(0, shown).map(item), (server) => server.name, serverRow);
    show(more, servers.length > shown);
    setText(more, `Show more: ${counted(servers.length - shown, "server")} left`);
  };
  more.addEventListener("click", () => { shown += STEP; fill(); });
  element.addEventListener("toggle", fill);
  element.update = (item) => {
    if (item.filter && item.filter !== current?.filter) element.open = true;
    current = item;
    const { backend, view } = item;
    const total = Object.keys(backend.servers).length;
    // One with files has no servers.
    setText(algorithm, backend.files ? "files" : backend.algorithm);
    setText(health, backend.files ?? `${backend.servers_up} of ${total} up`);
    setAttribute(health, "class", backend.servers_up < total ? "facts trouble" : "facts");
    setText(numbers, factsOf(name, backend, view.history));
    show(steer, view.mayChange);
    fill();
  };
  return element;
}

function head(rate) {
  const titles = ["Server", "State", "Last hour", "Share", rate, "Open", "Failed", ""];
  const header = (title, at) => make("th", { role: "columnheader", class: at >= 4 && title ? "n" : null },
    title || make("span", { class: "unseen" }, "Steer"));
  return make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...titles.map(header)));
}

function factsOf(name, backend, history) {
  const facts = backend.requests
    ? [`${perSecond(history.rate("backend", name, "requests"))} requests/s`, `${perSecond(history.rate("backend", name, "5xx"))} 5xx/s`]
    : [`${perSecond(history.rate("backend", name))}/s`];
  facts.push(`${short(backend.current_connections)} open`);
  if (backend.waiting_connections > 0) facts.push(`${short(backend.waiting_connections)} wait`);
  if (backend.requests) {
    const [p50, p99] = [0.5, 0.99].map((share) => history.quantile("response", name, share));
    if (p50 !== null) facts.push(`response p50 ${latency(p50)}, p99 ${latency(p99)}`);
  }
  if (backend.connect_seconds) {
    const [p50, p99] = [0.5, 0.99].map((share) => history.quantile("connect", name, share));
    if (p50 !== null) facts.push(`connect p50 ${latency(p50)}, p99 ${latency(p99)}`);
    // Connections of mode http serve many requests.
    else if (!backend.requests) facts.push("no connect in the last minute");
  }
  return facts.join(" · ");
}
