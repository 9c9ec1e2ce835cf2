// Small drawings: the rate of the last two minutes, a share, the health of the last hour.

import { draw, make, setAttribute, setText } from "./dom.js";
import { age, moment } from "./format.js";

const [WIDTH, HEIGHT] = [96, 22];

/** Sparkline of rates. The current rate is next to it as a number. */
export function sparkline() {
  const line = draw("polyline", { class: "line" });
  const area = draw("polygon", { class: "area" });
  const element = draw("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, area, line);
  element.update = (rates, samples = 60) => {
    const most = Math.max(...rates, 1e-9);
    const step = WIDTH / (samples - 1);
    const from = samples - rates.length;
    const points = rates.map((rate, at) => `${((from + at) * step).toFixed(1)},${(HEIGHT - 1 - (rate / most) * (HEIGHT - 3)).toFixed(1)}`);
    setAttribute(line, "points", points.join(" "));
    setAttribute(area, "points", points.length ? `${(from * step).toFixed(1)},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` : "");
  };
  return element;
}

/** A bar that is as long as a share of one, with its number. */
export function share() {
  const bar = draw("rect", { class: "fill", height: 8, rx: 2 });
  const text = make("span", { class: "n" });
  const drawing = draw("svg", { class: "share", viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "track", width: 100, height: 8, rx: 2 }), bar);
  const element = make("span", { class: "shared" }, drawing, text);
  element.update = (part) => {
    setAttribute(bar, "width", part === null ? 0 : Math.round(part * 100));
    setText(text, part === null ? "–" : `${Math.round(part * 100)} %`);
  };
  return element;
}

/** A strip of the last hour: `spans` are `{from, to, state}`, in parts of one. */
export function strip() {
  const title = draw("title");
  const spans = draw("g");
  const element = draw("svg", { class: "strip", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img" }, title, spans);
  let drawn = "";
  element.update = (history) => {
    const next = history.spans.map(({ from, to, state }) => `${state} ${from.toFixed(3)} ${to.toFixed(3)}`).join();
    if (next === drawn) return;
    drawn = next;
    spans.replaceChildren(...history.spans.map(({ from, to, state }) => bar(from, to, state)));
    const text = inWords(history);
    setText(title, text);
    setAttribute(element, "aria-label", text);
  };
  return element;
}

/** Trouble is tall and the rest is low, so that shape tells it as well as colour. */
function bar(from, to, state) {
  const isLow = state === "up" || state === "unknown";
  // Short trouble stays visible.
  const width = Math.max((to - from) * 100, isLow ? 0 : 1);
  return draw("rect", {
    class: `health ${state}`, x: Math.min(from * 100, 100 - width).toFixed(2), width: width.toFixed(2),
    y: isLow ? 5 : 0, height: isLow ? 5 : 10,
  });
}

function inWords({ spans, start, length }) {
  const at = (part) => moment(start + part * length, start + length);
  const bad = spans.filter(({ state }) => state === "down" || state === "ejected");
  if (bad.length === 0) return "last hour: no known trouble";
  const told = bad.slice(-5).map(({ from, to, state }) => `${state} at ${at(from)} for ${age((to - from) * length)}`);
  return `last hour: ${told.join("; ")}`;
}
