// Learning curves: one line a trial, with the names of the encodings at the right end.
import { svg } from "web/elements.js";
import { clamp, known, unique } from "web/numbers.js";
import { cutToken } from "web/tokens.js";
import { speaking } from "web/words.js";
import { compact, largest, precisePercent, smallest, toned, toneOf, trials } from "./study.js";
import { powerTicks, roundTicks } from "./ticks.js";

const t = speaking({
  nothing: ["Nothing was recorded.", "기록된 것이 없습니다."],
  ceiling: ["{0} ceiling", "상한 {0}"],
  label: ["{0} against {1}. At the end: {2}.", "{1}에 따른 {0}. 마지막 값: {2}."],
});

// By tone, so that curves are told apart without colours; the last belongs to the encoding that tells nothing.
const DASHES = ["", "9 4", "9 3 2 3", "5 3", "14 4", "14 3 2 3 2 3", "2 4"];
const MARKS = ["M-4.5-4.5h9v9h-9z", "M0-5.5L5 4.5H-5z", "M0-6L6 0 0 6-6 0z", "M0 5.5L5-4.5H-5z", "M-6-2.5h12v5H-6z", "M-2.5-6h5v12h-5z",
  "M-5 0H5M0-5V5"];
const FLOOR = 42; // below the curves: numbers and name of the axis
const APART = 17; // between two names

/** Of each trial the points [x, y] that were measured and can be drawn. */
function seriesOf(field, axis, logarithmic) {
  const fits = (point) => known(point[field]) && known(point[axis]) && !(logarithmic && point[field] <= 0);
  const pointsOf = (curve) => curve.filter(fits).map((point) => [point[axis], point[field]]);
  const series = trials.map(({ encoding, curve }) => ({ encoding, points: pointsOf(curve) }));
  return series.filter(({ points }) => points.length);
}

/** Where everything stands: x(value), y(value), and the edges in points. */
function layOut(width, series, { top, logarithmic }) {
  const names = unique(series.map(({ encoding }) => encoding));
  const [height, left, upper] = [clamp(width * 0.6, 240, 330), 46, 12];
  const right = Math.max(...names.map((name) => [...cutToken(name, 18)].length)) * 7.8 + 30;
  const all = series.flatMap(({ points }) => points);
  const end = largest(all.map(([x]) => x)) || 1;
  const scaled = logarithmic ? Math.log10 : (value) => value;
  const values = all.map(([, y]) => scaled(y));
  const [low, high] = [logarithmic ? smallest(values) : 0, top ?? (largest(values) || 1)];
  const x = (value) => left + value / end * (width - left - right);
  const y = (value) => height - FLOOR - (scaled(value) - low) / (high - low || 1) * (height - FLOOR - upper);
  return { names, width, height, left, right, end, low, high, x, y };
}

function axes({ width, height, left, right, end, low, high, x, y }, { written, logarithmic }, words) {
  const across = logarithmic ? powerTicks(low, high) : roundTicks(high, 4);
  const small = (text, attributes) => svg("text", { class: "small", ...attributes }, text);
  return [across.map((value) => [svg("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    small(written(value), { x: left - 7, y: y(value) + 4, "text-anchor": "end" })]),
  roundTicks(end, width < 420 ? 2 : 4).map((value) => small(compact(value), { x: x(value), y: height - 24, "text-anchor": "middle" })),
  small(words, { x: x(end / 2), y: height - 5, "text-anchor": "middle" })];
}

function limitLine({ width, left, right, y }, limit) {
  const place = { x: width - right - 12, y: y(limit) - 8, "text-anchor": "end" };
  return [svg("line", { class: "ceiling", x1: left, x2: width - right, y1: y(limit), y2: y(limit) }),
    svg("text", { class: "ceiling-label", ...place }, t("ceiling", precisePercent(limit)))];
}

/** The end of each encoding's curve, of several the middle one, and the height of its name, which keep their distance. */
function endsOf(series, { names, height, y }) {
  const ends = names.map((encoding) => {
    const own = series.filter((one) => one.encoding === encoding).map(({ points }) => points.at(-1));
    const last = own.sort((first, second) => first[1] - second[1])[Math.floor(own.length / 2)];
    return { encoding, last, at: y(last[1]) };
  }).sort((first, second) => first.at - second.at);
  for (let index = 1; index < ends.length; index += 1) ends[index].at = Math.max(ends[index].at, ends[index - 1].at + APART);
  let floor = height - FLOOR;
  for (const end of [...ends].reverse()) {
    end.at = Math.min(end.at, floor);
    floor = end.at - APART;
  }
  return ends;
}

function endMark({ encoding, last, at }, { width, right, x, y }) {
  const [endX, endY] = [x(last[0]), y(last[1])];
  return toned(encoding, svg("g", {}, svg("line", { class: "leader", x1: endX, y1: endY, x2: width - right + 18, y2: at }),
    svg("path", { class: "mark", d: MARKS[toneOf(encoding)], transform: `translate(${endX} ${endY})` }),
    svg("text", { class: "line-label", x: width - right + 21, y: at + 4 }, cutToken(encoding, 18), svg("title", {}, encoding))));
}

/** Draw a number of all trials. across: {field, words} of the x axis; options: {written, top, logarithmic, limit}. */
export function drawCurves(box, label, field, across, options) {
  const series = seriesOf(field, across.field, options.logarithmic);
  if (!series.length) return box.replaceChildren(t("nothing"));
  const laid = layOut(Math.max(260, box.clientWidth), series, options);
  const { width, height, x, y } = laid;
  const ends = endsOf(series, laid);
  const point = ([across, up]) => `${x(across).toFixed(1)} ${y(up).toFixed(1)}`;
  const drawLine = ({ encoding, points }) => toned(encoding, svg("path", { class: "line",
    "stroke-dasharray": DASHES[toneOf(encoding)], d: `M${points.map(point).join("L")}` }));
  const lines = laid.names.flatMap((name) => series.filter(({ encoding }) => encoding === name)).map(drawLine);
  const words = ends.map(({ encoding, last }) => `${encoding} ${options.written(last[1])}`).join(", ");
  const said = t("label", label, across.words, words);
  return box.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said },
    axes(laid, options, across.words), known(options.limit) && limitLine(laid, options.limit), lines,
    ends.map((end) => endMark(end, laid))));
}
