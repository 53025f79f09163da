// Elements, texts and times. Text that others wrote reaches the page by textContent alone.

const SVG = "http://www.w3.org/2000/svg";

/** An element: attributes, `on…` listeners, and children that are nodes or texts. */
export function el(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

/** The same in a drawing. */
export function svg(tag, given = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), given, children);
}

function fill(node, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

const written = new WeakMap();

/** Put these children in the place of what is there, unless they say the same; what has the focus keeps it by its id. */
export function show(node, ...children) {
  const fresh = el("div", {}, ...children);
  const said = fresh.innerHTML;
  if (written.get(node) === said) return false;
  written.set(node, said);
  const focused = node.contains(document.activeElement) ? document.activeElement.id : "";
  node.replaceChildren(...fresh.childNodes);
  if (focused) document.getElementById(focused)?.focus();
  tick(node);
  return true;
}

const number = new Intl.NumberFormat();
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const date = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });

/** The browser's time zone, in which all times of the page are. */
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

export const count = (value) => number.format(value);
export const atSecond = (seconds) => clock.format(seconds * 1000);
export const atMinute = (seconds) => minute.format(seconds * 1000);
export const atDay = (seconds) => day.format(seconds * 1000);

const isToday = (at) => at.toDateString() === new Date().toDateString();

/** The date of a moment, and a space, where that is not today's. */
export function dateUnlessToday(seconds) {
  const at = new Date(seconds * 1000);
  return isToday(at) ? "" : `${date.format(at)} `;
}

/** A moment, e.g. of a timeline: today's by the clock, others with their day; the whole is its title. */
export function moment(stamp) {
  if (!stamp) return el("span", { class: "faint" }, "time not known");
  const at = new Date(stamp);
  const text = isToday(at) ? clock.format(at) : day.format(at);
  return el("time", { datetime: stamp, title: `${day.format(at)} ${zone}` }, text);
}

/** How long ago, in the largest unit and the next. */
export function age(stamp) {
  if (!stamp) return "unknown";
  let left = Math.max(0, Math.floor((Date.now() - Date.parse(stamp)) / 1000));
  const parts = [];
  for (const [name, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const whole = Math.floor(left / size);
    left -= whole * size;
    if (whole) parts.push(`${whole}${name}`);
  }
  return parts.slice(0, 2).join(" ") || "0s";
}

/** An age that goes on while it is shown; `tick` fills it in. */
export const ago = (stamp) => el("span", { class: "ago", "data-since": stamp ?? "" });

/** Bring the ages up to date. */
export function tick(node = document) {
  for (const span of node.querySelectorAll(".ago")) span.textContent = age(span.dataset.since);
}

/** A row of a description list; nothing where there is no value. */
export function fact(name, ...value) {
  const there = value.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== "");
  return there.length ? [el("dt", {}, name), el("dd", {}, ...there)] : [];
}
