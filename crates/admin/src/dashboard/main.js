// The dashboard: polls convey every two seconds while the page is visible, and shows the state.

import { ask, hasToken } from "./api.js";
import { showBackends } from "./backends.js";
import { Controls } from "./controls.js";
import { byId, list, make, setAttribute, setText, show } from "./dom.js";
import { Events, showConfig, showOverlays } from "./events.js";
import { age, moment } from "./format.js";
import { showFrontends, showTotals } from "./frontends.js";
import { changesOf } from "./health.js";
import { History } from "./history.js";
import { showLosses, showPackets } from "./packets.js";
import { showRequests } from "./requests.js";

const EVERY = 2_000;
/** Without an answer the pauses double, up to this. */
const LONGEST_PAUSE = 30_000;

const [history, events] = [new History(), new Events()];
const controls = new Controls(() => look());
let [timer, isLooking, lookAgain] = [null, false, false];
/** Since when convey does not answer, and how often it was asked since. */
let gone = null;
/** The process that answered last. */
let process = null;
/** Restarts and upgrades of convey while the page was open. */
let news = [];
let changes = new Map();

async function look() {
  if (isLooking) {
    lookAgain = true;
    return;
  }
  [isLooking, lookAgain] = [true, false];
  clearTimeout(timer);
  try {
    const status = await ask("status");
    const answered = performance.now();
    notice(status);
    const more = await ask(`events?since=${events.next}`);
    if (more.length > 0) {
      events.add(more);
      changes = changesOf(events.all);
    }
    history.add(answered, status);
    if (gone) {
      gone = null;
      controls.learn();
    }
    draw(status);
  } catch (failure) {
    if (failure.status === undefined) throw failure;
    if (failure.status === 401 && hasToken()) controls.learn();
    gone = { since: gone?.since ?? Date.now(), tries: (gone?.tries ?? 0) + 1, why: failure.message };
  } finally {
    isLooking = false;
    const pause = gone ? Math.min(EVERY * 2 ** gone.tries, LONGEST_PAUSE) : EVERY;
    showLink(pause);
    if (lookAgain) look();
    else if (!document.hidden) timer = setTimeout(look, pause);
  }
}

/**
 * Notices that another process answers: its counters begin anew, and after a restart its events,
 * too.
 */
function notice({ started, version }) {
  if (process && process.started !== started) {
    const changed = process.version === version ? "" : ` Version ${version} follows ${process.version}.`;
    news = [...news.slice(-2), { text: `A new process of convey answers since ${moment(Date.now())}, after a restart or an upgrade.${changed}`, version }];
    history.clear();
    events.clear();
    changes = new Map();
  }
  process = { started, version };
}

function draw(status) {
  // Use convey's clock, because the user's may be wrong.
  const now = Date.parse(status.started) + status.uptime_seconds * 1000;
  const overlays = status.overlays ?? [];
  setText(byId("version"), status.version);
  setText(byId("uptime"), `up ${age(status.uptime_seconds * 1000)}`);
  const notReady = status.not_ready ?? [];
  const unservedBy = ([name, { unserved }]) => Object.values(unserved ?? {}).map((why) => `frontend ${name}: ${why}`);
  const unserved = Object.entries(status.frontends ?? {}).flatMap(unservedBy).filter((line) => !notReady.includes(line));
  const notices = [...notReady.map((line) => `Not ready: ${line}`), ...unserved.map((line) => `Not served: ${line}`)];
  document.title = `${notices.length ? "! " : ""}convey ${location.host}`;
  setAttribute(document.body, "data-may-change", controls.mayChange);
  showNotices(notices);
  showTotals(status, history);
  showFrontends(status, history);
  showRequests(status, history);
  const first = events.all[0];
  const known = first?.number > 0 ? Date.parse(first.at) : Math.min(Date.parse(status.started), first ? Date.parse(first.at) : Infinity);
  const byTarget = new Map(overlays.filter(({ state }) => state).map((overlay) => [targetOf(overlay), overlay]));
  showBackends({ status, history, changes, known, now, overlays: byTarget, mayChange: controls.mayChange });
  showLosses(status, history);
  showPackets(status, history);
  showConfig(status, now);
  showOverlays(overlays, now, controls.mayChange);
  events.show(now);
  controls.update(status);
}

const targetOf = ({ backend, server }) => (server === undefined ? backend : `${backend}/${server}`);

function showNotices(notices) {
  const items = [...notices.map((text) => ({ text, isBad: true })), ...news];
  list(byId("states"), items, ({ text }) => text, ({ text, isBad, version }) => {
    const element = make("p", { class: isBad ? "notice bad" : "notice" }, text);
    if (version !== undefined) {
      const again = make("button", { type: "button" }, "Reload the page");
      again.addEventListener("click", () => location.reload());
      element.append(" ", again);
    }
    return element;
  });
}

function showLink(pause) {
  setAttribute(document.body, "class", gone ? "gone" : null);
  setAttribute(byId("link"), "class", gone ? "link lost" : "link live");
  const lost = gone && `${gone.why} since ${moment(gone.since)}; next try in ${Math.round(pause / 1000)} s`;
  setText(byId("link-text"), lost ?? "live");
  show(byId("retry"), Boolean(gone));
}

byId("retry").addEventListener("click", look);
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) look();
});
controls.learn();
look();
