// Lines over a common axis, with their names at the right end.
import { el, svg } from "kit/elements.js";
import { clamp, known, unique } from "kit/numbers.js";
import { cutToken } from "kit/tokens.js";
import { toned, toneOf, variantOf } from "kit/tones.js";
import { speaking } from "kit/words.js";
import { compact, largest, precisePercent, smallest } from "./numbers.js";
import { powerTicks, roundTicks } from "./ticks.js";

const t = speaking({
  nothing: ["Nothing was recorded.", "기록된 것이 없습니다."],
  ceiling: ["{0} ceiling", "상한 {0}"],
  label: ["{0} against {1}. At the end: {2}.", "{1}에 따른 {0}. 마지막 값: {2}."],
});

// By tone and variant, so that lines are told apart without colours, and two of one colour too.
const DASHES = ["", "9 4", "9 3 2 3", "5 3", "14 4", "14 3 2 3 2 3", "2 4"];
const MARKS = ["M-4.5-4.5h9v9h-9z", "M0-5.5L5 4.5H-5z", "M0-6L6 0 0 6-6 0z", "M0 5.5L5-4.5H-5z", "M-6-2.5h12v5H-6z", "M-2.5-6h5v12h-5z",
  "M-5 0H5M0-5V5"];
const FLOOR = 42; // below the lines: numbers and name of the axis
const APART = 17; // between two names

/** Where everything stands: x(value), y(value), and the edges in points. */
function layOut(width, series, { top, logarithmic, ticks, mark }) {
  const names = unique(series.map(({ name }) => name));
  const [height, left, upper] = [clamp(width * 0.6, 240, 330), 46, 12];
  const right = Math.max(...names.map((name) => [...cutToken(name, 18)].length)) * 7.8 + 30;
  const all = series.flatMap(({ points }) => points);
  const xs = [...all, ...(mark ? [mark] : [])].map(([x]) => x);
  const end = largest(xs) || 1;
  const begin = ticks ? smallest(xs) : 0;
  const scaled = logarithmic ? Math.log10 : (value) => value;
  const values = all.map(([, y]) => scaled(y));
  const [low, high] = [logarithmic ? smallest(values) : 0, top ?? (largest(values) || 1)];
  const inset = ticks ? 16 : 0;
  const x = (value) => left + inset + (value - begin) / (end - begin || 1) * (width - left - right - 2 * inset);
  const y = (value) => height - FLOOR - (scaled(value) - low) / (high - low || 1) * (height - FLOOR - upper);
  return { names, width, height, left, right, begin, end, low, high, x, y };
}

