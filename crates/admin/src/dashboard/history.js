// Counters of the last two minutes, and values derived from them: rates, shares, latencies. Pure.

/** How many samples are kept: two minutes of them. */
const SAMPLES = 61;
/** Time span of shares and latencies, in milliseconds. */
const LATELY = 60_000;

const key = (...parts) => parts.join("\u0000");

/** Samples of all counters, the oldest first. */
export class History {
  #samples = [];

  /** Forgets everything: the counters have begun anew. */
  clear() {
    this.#samples = [];
  }

  /** Adds the counters of a status. `at` is in milliseconds. */
  add(at, status) {
    this.#samples.push({ at, values: countersOf(status) });
    if (this.#samples.length > SAMPLES) this.#samples.shift();
  }

  /** How fast a counter grows now, a second; null if that is not known yet. */
  rate(...of) {
    return this.#between(this.#samples.length - 2, this.#samples.length - 1, key(...of));
  }

  /** The rates of the last two minutes, for a drawing. */
  rates(...of) {
    const name = key(...of);
    return this.#samples.slice(1).map((_, at) => this.#between(at, at + 1, name) ?? 0);
  }

  /** By how much a counter has grown in the last minute, or since the first sample. */
  lately(...of) {
    const [first, last] = this.#ends();
    const name = key(...of);
    return last ? growth(first.values.get(name), last.values.get(name)) : 0;
  }

  /**
   * The time that half, or 99 of 100, of a backend's connects ("connect") or responses ("response")
   * did not exceed in the last minute; null: there were none.
   */
  quantile(kind, backend, share) {
    const [first, last] = this.#ends();
    const name = key(kind, backend);
    const [before, now] = [first?.values.get(name), last?.values.get(name)];
    if (!before || !now) return null;
    const bounds = Object.keys(now.buckets).map(Number).sort((a, b) => a - b);
    const counts = bounds.map((bound) => (now.buckets[bound] ?? 0) - (before.buckets[bound] ?? 0));
    return quantile(bounds, counts, now.count - before.count, share);
  }

  #between(from, to, name) {
    const [before, after] = [this.#samples[from], this.#samples[to]];
    const [was, is] = [before?.values.get(name), after?.values.get(name)];
    if (was === undefined || is === undefined || is < was) return null;
    return (is - was) / ((after.at - before.at) / 1000);
  }

  #ends() {
    const last = this.#samples.at(-1);
    return [last && this.#samples.find(({ at }) => last.at - at <= LATELY), last];
  }
}

/** A counter that is new, or went back, began at nothing. */
function growth(was, is) {
  return is === undefined ? 0 : was === undefined || is < was ? is : is - was;
}

/** Times spread evenly in their bucket; those above the last bound are as long as that. */
function quantile(bounds, counts, total, share) {
  if (!(total > 0)) return null;
  const rank = share * total;
  let [from, below] = [0, 0];
  for (const [at, bound] of bounds.entries()) {
    if (counts[at] > below && counts[at] >= rank) {
      return from + ((bound - from) * (rank - below)) / (counts[at] - below);
    }
    [from, below] = [bound, counts[at]];
  }
  return from;
}

function countersOf(status) {
  const values = new Map();
  for (const field of ["total_connections", "total_bytes_rx", "total_bytes_tx"]) values.set(key(field), status[field]);
  for (const [name, frontend] of Object.entries(status.frontends)) {
    for (const field of ["total_connections", "bytes_rx", "bytes_tx"]) values.set(key("frontend", name, field), frontend[field]);
    addRequests(values, ["frontend", name], frontend);
  }
  for (const [name, backend] of Object.entries(status.backends)) {
    values.set(key("backend", name), backend.total_connections);
    if (backend.connect_seconds?.buckets) values.set(key("connect", name), backend.connect_seconds);
    addRequests(values, ["backend", name], backend);
    const times = sumOf(Object.values(backend.servers).map(({ response_seconds }) => response_seconds).filter(Boolean));
    if (times) values.set(key("response", name), times);
    for (const [server, { total_connections }] of Object.entries(backend.servers)) {
      values.set(key("server", name, server), total_connections);
    }
  }
  // Those at 0 too: the first of a kind has a rate.
  for (const { kind, reason, total } of counts(status)) values.set(key("loss", kind, reason), total);
  for (const [outcome, total] of Object.entries(status.packets?.cache ?? {})) values.set(key("cache", outcome), total);
  return values;
}

/**
 * Requests, and responses of 5xx, by the name of their frontend or backend. Only mode http has any.
 */
function addRequests(values, of, { requests }) {
  if (!requests) return;
  values.set(key(...of, "requests"), requests.total);
  values.set(key(...of, "5xx"), requests.responses?.["5xx"] ?? 0);
}

/** All of these times together; null: there are none. */
function sumOf(all) {
  const sum = { count: 0, buckets: {} };
  for (const { count, buckets } of all) {
    sum.count += count;
    for (const [bound, times] of Object.entries(buckets)) sum.buckets[bound] = (sum.buckets[bound] ?? 0) + times;
  }
  return all.length > 0 ? sum : null;
}

/** Reasons of local replies that are no refusals. */
const SERVED = new Set(["acme_challenge", "cors_preflight", "file", "file_forbidden", "file_method", "file_not_found", "file_precondition", "file_range", "redirect", "respond"]);

/** The kind of a request that convey answered instead of a server. */
export const REFUSED = "requests refused";

/** The kind of a connection that did not end by both sides closing. */
export const ENDED = "connections ended";

/** The kind of a response of a server that reports an error. */
export const FAILED = "responses of servers";

/** Everything that failed, was refused, dropped or ended early, of all frontends together. */
export const losses = (status) => counts(status).filter(({ total }) => total > 0);

function counts(status) {
  const totals = new Map();
  const add = (kind, reasons) => {
    for (const [reason, count] of Object.entries(reasons ?? {})) {
      const name = key(kind, reason);
      const found = totals.get(name) ?? { kind, reason, total: 0 };
      found.total += count;
      totals.set(name, found);
    }
  };
  for (const frontend of Object.values(status.frontends)) {
    add(ENDED, frontend.ended);
    add("clients refused", frontend.refused);
    const replies = Object.entries(frontend.requests?.local_replies ?? {});
    add(REFUSED, Object.fromEntries(replies.filter(([reason]) => !SERVED.has(reason))));
    const { responses = {}, local_5xx = 0 } = frontend.requests ?? {};
    add(FAILED, { "5xx": Math.max(0, (responses["5xx"] ?? 0) - local_5xx) });
    add("datagrams dropped", frontend.drops);
  }
  add("packets dropped", status.packets?.drops);
  add("flows evicted", status.packets?.evicted);
  return [...totals.values()];
}
