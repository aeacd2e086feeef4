// Horizontal bars from 0 to 100 % or the largest value, with intervals, dots of trials and a ceiling.
import { svg } from "kit/elements.js";
import { clamp, known } from "kit/numbers.js";
import { cutToken } from "kit/tokens.js";
import { toned, variantOf } from "kit/tones.js";
import { speaking } from "kit/words.js";
import { metric } from "./metric.js";
import { compact, largest, smallest } from "./numbers.js";
import { interval, shown } from "./study.js";
import { powerTicks, roundTicks } from "./ticks.js";

const t = speaking({ trial: ["seed {0}: {1}", "시드 {0}: {1}"] });

/** Where everything stands: x(value), and the edges in points. */
function layOut(width, rows, limit) {
  const names = rows.map((row) => cutToken(row.encoding, width < 500 ? 12 : 22));
  const left = Math.max(40, ...names.map((name) => [...name].length * 8.2)) + 10;
  const written = rows.map((row) => interval(row.low, row.high).length);
  const hasEnds = rows.some((row) => known(row.low)); // which are written below the value
  const right = hasEnds ? Math.max(112, ...written.map((length) => 14 + 6.4 * length)) : 70;
  const hasDots = rows.some((row) => row.dots?.length);
  const [top, step] = [known(limit) ? 24 : 6, hasDots ? 50 : hasEnds ? 42 : 32];
  const dots = rows.flatMap((row) => (row.dots ?? []).map((dot) => dot.value));
  const values = [...rows.flatMap((row) => [row.value, row.high]), ...dots].filter(known);
  const end = metric.share ? 1 : largest([0, ...values]) || 1;
  const x = (value) => left + clamp(value / end, 0, 1) * (width - left - right);
  const y = (index) => top + index * step + (hasDots ? 19 : 16);
  return { names, left, top, bottom: top + rows.length * step, end, x, y };
}

function axisLines(width, { end, top, bottom, x }) {
  const count = width < 420 ? 2 : 4;
  const shares = Array.from({ length: count + 1 }, (_, index) => index / count);
  const written = (value) => metric.share ? `${100 * value}${value ? "" : "\u00a0%"}` : compact(value);
  return (metric.share ? shares : roundTicks(end, count)).map((value) => [
    svg("line", { class: "axis", x1: x(value), x2: x(value), y1: top, y2: bottom + 4 }),
    svg("text", { class: "small", x: x(value), y: bottom + 19, "text-anchor": "middle" }, written(value))]);
}

/** Whether another encoding of the page has its colour: its bars are hollow. */
const isSecond = ({ encoding }) => variantOf(encoding) > 0;

function bar(row, name, { left, end, x }, y) {
  const beside = x(end) + 12;
  const [low, high] = [row.low, row.high].map((value) => known(value) ? x(value) : null);
  const hasInterval = low !== null && high !== null;
  return toned(row.encoding, svg("g", {},
    svg("text", { class: "strong", x: left - 10, y: y + 5, "text-anchor": "end" }, name, svg("title", {}, row.encoding)),
    svg("text", { class: "strong", x: beside, y: y + 5 }, shown(row.value)),
    known(row.value) && svg("rect", { class: isSecond(row) ? "bar second" : "bar", x: x(0), y: y - 8, height: 16, width: x(row.value) - x(0) }),
    hasInterval && svg("path", { class: "whisker", d: `M${low} ${y}H${high}M${low} ${y - 5}v10M${high} ${y - 5}v10` }),
    hasInterval && svg("text", { class: "small", x: beside, y: y + 21 }, interval(row.low, row.high)),
    (row.dots ?? []).map((dot) => svg("circle", { class: "dot", cx: x(dot.value), cy: y + 17, r: 3.5 },
      svg("title", {}, t("trial", dot.seed, shown(dot.value)))))));
}

function limitLine(limit, words, { bottom, x }, width) {
  const flip = limit > 0.5;
  const place = { x: flip ? x(limit) - 6 : Math.min(x(limit) + 6, width - 6.5 * words.length), y: 14, "text-anchor": flip ? "end" : "start" };
  return [svg("line", { class: "ceiling", x1: x(limit), x2: x(limit), y1: 4, y2: bottom + 4 }),
    svg("text", { class: "ceiling-label", ...place }, words)];
}

/** rows: {encoding, value, low, high, dots}. limit: where a ceiling stands, if anywhere. */
export function drawBars(box, label, rows, limit, limitWords) {
  const width = Math.max(260, box.clientWidth);
  const laid = layOut(width, rows, limit);
  const height = laid.bottom + 24;
  const values = rows.map((row) => `${row.encoding} ${shown(row.value)}`).join(", ");
  const words = `${label}: ${values}${known(limit) ? `; ${limitWords}` : ""}`;
  box.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
    axisLines(width, laid), rows.map((row, index) => bar(row, laid.names[index], laid, laid.y(index))),
    known(limit) && limitLine(limit, limitWords, laid, width)));
}

const wrong = (share) => known(share) ? 1 - share : null;

/** Shares of wrong answers on a logarithmic axis, which tells 99.9 % from 99.99 %. every: rows as for bars, of right answers. */
export function drawErrors(box, label, every) {
  const rows = every.map(({ encoding, value, low, high, dots }) => ({ encoding, value: wrong(value), low: wrong(high), high: wrong(low),
    dots: dots.map((dot) => ({ ...dot, value: wrong(dot.value) })) }));
  const width = Math.max(260, box.clientWidth);
  const laid = layOut(width, rows, null);
  const shares = rows.flatMap(({ value, low, dots }) => [value, low, ...dots.map((dot) => dot.value)]);
  const least = Math.min(-2, Math.floor(Math.log10(smallest([...shares.filter((share) => share > 0), 1]))));
  const x = (share) => laid.x(1 - Math.log10(Math.max(share, 10 ** least)) / least); // no error at all stands at the left end
  const ticks = powerTicks(least, 0).map((tick) => [
    svg("line", { class: "axis", x1: x(tick), x2: x(tick), y1: laid.top, y2: laid.bottom + 4 }),
    svg("text", { class: "small", x: x(tick), y: laid.bottom + 19, "text-anchor": "middle" }, `${Number((100 * tick).toPrecision(3))}\u00a0%`)]);
  const words = `${label}: ${rows.map((row) => `${row.encoding} ${shown(row.value)}`).join(", ")}`;
  const height = laid.bottom + 24;
  box.replaceChildren(svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words },
    ticks, rows.map((row, index) => bar(row, laid.names[index], { ...laid, x }, laid.y(index)))));
}
