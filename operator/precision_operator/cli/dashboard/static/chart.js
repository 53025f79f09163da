// A small chart: lines over time, a labelled threshold, moments; as a drawing that a screen reader has in words.

import { atDay, atMinute, atSecond, dateUnlessToday, el, svg, zone } from "./dom.js";

const WIDTH = 360, HEIGHT = 132, LEFT = 44, RIGHT = 8, TOP = 10, BOTTOM = 20;
const TICKS = 3, SHORT_SECONDS = 600, LINE = 10;

/** A value with its unit. */
export function amount(value, unit) {
  if (value === null || value === undefined) return "no value";
  if (unit === "share") return `${trim(value * 100)} %`;
  if (unit === "multiple") return `${trim(value)} ×`;
  return trim(value);
}

const trim = (value) => {
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return size >= 1e6 ? value.toExponential(1) : String(Number(value.toFixed(size > 0 && size < 0.01 ? 4 : digits)));
};

const last = (line) => line.points.findLast(([, value]) => value !== null)?.[1] ?? null;

/** The charts that have something to show, and in one line the names of those that have not. */
export function charts(all) {
  const empty = all.filter((data) => !drawable(data).length && !data.note);
  const names = empty.map((data) => data.title).join(", ");
  return [
    el("div", { class: "charts" }, all.filter((data) => !empty.includes(data)).map(chart)),
    names ? el("p", { class: "none" }, `No samples of ${names}: not known, which is not the same as good.`) : null,
  ];
}

const drawable = (data) => data.lines.flatMap((line) => line.points).filter(([, value]) => value !== null);

function chart(data) {
  const name = data.title;
  const caption = el("figcaption", {},
    el("strong", { title: data.meaning || false }, name), " ",
    el("span", { class: "faint" }, unitName(data.unit), " · ", data.source));
  const points = drawable(data);
  if (!points.length) return el("figure", { class: "chart" }, caption, el("p", { class: "none" }, data.note));
  const legend = el("ul", { class: "legend" }, data.lines.map((line, i) => el("li", {},
    el("span", { class: "swatch", "data-line": i, "aria-hidden": "true" }), el("span", { class: "series" }, line.name), " ",
    el("b", {}, amount(last(line), data.unit)))));
  if (data.more) legend.append(el("li", { class: "faint" }, `and ${data.more} more, nearer to good`));
  return el("figure", { class: "chart" }, caption, drawing(data, points, name), legend);
}

const unitName = (unit) => ({ share: "share, %", multiple: "multiple of FP32", workloads: "count", steps: "count" })[unit] ?? unit;

function drawing(data, points, name) {
  const times = points.map(([at]) => at);
  const values = [...points.map(([, value]) => value), ...data.levels.map((level) => level.value), 0];
  const start = Math.min(...times), end = Math.max(...times, start + 1);
  const low = Math.min(...values), high = Math.max(...values, low + (data.unit === "workloads" ? 1 : 1e-6));
  const top = high + (high - low) * 0.08;
  const x = (at) => LEFT + ((at - start) / (end - start)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (top - low)) * (HEIGHT - TOP - BOTTOM);
  const levels = data.levels.map((level) => `${level.name} ${amount(level.value, data.unit)}`);
  const clock = end - start < SHORT_SECONDS ? atSecond : atMinute;
  const said = [
    `${name}, ${data.source}, from ${atDay(start)} to ${atDay(end)} ${zone}`,
    ...data.lines.map((line) => `${line.name} last ${amount(last(line), data.unit)}`), ...levels,
  ].join("; ");
  const drawn = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said });
  const whole = data.unit === "workloads";
  for (let i = 0; i < TICKS; i++) {
    const value = low + ((high - low) * i) / (TICKS - 1);
    if (whole && !Number.isInteger(value)) continue;
    drawn.append(
      svg("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: LEFT - 5, y: y(value) + 3.5, "text-anchor": "end" }, amount(value, data.unit)));
  }
  for (const [at, anchor] of [[start, "start"], [(start + end) / 2, "middle"], [end, "end"]]) {
    const text = anchor === "middle" ? clock(at) : dateUnlessToday(at) + clock(at);
    drawn.append(svg("text", { class: "tick", x: x(at), y: HEIGHT - 5, "text-anchor": anchor }, text));
  }
  data.moments.filter((one) => one.at >= start && one.at <= end).forEach((mark, i) => {
    const side = x(mark.at) > WIDTH * 0.6 ? "end" : "start";
    drawn.append(
      svg("line", { class: "moment", x1: x(mark.at), x2: x(mark.at), y1: TOP, y2: HEIGHT - BOTTOM }),
      svg("text", { class: "mark", x: x(mark.at) + (side === "end" ? -3 : 3), y: (TOP + HEIGHT - BOTTOM) / 2 + i * LINE, "text-anchor": side }, mark.name));
  });
  data.lines.forEach((line, i) => drawn.append(svg("path", { class: "line", "data-line": i, d: path(line.points, x, y, whole) })));
  data.levels.forEach((level, i) => drawn.append(
    svg("line", { class: "level", x1: LEFT, x2: WIDTH - RIGHT, y1: y(level.value), y2: y(level.value) }),
    svg("text", { class: "mark threshold", x: LEFT + 3, y: y(level.value) + (y(level.value) < TOP + LINE * 1.5 ? LINE : -3) }, levels[i])));
  return drawn;
}

/** A line with gaps where there is no value; counts go in steps. */
function path(points, x, y, stepped) {
  let drawn = "", pen = false, before = 0;
  for (const [at, value] of points) {
    if (value === null) { pen = false; continue; }
    if (pen && stepped) drawn += `L${x(at).toFixed(1)} ${y(before).toFixed(1)}`;
    drawn += `${pen ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    if (!pen && points.length === 1) drawn += "h2";
    pen = true;
    before = value;
  }
  return drawn;
}
