// Requests to convey.

/** Longer than an answer takes. */
const PATIENCE = 8_000;
const STORED = "convey-token";

/** The user's token, kept until the tab is closed. */
let token = sessionStorage.getItem(STORED) ?? "";

export const hasToken = () => token !== "";

export function setToken(next) {
  token = next;
  if (next) sessionStorage.setItem(STORED, next);
  else sessionStorage.removeItem(STORED);
}

/** Error message for the user, with the status of the response (0 without a response). */
export class Failure extends Error {
  constructor(status, message, problems = []) {
    super(message);
    this.status = status;
    this.problems = problems;
  }
}

/** Asks convey; returns its answer, or throws a `Failure`. */
export async function ask(path, { method = "GET", body } = {}) {
  const headers = {};
  if (body) headers["Content-Type"] = "application/json";
  if (token) headers.Authorization = `Bearer ${token}`;
  let response, answer;
  try {
    response = await fetch(`v1/${path}`, {
      method, headers, body: body && JSON.stringify(body), cache: "no-store", credentials: "omit",
      redirect: "error", signal: AbortSignal.timeout(PATIENCE),
    });
    answer = await response.json();
  } catch (error) {
    throw new Failure(0, response ? `invalid response from convey (${response.status})` : "no response from convey");
  }
  if (response.ok) return answer;
  throw new Failure(response.status, answer.error ?? `convey answers ${response.status}`, answer.problems);
}

/** The path of a backend, or of one of its servers. */
export function pathOf(backend, server) {
  const path = `backends/${encodeURIComponent(backend)}`;
  return server === undefined ? path : `${path}/servers/${encodeURIComponent(server)}`;
}
