// Events, the configuration, and runtime overrides.

import { byId, list, make, setText, show } from "./dom.js";
import { age, counted, moment } from "./format.js";

/** More events are shown on demand. */
const STEP = 50;
/** As many as convey keeps. */
const CAPACITY = 1_000;
const RELOADS = 20;

/** Events, the oldest first. */
export class Events {
  #all = [];
  #most = STEP;
  #now = 0;

  constructor() {
    byId("event-kind").addEventListener("change", () => this.show(this.#now));
    byId("more-events").addEventListener("click", () => {
      this.#most += STEP;
      this.show(this.#now);
    });
  }

  get all() {
    return this.#all;
  }

  /** Number of the next event to request. */
  get next() {
    return (this.#all.at(-1)?.number ?? -1) + 1;
  }

  /** Adds the next ones. */
  add(events) {
    const next = this.next;
    this.#all.push(...events.filter(({ number }) => number >= next));
    this.#all.splice(0, this.#all.length - CAPACITY);
  }

  /** Another process tells them anew. */
  clear() {
    this.#all = [];
  }

  show(now) {
    this.#now = now;
    const select = byId("event-kind");
    offer(select, new Set(this.#all.map(({ kind }) => kind)));
    const newest = this.#all.filter(({ kind }) => !select.value || kind === select.value).reverse();
    show(byId("no-events"), newest.length === 0);
    list(byId("event-list"), newest.slice(0, this.#most), keyOf, (event) => line(event, now));
    show(byId("more-events"), newest.length > this.#most);
    setText(byId("more-events"), `Show more: ${counted(newest.length - this.#most, "event")} left`);
    const reloads = this.#all.filter(({ kind }) => kind === "reload").slice(-RELOADS).reverse();
    show(byId("no-reloads"), reloads.length === 0);
    list(byId("reload-list"), reloads, keyOf, (event) => line(event, now));
  }
}

/** Another process may count anew. */
const keyOf = ({ number, at }) => `${number} ${at}`;

/** A kind can be chosen once there is one of it. */
function offer(select, kinds) {
  for (const { value } of select.options) kinds.delete(value);
  for (const kind of kinds) select.append(make("option", { value: kind }, kind));
}

function line({ at, kind, level, text }, now) {
  const time = Date.parse(at);
  return make("li", { class: `event ${level}` },
    make("time", { datetime: at, title: at }, moment(time, now)),
    make("span", { class: "kind" }, kind),
    make("span", { class: "level" }, level),
    make("span", { class: "text" }, text));
}

/** Shows the state of the configuration. */
export function showConfig({ config }, now) {
  const since = (time) => age(now - Date.parse(time));
  const failed = config.reload_failures > 0 ? `, ${config.reload_failures} refused` : "";
  const state = `${config.hash}, loaded ${since(config.loaded)} ago. ${counted(config.reloads, "reload")}${failed}.`;
  const refused = ` The last reload was refused ${since(config.last_reload)} ago: the previous configuration stays in force.`;
  setText(byId("config-state"), state + (config.last_reload_successful ? "" : refused));
  list(byId("config-errors"), config.errors, (error) => error, (error) => make("li", {}, error));
}

/** Shows the runtime overrides. */
export function showOverlays(overlays, now, mayChange) {
  show(byId("no-overlays"), overlays.length === 0);
  show(byId("reset-all"), mayChange && overlays.length > 0);
  const items = overlays.map((overlay) => ({ overlay, now, mayChange }));
  list(byId("overlay-list"), items, ({ overlay }) => JSON.stringify(overlay), ({ overlay }) => overlayLine(overlay));
}

function overlayLine({ backend, server, frontend, route, state, weight, weights, maintenance, added, removed, log_level, superseded, absent, since, by }) {
  const name = [backend, server, frontend, route].filter((part) => part !== undefined).join("/") || "log";
  const told = make("span", { class: "since" });
  const reset = make("button", {
    type: "button", class: "change", "data-backend": backend, "data-server": server, "data-frontend": frontend, "data-route": route, "data-reset": true, "aria-label": `Reset ${name}`,
  }, "Reset");
  const shares = weights && `weights ${Object.entries(weights).map(([of, share]) => `${of}=${share}`).join(", ")}`;
  const said = state ?? shares ?? (maintenance ? `maintenance, status ${maintenance.status}` : added ? `added at ${added.addr}` : removed ? "removed" : log_level ? `level ${log_level}` : `weight ${weight}`);
  const note = superseded ? "; the file takes precedence" : absent ? `; this ${route !== undefined ? "route" : frontend !== undefined ? "frontend" : "server"} does not exist now` : "";
  const what = make("span", { class: "badge out" }, said);
  const element = make("li", {}, make("span", { class: "name" }, name), what, told, reset);
  element.update = ({ now, mayChange }) => {
    setText(told, `for ${age(now - Date.parse(since))}, by ${by}${note}`);
    show(reset, mayChange && (backend ?? frontend) !== undefined);
  };
  return element;
}
