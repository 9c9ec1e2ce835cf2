// Controls for changes, shown if convey permits them.

import { ask, hasToken, pathOf, setToken } from "./api.js";
import { byId, setAttribute, setText, show } from "./dom.js";

const OUT = { drain: "Drain it anyway", maint: "Take it out anyway", 0: "Set weight 0 anyway" };

/** The controls of the page. `refresh` has it look at once. */
export class Controls {
  mayChange = false;
  #status = null;
  #refresh;
  /** Target of the dialog: `{backend, server}`. */
  #target = null;
  /** Waits for a second yes. */
  #pending = null;

  constructor(refresh) {
    this.#refresh = refresh;
    document.addEventListener("click", ({ target }) => this.#onClick(target.closest?.("button")));
    byId("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      setToken(byId("token").value.trim());
      byId("token").value = "";
      this.learn();
    });
    byId("forget").addEventListener("click", () => {
      setToken("");
      this.learn();
    });
    byId("set-weight").addEventListener("click", () => this.#weigh());
    byId("weight").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.#weigh();
    });
    byId("confirm").addEventListener("click", () => this.#pending && this.#set({ ...this.#pending, force: true }));
    byId("keep").addEventListener("click", () => this.#ask(null));
  }

  /** Shows the current state in the dialog. */
  update(status) {
    this.#status = status;
    if (this.#target) this.#describe();
  }

  /** Asks convey whether things may be changed from here. */
  async learn() {
    setText(byId("access-error"), "");
    try {
      this.#permit(await ask("access"));
    } catch (failure) {
      if (failure.status === 0) return;
      setToken("");
      this.#permit({ may_change: false, token: true });
      setText(byId("access-error"), failure.message);
      byId("access").open = true;
    }
    this.#refresh();
  }

  #permit({ may_change, token }) {
    const hadSheet = this.mayChange !== may_change;
    this.mayChange = may_change;
    setText(byId("access-title"), may_change ? "Changes allowed" : "Read-only");
    setText(byId("access-text"), textOf(may_change, token));
    show(byId("token-form"), !may_change && token);
    show(byId("forget"), hasToken());
    show(byId("reload"), may_change);
    if (hadSheet) byId("access").open = false;
  }

  #onClick(button) {
    if (!button) return;
    const { backend, server, frontend, route, reset, state } = button.dataset;
    if (button.id === "reload") this.#do(() => ask("reload", { method: "POST" }), byId("notices"));
    else if (button.id === "reset-all") this.#reset({}, byId("notices"));
    else if (button.id === "reset") this.#reset(this.#target, byId("steer-result"));
    else if (reset !== undefined) this.#reset({ backend, server, frontend, route }, byId("notices"));
    else if (state !== undefined) this.#propose({ state });
    else if (backend !== undefined) this.#open({ backend, server });
  }

  #open(target) {
    this.#target = target;
    setText(byId("steer-title"), target.server === undefined ? `Backend ${target.backend}` : `Server ${target.backend}/${target.server}`);
    setText(byId("steer-result"), "");
    show(byId("steer-weight"), target.server !== undefined);
    const server = this.#server();
    byId("weight").value = server ? server.weight : "";
    this.#ask(null);
    this.#describe();
    byId("steer").showModal();
  }

  #server() {
    const { backend, server } = this.#target;
    return this.#status?.backends[backend]?.servers[server];
  }

  #describe() {
    const { backend, server } = this.#target;
    const servers = Object.values(this.#status?.backends[backend]?.servers ?? {});
    const found = this.#server();
    const one = found && `${found.state}, ${found.up ? "healthy" : `down: ${found.health.reason}`}, ${found.current_connections} open, weight ${found.weight}`;
    const all = `${servers.filter(({ eligible }) => eligible).length} of ${servers.length} servers can be chosen`;
    setText(byId("steer-now"), server === undefined ? all : one ?? "This server no longer exists.");
    for (const button of document.querySelectorAll("#steer [data-state]")) {
      setAttribute(button, "aria-pressed", found ? String(found.state === button.dataset.state) : null);
    }
  }

  #weigh() {
    const field = byId("weight");
    if (field.value === "" || !field.checkValidity()) {
      setText(byId("steer-result"), "A weight is a whole number from 0 to 65535.");
      field.focus();
      return;
    }
    this.#propose({ weight: Number(field.value) });
  }

  /** Warning to confirm before the last server is taken out. */
  #propose(change) {
    const isOut = change.state === "drain" || change.state === "maint" || change.weight === 0;
    const why = isOut ? this.#lastOne() : null;
    if (why) this.#ask(change, why);
    else this.#set(change);
  }

  #lastOne() {
    const { backend, server } = this.#target;
    const servers = this.#status?.backends[backend]?.servers ?? {};
    const eligible = Object.keys(servers).filter((name) => servers[name].eligible);
    if (eligible.length === 0) return null;
    if (server === undefined) return `This takes all servers of ${backend} out of rotation: convey refuses its new clients.`;
    const backups = Object.keys(servers).filter((name) => name !== server && servers[name].backup && servers[name].up && servers[name].state === "ready");
    const isLast = eligible.length === 1 && eligible[0] === server && backups.length === 0;
    return isLast ? `${server} is the last server of ${backend} that can be chosen: without it convey refuses new clients.` : null;
  }

  #ask(change, why = "") {
    this.#pending = change;
    show(byId("steer-choices"), !change);
    show(byId("steer-confirm"), Boolean(change));
    setText(byId("confirm-text"), why);
    if (!change) return;
    setText(byId("confirm"), OUT[change.state ?? change.weight]);
    byId("keep").focus();
  }

  async #set(change) {
    const { backend, server } = this.#target;
    this.#ask(null);
    await this.#do(() => ask(pathOf(backend, server), { method: "PATCH", body: change }), byId("steer-result"));
  }

  async #reset(target, result) {
    const query = new URLSearchParams(Object.entries(target).filter(([, name]) => name !== undefined));
    await this.#do(() => ask(`overlays?${query}`, { method: "DELETE" }), result);
  }

  /** Shows the result. */
  async #do(change, result) {
    setText(result, "…");
    try {
      setText(result, inWords(await change()));
    } catch (failure) {
      setText(result, [failure.message, ...failure.problems ?? []].join("\n"));
      if (failure.status === 401 || failure.status === 403) this.learn();
    }
    this.#refresh();
  }
}

function textOf(mayChange, token) {
  if (mayChange) return "Changes are allowed here. convey forgets the token when this tab is closed.";
  if (token) return "Enter the token of this convey, from the file that [stats] token_file names.";
  return "To allow changes here, set token_file in [stats] of the configuration. On the host, `convey server drain` and others work without a token.";
}

function inWords(answer) {
  if (answer.reset) return answer.reset.length ? `Changes undone: ${answer.reset.length}.` : "There was no change to undo.";
  if (answer.changes) {
    const later = answer.needs_restart.map((change) => `${change} needs restart`);
    const refused = (answer.refused_certificates ?? []).map((chain) => `${chain} is refused; the log has the reason`);
    const told = [...answer.changes, ...later, ...refused];
    return told.length ? `Reloaded: ${told.join("; ")}` : "Reloaded: no effective changes.";
  }
  return answer.changed ? "Done." : "Nothing changed: this was already set.";
}
