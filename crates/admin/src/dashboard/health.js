// Health of each server in the last hour, derived from events. Pure.

/** Time span of the strip, in milliseconds. */
export const HOUR = 3_600_000;

/** The end of an event's text about a server, and the state of the server from then on. */
const STATES = [
  [" is up", "up"],
  [" is down", "down"],
  [" is still down", "down"],
  [" is ejected", "ejected"],
  [" is no longer ejected", "up"],
  [" is no longer on the link", "down"],
  [" is on the link again", "up"],
];

/** Texts after the name of a server in an event. */
const ADDRESS = / \([^()]*\)$/;

/**
 * The changes of servers that events tell of: `BACKEND/SERVER` to `[{at, state}]`, the oldest
 * first.
 */
export function changesOf(events) {
  const changes = new Map();
  for (const { at, kind, text } of events) {
    if ((kind !== "health" && kind !== "ejection") || !text.startsWith("server ")) continue;
    const found = parse(text);
    if (!found) continue;
    const of = changes.get(found.server) ?? [];
    of.push({ at: Date.parse(at), state: found.state });
    changes.set(found.server, of);
  }
  return changes;
}

/** A reason may hold any of the phrases, so the first one counts. */
function parse(text) {
  let best = null;
  for (const [phrase, state] of STATES) {
    const end = text.indexOf(phrase);
    if (end > 0 && (!best || end < best.end)) best = { end, state, server: text.slice("server ".length, end) };
  }
  return best && { state: best.state, server: best.server.replace(ADDRESS, "") };
}

/**
 * The last hour of a server as spans, which are parts of one. `known` is the time of the oldest
 * event that is kept, or of the start; before it nothing is known.
 */
export function lastHour(server, changes = [], known, now) {
  const start = now - HOUR;
  const state = server.ejected ? "ejected" : server.up ? "up" : "down";
  const since = Date.parse(server.health.since);
  const points = [...changes];
  // One event line covers simultaneous changes, without names. The status has the details.
  if ((points.at(-1)?.state ?? "none") !== state) points.push({ at: server.ejected ? now : since, state });
  const first = Math.max(start, changes.length > 0 ? known : since);
  const spans = first > start ? [{ from: start, to: first, state: "unknown" }] : [];
  let [from, current] = [first, changes.length > 0 ? before(points[0].state) : state];
  for (const { at, state: next } of points) {
    if (next === current) continue;
    if (at > from) {
      spans.push({ from, to: at, state: current });
      from = at;
    }
    current = next;
  }
  spans.push({ from, to: now, state: current });
  const part = (at) => Math.min(Math.max((at - start) / HOUR, 0), 1);
  return { start, length: HOUR, spans: spans.map(({ from, to, state }) => ({ from: part(from), to: part(to), state })) };
}

/** State of a server before its first known change. */
const before = (state) => (state === "up" ? "down" : "up");
