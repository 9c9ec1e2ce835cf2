// The totals and the frontends.

import { byId, cell, list, make, setAttribute, setText, show } from "./dom.js";
import { sparkline } from "./drawing.js";
import { bits, counted, inOrder, perSecond, short } from "./format.js";
import { ENDED, FAILED, losses } from "./history.js";

/** More frontends are shown on demand. */
const STEP = 50;
let most = STEP;

/** Shows the totals of all frontends. */
export function showTotals(status, history) {
  const servers = Object.values(status.backends).flatMap(({ servers }) => Object.values(servers));
  const waits = [...Object.values(status.frontends), ...Object.values(status.backends)];
  const waiting = waits.reduce((sum, { waiting_connections }) => sum + waiting_connections, 0);
  const up = servers.filter(({ up }) => up).length;
  const all = losses(status);
  const ended = all.filter(({ kind }) => kind === ENDED);
  const dropped = all.filter(({ kind }) => kind !== ENDED && kind !== FAILED);
  const fast = (some) => some.reduce((sum, { kind, reason }) => sum + (history.rate("loss", kind, reason) ?? 0), 0);
  const ofHttp = Object.entries(status.frontends).filter(([, { requests }]) => requests).map(([name]) => name);
  const sum = (field) => ofHttp.reduce((sum, name) => sum + (history.rate("frontend", name, field) ?? 0), 0);
  const requests = ofHttp.length === 0 ? [] : [
    ["requests/s", perSecond(sum("requests"))],
    ["5xx/s", perSecond(sum("5xx")), sum("5xx") > 0],
  ];
  list(byId("totals"), [
    ["connections/s", perSecond(history.rate("total_connections"))],
    ...requests,
    ["open", short(status.current_connections)],
    ["in", bits(history.rate("total_bytes_rx"))],
    ["out", bits(history.rate("total_bytes_tx"))],
    ["waiting", short(waiting)],
    ["drops/s", perSecond(fast(dropped)), fast(dropped) > 0],
    ["ended early/s", perSecond(fast(ended))],
    ["servers up", `${up} of ${servers.length}`, up < servers.length],
  ], ([name]) => name, ([name]) => {
    const value = make("dd");
    const tile = make("dl", { class: "tile" }, make("dt", {}, name), value);
    tile.update = ([, text, isBad]) => {
      setText(value, text);
      setAttribute(tile, "class", isBad ? "tile trouble" : "tile");
    };
    return tile;
  });
}

/** Shows each frontend. */
export function showFrontends(status, history) {
  const all = Object.entries(status.frontends).sort(([a], [b]) => inOrder(a, b));
  show(byId("no-frontends"), all.length === 0);
  show(byId("frontend-rows").parentNode, all.length > 0);
  list(byId("frontend-rows"), all.slice(0, most), ([name]) => name, ([name]) => row(name, history));
  const more = byId("more-frontends");
  show(more, all.length > most);
  setText(more, `Show more: ${counted(all.length - most, "frontend")} left`);
  more.onclick = () => {
    most += STEP;
    showFrontends(status, history);
  };
}

function row(name, history) {
  const about = make("small");
  const rate = make("span");
  const line = sparkline();
  const [listens, ready, open, received, sent] = [make("span"), make("span"), make("span"), make("span"), make("span")];
  const element = make("tr", { role: "row" },
    make("th", { role: "rowheader", scope: "row" }, make("span", { class: "name" }, name), about),
    cell("Listens", { class: "addresses" }, listens),
    cell("Ready", { class: "state" }, ready),
    cell("Connections/s", { class: "n" }, make("span", { class: "with-spark" }, line, rate)),
    cell("Open", { class: "n" }, open),
    cell("In", { class: "n" }, received),
    cell("Out", { class: "n" }, sent));
  element.update = ([, frontend]) => {
    const named = [frontend.backend, ...(frontend.routes ?? []).flatMap((route) => [route.backend, ...Object.keys(route.split ?? {})])];
    const backends = [...new Set(named.filter(Boolean))].join(", ") || "no backend";
    const requests = frontend.requests
      ? ` · ${perSecond(history.rate("frontend", name, "requests"))} requests/s, ${perSecond(history.rate("frontend", name, "5xx"))} 5xx/s`
      : "";
    setText(about, `${frontend.mode} ${frontend.protocol} → ${backends}${requests}`);
    setText(listens, addresses(frontend.listen_addr));
    setAttribute(listens, "title", frontend.listen_addr.join(" "));
    const unserved = Object.values(frontend.unserved ?? {})[0];
    setText(ready, frontend.not_ready ?? unserved ?? "ready");
    setAttribute(ready, "class", frontend.not_ready ?? unserved ? "badge down" : "badge up");
    setText(rate, perSecond(history.rate("frontend", name, "total_connections")));
    line.update(history.rates("frontend", name, "total_connections"));
    setText(open, opened(frontend));
    setText(received, bits(history.rate("frontend", name, "bytes_rx")));
    setText(sent, bits(history.rate("frontend", name, "bytes_tx")));
  };
  return element;
}

/** The first ones, and how many more there are. */
function addresses(all) {
  const first = all.slice(0, 3).join(" ");
  return all.length > 3 ? `${first} and ${all.length - 3} more` : first;
}

function opened({ current_connections, max_connections, waiting_connections }) {
  const limit = max_connections === null ? "" : ` of ${short(max_connections)}`;
  return short(current_connections) + limit + (waiting_connections > 0 ? `, ${short(waiting_connections)} wait` : "");
}
