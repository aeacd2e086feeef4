import { block } from "kit/blocks.js";
import { note, pressable } from "kit/controls.js";
import { legendNode } from "kit/draw.js";
import { adopt, el, refill } from "kit/elements.js";
import { number, percent } from "kit/numbers.js";
import { speaking } from "kit/words.js";
import { hasDetails, hiddenOf, keptPage, limits, smallMap, withDetail } from "./kit.js";
import { WORDS } from "../words.js";

const t = speaking({
  title: ["Parts of the score", "점수의 성분"],
  shares: ["Share: covariance of the part with the score along the rows, divided by the variance of the score. The shares add up to 100 %. A negative share works against the sum.",
    "몫: 행 방향으로, 성분과 점수의 공분산을 점수의 분산으로 나눈 값입니다. 합은 100 %이며, 음수는 합을 거스르는 성분입니다."],
  sum: ["sum = the score", "합 = 점수"],
  rest: ["the other {0}, summed", "나머지 {0}개의 합"],
  all: ["Show all {0}", "{0}개 모두 보기"],
  few: ["Show the largest only", "큰 것만 보기"],
  range: ["one colour range for all parts", "모든 성분에 같은 색 범위"],
  error: ["The parts add up to the score with an error of {0}.", "성분의 합과 점수의 차이는 {0}입니다."],
  share: ["{0} of the variance", "분산의 {0}"],
  cell: ["at the cell: {0}", "이 칸: {0}"],
  none: ["The score of this head has only one part here.", "이 헤드의 점수는 성분이 하나뿐입니다."],
}, WORDS);

adopt(
  ".parts-grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); gap: 1.2rem; margin-bottom: 1rem; }",
  ".parts-grid figcaption { display: grid; }",
  ".parts-grid strong { color: var(--ink); }",
  ".parts-grid figure { border-top: 3px solid transparent; padding-top: .3rem; }",
  ".parts-grid .parts-sum { border-color: var(--ink); }",
);

const FIRST = 8; // of many parts, the largest are drawn and the rest are summed
const pages = new WeakMap(); // detail -> what was drawn of it

export const panel = {
  id: "parts", title: () => t("title"), there: (app) => hasDetails(app, "parts"),
  draw(root, app) {
    return withDetail(root, app, (detail) => keptPage(root, app, pages, detail, () => page(app, detail)));
  },
};

/** Rows less their means over what can be seen: a constant along a row makes no difference to the softmax. */
function centredRows(data, hidden, [rows, columns]) {
  const centred = new Float32Array(data.length);
  for (let row = 0; row < rows; row += 1) {
    const places = Array.from({ length: columns }, (_, column) => row * columns + column).filter((place) => !hidden?.[place]);
    const mean = places.reduce((sum, place) => sum + data[place], 0) / (places.length || 1);
    for (const place of places) centred[place] = data[place] - mean;
  }
  return centred;
}

const inner = (one, two) => one.reduce((sum, value, place) => sum + value * two[place], 0);
const added = (maps) => maps.reduce((sum, data) => sum.map((value, place) => value + data[place]));

function page(app, detail) {
  const scores = block(detail.scores);
  const hidden = hiddenOf(app, scores.shape);
  const total = centredRows(scores.data, hidden, scores.shape);
  const variance = inner(total, total);
  const measured = (detail.parts ?? []).map(({ name, matrix }) => {
    const { data } = block(matrix);
    const centred = centredRows(data, hidden, scores.shape);
    return { name, data, share: variance ? inner(centred, total) / variance : 0, size: inner(centred, centred) };
  });
  const sum = { name: t("sum"), data: scores.data };
  const node = el("div", {});
  let [cell, figures] = [[0, 0], []];
  const follow = (chosen) => {
    cell = chosen;
    for (const figure of figures) figure.follow(cell);
  };
  const fill = (all) => {
    const many = measured.length > FIRST + 1;
    const shown = [...(many ? sortedParts(app, measured, all) : measured), ...(measured.length === 1 ? [] : [sum])];
    const ranges = shown.map((part) => limits(part.data, hidden));
    const size = Math.max(1e-9, ...ranges.map(({ low, high }) => Math.max(-low, high)));
    const range = { low: -size, high: size, signed: true };
    figures = shown.map((part) => figureOf(app, part, scores.shape, { ...range, hidden }));
    refill(node, el("p", {}, measured.length > 1 ? detail.parts_about : t("none")), el("div", { class: "parts-grid" }, ...figures.map((figure) => figure.node)),
      many && pressable("parts", all ? t("few") : t("all", measured.length), () => fill(!all)), legendNode(range, t("range"), null),
      measured.length > 1 && note(t("error", number(detail.parts_error)), " ", t("shares")));
    follow(cell);
  };
  fill(false);
  return { node, follow };
}

/** Many parts, the largest first; all, or the rest of them summed. */
function sortedParts(app, measured, all) {
  const sorted = [...measured].sort((one, two) => two.size - one.size);
  if (all) return sorted;
  const rest = sorted.slice(FIRST);
  return [...sorted.slice(0, FIRST), { name: t("rest", rest.length), data: added(rest.map((part) => part.data)), share: rest.reduce((sum, part) => sum + part.share, 0) }];
}

function figureOf(app, { name, data, share }, shape, options) {
  const map = smallMap(data, shape, options, name, 170);
  const value = el("span", {});
  const words = share === undefined ? null : el("span", {}, t("share", percent(share).replace("-", "−")));
  const node = el("figure", { class: share === undefined ? "parts-sum" : null }, map.node, el("figcaption", {}, el("strong", {}, name), words, value));
  const follow = ([query, key]) => {
    map.mark(query, key);
    value.textContent = t("cell", number(data[query * shape[1] + key]));
  };
  return { node, follow };
}
