// Refusals and drops, and the counters of packet modes.

import { byId, cell, list, make, setText, show } from "./dom.js";
import { counted, perSecond, short } from "./format.js";
import { losses } from "./history.js";

/** Shows refusals, drops and early ends, the highest rate first. */
export function showLosses(status, history) {
  const all = losses(status).map((loss) => ({ ...loss, rate: history.rate("loss", loss.kind, loss.reason) }));
  all.sort((a, b) => (b.rate ?? 0) - (a.rate ?? 0) || b.total - a.total);
  show(byId("no-drops"), all.length === 0);
  show(byId("drop-rows").parentNode, all.length > 0);
  list(byId("drop-rows"), all, ({ kind, reason }) => `${kind}\u0000${reason}`, ({ kind, reason }) => {
    const [rate, total] = [make("span"), make("span")];
    const element = make("tr", { role: "row" },
      cell("What", {}, kind),
      make("th", { role: "rowheader", scope: "row" }, make("code", {}, reason)),
      cell("/s", { class: "n" }, rate),
      cell("Total", { class: "n" }, total));
    element.update = (loss) => {
      setText(rate, perSecond(loss.rate));
      setText(total, short(loss.total));
    };
    return element;
  });
}

/** Shows the flows of packet modes, and the layer that forwards them. */
export function showPackets({ packets }, history) {
  show(byId("packets"), Boolean(packets));
  if (!packets) return;
  const flows = Object.entries(packets.flows).filter(([, count]) => count > 0);
  const all = flows.reduce((sum, [, count]) => sum + count, 0);
  const cached = `${short(packets.cached_flows)} of ${counted(all, "flow")}`;
  const rates = Object.keys(packets.cache).map((outcome) => [outcome, history.rate("cache", outcome)]).filter(([, rate]) => rate > 0);
  const outcomes = rates.map(([outcome, rate]) => `${outcome} ${perSecond(rate)}`);
  const facts = [
    ["flows", flows.map(([state, count]) => `${state} ${short(count)}`).join(", ") || "none"],
    ["forwarded by the kernel", cached],
    ["open flows forwarded by", Object.entries(packets.offload).map((layer) => layer.join(": ")).join(", ") || "no interface yet"],
    ["kernel's flow cache, packets/s", outcomes.join(", ") || "none"],
    ["SNAT ports in use", short(packets.snat_ports_in_use)],
    ["captured, for no frontend", short(packets.passed)],
    ["forwarded without a flow record", short(packets.untracked)],
    ["frames that could not be read", short(packets.capture_errors)],
    ["changes that the kernel refused", short(packets.cache_failures)],
  ];
  list(byId("packet-facts"), facts, ([name]) => name, ([name]) => {
    const value = make("dd");
    const element = make("div", {}, make("dt", {}, name), value);
    element.update = ([, text]) => setText(value, text);
    return element;
  });
}
