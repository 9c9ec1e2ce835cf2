// A server of a backend.

import { cell, make, setAttribute, setText, show } from "./dom.js";
import { share, strip } from "./drawing.js";
import { age, counted, latency, percent, perSecond, short } from "./format.js";
import { lastHour } from "./health.js";
import { responseShare } from "./requests.js";

/** State of a server in one word. An administrative state takes precedence. */
export function wordOf(server) {
  if (server.state !== "ready") return server.state;
  if (!server.up) return "down";
  if (server.ejected) return "ejected";
  if (server.eligible) return "up";
  return server.weight === 0 ? "weight 0" : server.backup ? "backup" : "unused";
}

/** Title of the column with the rate: a server of mode http counts requests. */
export const rateTitle = ({ requests }) => (requests ? "Requests/s" : "Connections/s");

/** Its row. */
export function serverRow({ name, backendName, backend }) {
  const [address, why, times, errors] = [make("small", { class: "address" }), make("small"), make("small"), make("small")];
  const [badge, since, rate, open, failed, weight] = ["span", "span", "span", "span", "span", "small"].map((tag) => make(tag));
  const [history, part] = [strip(), share()];
  const steer = make("button", {
    type: "button", class: "change", "data-backend": backendName, "data-server": name, "aria-label": `Steer server ${backendName}/${name}`,
  }, "Steer");
  const element = make("tr", { role: "row" },
    make("th", { role: "rowheader", scope: "row" }, make("span", { class: "name" }, name), address),
    cell("State", { class: "state" }, badge, " ", since, why),
    cell("Last hour", { class: "hour" }, history),
    cell("Share", { class: "share-cell" }, part, weight),
    cell(rateTitle(backend), { class: "n" }, rate, times),
    cell("Open", { class: "n" }, open),
    cell("Failed", { class: "n" }, failed, errors),
    cell("", { class: "n steer-cell" }, steer));
  element.update = ({ server, word, backend, view }) => {
    setText(address, server.addr);
    setText(badge, word);
    setAttribute(badge, "class", `badge ${classOf(word)}`);
    const overlay = view.overlays.get(`${backendName}/${name}`) ?? view.overlays.get(backendName);
    setText(since, sinceOf(server, overlay, view.now));
    setText(why, reasonOf(server, overlay));
    history.update(lastHour(server, view.changes.get(`${backendName}/${name}`), view.known, view.now));
    part.update(shareOf(backendName, name, view.history));
    setText(weight, weightOf(server));
    setText(rate, perSecond(view.history.rate("server", backendName, name)));
    setText(open, short(server.current_connections) + (server.max_connections === null ? "" : ` of ${short(server.max_connections)}`));
    setText(failed, failures(server));
    const recent = server.requests?.recent;
    setText(times, recent?.total > 0 ? `p50 ${latency(recent.p50)}, p99 ${latency(recent.p99)}` : "");
    const bad = responseShare(recent, "5xx");
    setText(errors, bad > 0 ? `${percent(bad)} 5xx now` : "");
    setAttribute(failed, "title", server.handshakes ? "handshakes that clients did not complete" : null);
    show(steer, view.mayChange);
  };
  return element;
}

const classOf = (word) => (word === "up" || word === "down" || word === "ejected" ? word : "out");

function sinceOf(server, overlay, now) {
  const since = server.state !== "ready" && overlay?.state ? overlay.since : server.health.since;
  return `for ${age(now - Date.parse(since))}`;
}

/** Why it is not simply up. */
function reasonOf(server, overlay) {
  const health = server.up ? "" : `down: ${server.health.reason}`;
  if (server.state !== "ready") {
    const left = counted(server.current_connections, "connection");
    return [overlay?.state && `by ${overlay.by}`, `${left} left`, health].filter(Boolean).join(", ");
  }
  if (!server.up) return server.health.reason;
  if (server.ejected) return `${server.ejected.reason}; back in ${age(server.ejected.remaining_seconds * 1000)}`;
  if (server.handshakes?.stalled) return "answers no client: check its VIP, NAT, gateway and firewall";
  return "";
}

/** Its part of the connections of the last minute; null: there were none. */
function shareOf(backend, server, history) {
  const all = history.lately("backend", backend);
  return all > 0 ? Math.min(history.lately("server", backend, server) / all, 1) : null;
}

/** Connects that failed, and responses of 5xx; in packet modes handshakes that came to nothing. */
function failures({ connect_failures, handshakes, requests }) {
  const errors = requests?.responses?.["5xx"] ?? 0;
  if (!handshakes) return errors > 0 ? `${short(connect_failures)}, ${short(errors)} 5xx` : short(connect_failures);
  return `${short(handshakes.started - handshakes.completed)} of ${short(handshakes.started)}`;
}

function weightOf({ weight, effective_weight }) {
  const now = Math.round(effective_weight * 10) / 10;
  return now === weight ? `weight ${weight}` : `weight ${now} of ${weight}`;
}
