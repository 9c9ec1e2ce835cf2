// Numbers and times in words. Pure.

const STEPS = ["", "k", "M", "G", "T", "P"];
const NONE = "–";

/** Three digits and a unit: 950, 1.25k, 31.4M. */
export function short(number) {
  if (number === null || number === undefined) return NONE;
  let step = 0;
  while (Math.abs(number) >= 999.5 && step < STEPS.length - 1) {
    number /= 1000;
    step += 1;
  }
  const digits = step === 0 || number >= 99.5 ? 0 : number >= 9.95 ? 1 : 2;
  return number.toFixed(digits) + STEPS[step];
}

/** How often in a second: with a digit below ten. */
export function perSecond(number) {
  if (number === null || number === undefined) return NONE;
  return number > 0 && number < 9.95 ? number.toFixed(1) : short(number);
}

/** A share, such as 0.5, in percent. */
export function percent(share) {
  if (share === null || share === undefined) return NONE;
  const number = share * 100;
  if (number > 0 && number < 0.05) return "<0.1 %";
  return `${number > 0 && number < 9.95 ? number.toFixed(1) : Math.round(number)} %`;
}

/** Bytes a second as bits a second. */
export function bits(bytes) {
  if (bytes === null || bytes === undefined) return NONE;
  const text = short(bytes * 8);
  const unit = /[kMGTP]$/.exec(text)?.[0] ?? "";
  return `${unit ? text.slice(0, -1) : text} ${unit}bit/s`;
}

/** A time of seconds and below. */
export function latency(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  return `${seconds.toFixed(1)} s`;
}

/** A length of time in its two largest units. */
export function age(milliseconds) {
  let rest = Math.max(0, Math.floor(milliseconds / 1000));
  const parts = [];
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count > 0) parts.push(`${count}${unit}`);
  }
  return parts.slice(0, 2).join(" ") || "0s";
}

/** Formats a time in the user's time zone, with the day if it is not today. */
export function moment(milliseconds, now = Date.now()) {
  const [then, today] = [new Date(milliseconds), new Date(now)];
  const time = then.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
  return then.toDateString() === today.toDateString() ? time : `${then.toLocaleDateString()} ${time}`;
}

/** Names in the order in which people count. */
export const inOrder = new Intl.Collator("en", { numeric: true }).compare;

/** `1 server`, `2 servers`. */
export const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
