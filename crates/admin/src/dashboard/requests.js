// The requests of frontends and their routes (mode http), in the last half minute.

import { byId, cell, list, make, setAttribute, setText, show } from "./dom.js";
import { sparkline } from "./drawing.js";
import { counted, inOrder, latency, percent, perSecond, short } from "./format.js";

/** More rows are shown on demand. */
const STEP = 50;
/** If a frontend has more routes, those with the most 5xx responses and requests come first. */
const MANY = 20;
let most = STEP;

/** Shows each frontend of mode http with its routes. */
export function showRequests(status, history) {
  const all = rowsOf(status);
  show(byId("requests"), all.length > 0);
  list(byId("request-rows"), all.slice(0, most), ({ key }) => key, (item) => row(item, history));
  const more = byId("more-requests");
  show(more, all.length > most);
  setText(more, `Show more: ${counted(all.length - most, "row")} left`);
  more.onclick = () => {
    most += STEP;
    showRequests(status, history);
  };
}

/** Share of the responses of this class; null without responses. */
export function responseShare(recent, code) {
  const all = Object.values(recent?.responses ?? {}).reduce((sum, count) => sum + count, 0);
  return all > 0 ? (recent.responses[code] ?? 0) / all : null;
}

function rowsOf({ frontends }) {
  const ofHttp = Object.entries(frontends).filter(([, { requests }]) => requests).sort(([a], [b]) => inOrder(a, b));
  return ofHttp.flatMap(([name, { requests, routes = [] }]) => {
    const errors = ({ recent }) => recent?.responses["5xx"] ?? 0;
    const sorted = routes.length > MANY
      ? [...routes].sort((a, b) => errors(b.requests) - errors(a.requests) || (b.requests.recent?.total ?? 0) - (a.requests.recent?.total ?? 0))
      : routes;
    // A single route has the numbers of its frontend.
    const below = routes.length > 1 ? sorted : [];
    return [
      { key: name, name, requests },
      ...below.map((route) => ({ key: `${name}\u0000${route.name}`, name: route.name, route, requests: route.requests })),
    ];
  });
}

/** Action of a route. A reload may change it. */
function targetOf({ backend, split = {}, redirect, respond }) {
  const weights = Object.entries(split).map(([name, weight]) => `${name} ${weight}`).join(", ");
  return backend ?? redirect ?? (respond ? `respond ${respond}` : weights || "no backend");
}

function row({ name, route }, history) {
  const about = route && make("small");
  const line = route ? null : sparkline();
  const [rate, client, server, p50, p90, p99, total] = Array.from({ length: 7 }, () => make("span"));
  const element = make("tr", { role: "row", class: route ? "route" : null },
    make("th", { role: "rowheader", scope: "row" }, make("span", { class: "name" }, name), ...[about].filter(Boolean)),
    cell("Requests/s", { class: "n" }, make("span", { class: "with-spark" }, ...[line].filter(Boolean), rate)),
    cell("4xx", { class: "n" }, client),
    cell("5xx", { class: "n" }, server),
    cell("p50", { class: "n" }, p50),
    cell("p90", { class: "n" }, p90),
    cell("p99", { class: "n" }, p99),
    cell("Total", { class: "n" }, total));
  element.update = ({ requests, route }) => {
    const { recent } = requests;
    if (about) setText(about, `→ ${targetOf(route)}`);
    setText(rate, perSecond(recent?.seconds > 0 ? recent.total / recent.seconds : null));
    line?.update(history.rates("frontend", name, "requests"));
    setText(client, percent(responseShare(recent, "4xx")));
    setText(server, percent(responseShare(recent, "5xx")));
    setAttribute(server, "class", responseShare(recent, "5xx") > 0 ? "bad" : null);
    for (const [element, time] of [[p50, recent?.p50], [p90, recent?.p90], [p99, recent?.p99]]) setText(element, latency(time));
    setText(total, short(requests.total));
  };
  return element;
}