function axes({ width, height, left, right, begin, end, low, high, x, y }, { written, logarithmic, ticks }, words) {
  const across = logarithmic ? powerTicks(low, high) : roundTicks(high, 4);
  const small = (text, attributes) => svg("text", { class: "small", ...attributes }, text);
  const below = ticks ?? roundTicks(end, width < 420 ? 2 : 4).map((value) => [value, compact(value)]);
  return [across.map((value) => [svg("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    small(written(value), { x: left - 7, y: y(value) + 4, "text-anchor": "end" })]),
  below.map(([value, text]) => small(text, { x: x(value), y: height - 24, "text-anchor": "middle" })),
  small(words, { x: x((begin + end) / 2), y: height - 5, "text-anchor": "middle" })];
}

function limitLine({ width, left, right, y }, limit) {
  const place = { x: width - right - 12, y: y(limit) - 8, "text-anchor": "end" };
  return [svg("line", { class: "ceiling", x1: left, x2: width - right, y1: y(limit), y2: y(limit) }),
    svg("text", { class: "ceiling-label", ...place }, t("ceiling", precisePercent(limit)))];
}

/** An upright line with its words at the top. mark: [x, text]. */
function markLine({ height, x, right, width }, [at, text]) {
  const place = x(at) < (width - right) / 2 ? { x: x(at) + 5 } : { x: x(at) - 5, "text-anchor": "end" };
  return [svg("line", { class: "ceiling", x1: x(at), x2: x(at), y1: 12, y2: height - FLOOR }),
    svg("text", { class: "ceiling-label", ...place, y: 10 }, text)];
}

/** The end of each name's line, of several the middle one, and the height of the name, which keep their distance. */
function endsOf(series, { names, height, y }) {
  const ends = names.map((name) => {
    const named = series.filter((line) => line.name === name);
    const last = named.map(({ points }) => points.at(-1)).sort((first, second) => first[1] - second[1])[Math.floor(named.length / 2)];
    return { ...named[0], last, at: y(last[1]) };
  }).sort((first, second) => first.at - second.at);
  for (let index = 1; index < ends.length; index += 1) ends[index].at = Math.max(ends[index].at, ends[index - 1].at + APART);
  let floor = height - FLOOR;
  for (const end of [...ends].reverse()) {
    end.at = Math.min(end.at, floor);
    floor = end.at - APART;
  }
  return ends;
}

/** Which of the dashes and marks belongs to a line. */
const patternOf = ({ model }) => (toneOf(model) + 3 * variantOf(model)) % DASHES.length;

function endMark(end, { width, right, x, y }) {
  const { name, model, last, at } = end;
  const [endX, endY] = [x(last[0]), y(last[1])];
  return toned(model, svg("g", {}, svg("line", { class: "leader", x1: endX, y1: endY, x2: width - right + 18, y2: at }),
    svg("path", { class: "mark", d: MARKS[patternOf(end)], transform: `translate(${endX} ${endY})` }),
    svg("text", { class: "line-label", x: width - right + 21, y: at + 4 }, cutToken(name, 18), svg("title", {}, name))));
}

/**
 * Draw lines. series: {name, model: of its tone, points: [[x, y], ...], ends: [[x, low, high], ...] of a band behind it}; lines of one name stand under one label.
 * across: the words of the x axis. options: {written, top, logarithmic, limit, ticks: [[x, text], ...], mark: [x, text]}.
 */
export function drawLines(box, label, series, across, options) {
  const measured = series.filter(({ points }) => points.length);
  if (!measured.length) return box.replaceChildren(t("nothing"));
  const laid = layOut(Math.max(260, box.clientWidth), measured, options);
  const { width, height, x, y } = laid;
  const ends = endsOf(measured, laid);
  const point = ([right, up]) => `${x(right).toFixed(1)} ${y(up).toFixed(1)}`;
  const weak = (one) => options.smooth ? toned(one.model, svg("path", { class: "line unsmoothed", d: `M${one.points.map(point).join("L")}` })) : null;
  const dots = ({ points }) => options.ticks ? points.map(([right, up]) => svg("circle", { class: "mark", cx: x(right), cy: y(up), r: 3 })) : [];
  const drawLine = (one) => toned(one.model, svg("g", {}, svg("path", { class: "line",
    "stroke-dasharray": DASHES[patternOf(one)], d: `M${smoothed(one.points, options.smooth).map(point).join("L")}` }), dots(one)));
  const edge = (points) => points.map(([right, up]) => point([right, clamp(up, laid.low, laid.high)])).join("L");
  const band = ({ model, ends: limits = [] }) => limits.length > 1 && toned(model, svg("path", { class: "band",
    d: `M${edge(limits.map(([right, low]) => [right, low]))}L${edge(limits.map(([right, , high]) => [right, high]).reverse())}Z` }));
  const bands = measured.map(band).filter(Boolean);
  const lines = laid.names.flatMap((name) => measured.filter((one) => one.name === name)).map(drawLine);
  const words = ends.map(({ name, last }) => `${name} ${options.written(last[1])}`).join(", ");
  const chart = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("label", label, across, words) },
    axes(laid, options, across), known(options.limit) && limitLine(laid, options.limit), options.mark && markLine(laid, options.mark), bands, measured.map(weak), lines,
    ends.map((end) => endMark(end, laid)));
  return box.replaceChildren(chart, readOut(chart, measured, laid, across, options));
}

/** Exponential moving means of the values of a curve. part: what remains of the mean at each point, 0 for the values. */
function smoothed(points, part = 0) {
  let mean = 0;
  return points.map(([x, y], place) => {
    mean = part * mean + (1 - part) * y;
    return [x, mean / (1 - part ** (place + 1))];
  });
}

/** A crosshair follows the pointer: the values of all lines nearest to it are in the words below. */
function readOut(chart, series, { height, width, x }, across, { written, ticks }) {
  const words = el("p", { class: "values" });
  const cross = svg("line", { class: "crosshair", y1: 12, y2: height - FLOOR, visibility: "hidden" });
  const nearest = (points, at) => points.reduce((best, point) => Math.abs(x(point[0]) - at) < Math.abs(x(best[0]) - at) ? point : best);
  const follow = ({ clientX }) => {
    const area = chart.getBoundingClientRect();
    const at = (clientX - area.left) * width / area.width;
    const found = series.map(({ name, points }) => ({ name, point: nearest(points, at) }));
    const [shown] = nearest(found.map(({ point }) => point), at);
    for (const side of ["x1", "x2"]) cross.setAttribute(side, x(shown));
    cross.setAttribute("visibility", "visible");
    const place = ticks?.find(([value]) => value === shown)?.[1] ?? compact(shown);
    const read = found.map(({ name, point }) => `${name} ${written(point[1])}`);
    words.replaceChildren(`${across} ${place}: ${read.join(" · ")}`);
  };
  for (const kind of ["pointermove", "pointerdown"]) chart.addEventListener(kind, follow);
  chart.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); words.replaceChildren(); });
  chart.append(cross);
  return words;
}

/** The points [x, y] of a curve that were measured and can be drawn. */
export function pointsOf(curve, field, axis, logarithmic) {
  const fits = (point) => known(point[field]) && known(point[axis]) && !(logarithmic && point[field] <= 0);
  return curve.filter(fits).map((point) => [point[axis], point[field]]);
}

/** Whether a number falls so far that only powers of ten show it. */
export function isWide(curves, field) {
  const positive = curves.flatMap((curve) => curve.map((point) => point[field])).filter((value) => value > 0);
  return positive.length > 0 && largest(positive) / smallest(positive) > 30;
}
