// The metric at other lengths than the trained one: a line for each encoding, and which is best at each length.
import { el } from "kit/elements.js";
import { known, unique } from "kit/numbers.js";
import { nameNode } from "kit/tokens.js";
import { language, speaking } from "kit/words.js";
import { drawLines } from "./lines.js";
import { metric } from "./metric.js";
import { compact, largest, smallest, whole } from "./numbers.js";
import { figure, listed } from "./parts.js";
import { payload } from "./study.js";
import { metricTitle, WORDS } from "./words.js";

const KOREAN = {
  "tokens of a window": "창의 토큰 수", "digits of each operand": "피연산자의 자릿수", "numbers of a line": "한 줄의 수 개수",
  "pixels of the longer side": "긴 변의 픽셀 수", "tokens of the source at most, and more than half as many": "원문의 최대 토큰 수(그 절반보다 김)",
};
const t = speaking({
  title: ["{0} by length", "길이별 {0}"],
  about: ["Trained models, measured on held-out data of other lengths. Shaded: the interval of each mean.", "학습한 모델을 다른 길이의 검증 데이터로 잰 값입니다. 옅은 띠: 평균마다의 구간."],
  trained: ["trained: {0}", "학습 길이 {0}"],
  best: ["At {0}: {1} is best.", "길이 {0}: 가장 좋은 것은 {1}."],
  unranked: [" Not ranked above: ", " 다음보다 낫다고 할 수 없음: "],
  oneSeed: [" One seed each, so not ranked.", " 시드가 하나씩이라 순위를 매기지 않습니다."],
  oneInCommon: [" Fewer than two seeds in common, so not ranked.", " 공통인 시드가 둘이 안 되어 순위를 매기지 않습니다."],
  ranked: [" Ranked above all others.", " 나머지 모두보다 낫습니다."],
  corrected: ["Pairs are corrected for each length alone.", "짝 비교는 길이마다 따로 보정합니다."],
  untrained: ["At {0}, {1}: {2}", "길이 {0}, {1}: {2}"],
}, WORDS);

const { at = [], trained = null, unit = "" } = payload.lengths ?? {};
const box = el("div", { class: "chart", id: "lengths-chart" });
const place = Math.log2; // lengths are compared by their ratio

function verdict({ length, best, unranked, encodings, pairs }) {
  const oneSeed = Object.keys(pairs.missing).length ? "oneInCommon" : "oneSeed";
  const reason = pairs.seeds < 2 ? t(oneSeed) : unranked.length ? [t("unranked"), listed(unranked)] : t("ranked");
  const notices = encodings.flatMap(({ encoding, notices: texts }) => texts.map((text) =>
    el("li", {}, t.parts("untrained", whole(length), nameNode(encoding), el("span", { lang: "en" }, text)))));
  return [encodings.length > 1 && el("li", {}, t.parts("best", whole(length), nameNode(best)), reason), notices];
}

export function drawLengths() {
  if (!at.length) return;
  const names = unique(at.flatMap(({ encodings }) => encodings.map(({ encoding }) => encoding)));
  const series = names.map((name) => {
    const rows = at.map(({ length, encodings }) => [place(length), encodings.find(({ encoding }) => encoding === name)]);
    return { name, model: name, points: rows.map(([x, { mean }]) => [x, mean]),
      ends: rows.filter(([, { low, high }]) => known(low) && known(high)).map(([x, { low, high }]) => [x, low, high]) };
  });
  const values = series.flatMap(({ points }) => points.map(([, value]) => value));
  const logarithmic = !metric.share && smallest(values) > 0 && largest(values) / smallest(values) > 30;
  const written = metric.share ? (value) => `${compact(100 * value)}\u00a0%` : compact;
  const ticks = at.map(({ length }) => [place(length), whole(length)]);
  const mark = known(trained) ? [place(trained), t("trained", whole(trained))] : null;
  const across = language() === "ko" && Object.hasOwn(KOREAN, unit) ? KOREAN[unit] : unit;
  drawLines(box, metricTitle(), series, across, { written, ticks, mark, logarithmic, top: metric.share ? 1 : null });
}

/** The figure and the verdicts, or nothing without other lengths. */
export function lengthsFigure() {
  if (!at.length) return null;
  const title = t("title", metricTitle());
  return el("div", { id: "lengths" }, figure("by-length", title, box, [el("h3", {}, title), t("about")]),
    el("ul", { class: "note" }, at.map(verdict)), el("p", { class: "note" }, t("corrected")));
}
