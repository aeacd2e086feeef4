import { block } from "kit/blocks.js";
import { note, scrolling, tableOf } from "kit/controls.js";
import { adopt, el } from "kit/elements.js";
import { number } from "kit/numbers.js";
import { token } from "kit/tokens.js";
import { speaking } from "kit/words.js";
import { factor, math } from "./formula.js";
import { cellNames, hasDetails, keptPage, limits, numbered, smallMap, withDetail } from "./kit.js";
import { WORDS } from "../words.js";

const t = speaking({
  title: ["Step by step", "단계별로"],
  intro: ["How {0} comes to look at {1}, in the model's own numbers. Choose a cell in the map above (click, or Enter) to follow another.",
    "쿼리 {0}, 키 {1}: 가중치가 나오는 과정을 모델의 실제 수로 따라갑니다. 위 맵에서 칸을 고르면(클릭 또는 Enter) 다른 쌍을 봅니다."],
  other: ["This file holds only the steps of query {0}.", "이 파일에는 쿼리 {0}의 과정만 들어 있습니다."],
  error: ["The last matrix is {0} away from the model's own output.", "마지막 행렬과 모델 출력의 차이는 {0}입니다."],
  same: ["the same row", "같은 행"],
  differ: ["differ by up to {0}", "최대 {0} 차이"],
  equal: ["Equal tokens ({0} pairs):", "같은 토큰({0}쌍):"],
  someSame: ["{0} the same", "{0}쌍은 같음"],
  cut: ["the first {0} × {1} of it", "처음 {0} × {1}"],
  product: ["product", "곱"],
  component: ["component {0}", "성분 {0}"],
  unseen: ["This query cannot see this key: its score becomes −∞ and its weight exactly 0.",
    "이 쿼리는 이 키를 볼 수 없습니다. 점수는 −∞, 가중치는 정확히 0이 됩니다."],
  kept: ["This cell does not change: {0}.", "이 칸은 그대로입니다: {0}."],
}, WORDS);

adopt(
  ".walk ol { list-style: none; counter-reset: walk; margin: 0; padding: 0; }",
  ".walk > ol > li { counter-increment: walk; border-top: 1px solid var(--line); padding: .8rem 0; }",
  ".walk h3 { margin: 0 0 .5rem; font: 650 var(--t3)/1.4 var(--sans); }",
  ".walk h3::before { content: counter(walk) '. '; color: var(--muted); }",
  ".walk h3 span { font-weight: 400; color: var(--muted); font-size: var(--t2); }",
  ".walk p { margin: .3rem 0; }",
  ".walk tbody th { max-width: 9rem; overflow: hidden; text-overflow: ellipsis; }",
  ".walk .here { background: var(--tint); box-shadow: inset 1.5px 0 var(--ink), inset -1.5px 0 var(--ink); }",
  ".walk-body { display: grid; grid-template-columns: 13rem minmax(0, 1fr); gap: .6rem 1.8rem; align-items: start; }",
  ".walk-sum { overflow-x: auto; padding: .3rem 0; max-width: none; }",
  ".walk-sum mfrac > * { padding-block: .12em; }",
  ".walk-sum math { font-size: var(--t3); font-family: 'STIX Two Math', 'Latin Modern Math', 'Cambria Math', math, var(--serif); }",
  "@media (max-width: 40rem) { .walk-body { grid-template-columns: minmax(0, 1fr); } }",
);

const SHOWN = 16; // numbers of a row that are written out
const HIDDEN = -3e38;
const pages = new WeakMap(); // detail -> what was drawn of it

export const panel = {
  id: "walk", title: () => t("title"), there: (app) => hasDetails(app, "walk"),
  draw(root, app) {
    return withDetail(root, app, (detail) => keptPage(root, app, pages, detail, () => page(app, detail)));
  },
};

function page(app, detail) {
  const steps = detail.steps.map((step) => ({ ...step, ...block(step.matrix) }));
  const intro = note();
  const cards = steps.map((step, place) => cardOf(app, detail, steps, place));
  const node = el("div", { class: "walk" }, intro, el("ol", {}, ...cards.map((card) => card.node)),
    note(t("error", number(detail.walk_error))));
  const follow = ([chosen, key]) => {
    const query = detail.query ?? chosen;
    const other = query === chosen ? "" : ` ${t("other", query)}`;
    intro.textContent = t("intro", ...cellNames(app, [query, key])) + other;
    for (const card of cards) card.follow(query, key);
  };
  return { node, follow };
}

const isGrid = (step) => step.rows === "queries" && step.columns === "keys";
const rowOf = (step, query, key) => ({ queries: query, keys: key })[step.rows] ?? null;
const lineOf = (step, row) => step.data.subarray(row * step.shape[1], (row + 1) * step.shape[1]);
const close = (one, two) => Math.abs(one - two) <= 1e-3 * Math.max(1, Math.abs(one), Math.abs(two));
// One step of a recurrent decoder has one row, whichever query was chosen.
const numbersOf = (step, query, key) => lineOf(step, step.shape[0] === 1 ? 0 : rowOf(step, query, key) ?? 0);

function cardOf(app, detail, steps, place) {
  const step = steps[place];
  const [rows, columns] = step.shape;
  const hidden = step.data.map((value) => value < HIDDEN ? 1 : 0);
  const { low, high } = limits(step.data, hidden);
  const size = Math.max(-low, high);
  const range = low < 0 ? { low: -size, high: size, signed: true } : { low: 0, high: high || 1 };
  const map = smallMap(step.data, step.shape, { ...range, hidden }, step.name, 200);
  const numbers = el("div");
  const node = el("li", {},
    el("h3", {}, step.name, el("span", {}, ` ${step.formula} (${(step.of ?? step.shape).join(" × ")})`)),
    el("div", { class: "walk-body" },
      el("div", {}, map.node, note(`${number(range.low)} … ${number(range.high)}`, step.of && `${step.of}` !== `${step.shape}` ? ` · ${t("cut", rows, columns)}` : "")), el("div", {}, numbers, equalNode(app, step))));
  const follow = (query, key) => {
    const row = rowOf(step, query, key);
    map.mark(rows === 1 && row !== null ? 0 : row, step.columns === "keys" && row !== null ? key : null);
    const { lines, focus, sum, words } = ruleOf(app, detail, steps, place, query, key);
    numbers.replaceChildren(...[row === null ? null : tableNode(app, lines, focus),
      (sum || words) && el("p", { class: "walk-sum", tabindex: 0 }, words, sum && math(...sum))].filter(Boolean));
  };
  return { node, follow };
}

/** Rows of equal tokens: how many are still the same and how far the others are apart; each pair on request. */
function equalNode(app, step) {
  const pairs = Object.entries(step.equal ?? {});
  if (!pairs.length) return "";
  const apart = (value) => value > -HIDDEN ? "∞" : number(value);
  const most = pairs.reduce((top, [, value]) => Math.max(top, value), 0);
  const same = pairs.filter(([, value]) => value === 0).length;
  const list = el("ul");
  const fill = () => list.firstChild ?? list.append(...pairs.map(([names, value]) =>
    el("li", {}, `${token(names)}: `, value === 0 ? t("same") : t("differ", apart(value)))));
  return el("details", { class: "note", ontoggle: fill }, el("summary", {}, t("equal", pairs.length), " ",
    el("strong", {}, same === pairs.length ? t("same") : t("differ", apart(most))), same && most ? `, ${t("someSame", same)}` : ""), list);
}

/** lines: [name, numbers] of equal length; focus: the column that the cell stands in. */
function tableNode(app, [heads, ...lines], focus) {
  const count = lines[0][1].length;
  const first = Math.max(0, Math.min((focus ?? 0) - SHOWN / 2, count - SHOWN));
  const shown = Array.from({ length: Math.min(SHOWN, count) }, (_, place) => first + place);
  const here = (place) => place === focus ? "here" : null;
  const written = (value) => value < HIDDEN ? "−∞" : number(value);
  const more = count - shown.length;
  return scrolling(lines[0][0], tableOf(["", ...shown.map((place) => el("th", { scope: "col", class: here(place) }, heads ? token(heads[place]) : String(place))),
    ...(more ? [el("td", { class: "note" }, t("more", more))] : [])],
  lines.map(([name, numbers]) => [name, ...shown.map((place) => el("td", { class: here(place) }, written(numbers[place])))])));
}

// How a step's numbers follow from those of earlier steps. A rule is shown only where it gives the very number at hand,
// so a step of an unknown name gets its arithmetic too, and none gets a wrong one. ------------------------------------

/** {lines: [heads, [name, numbers]...], focus, sum: MathML, words}. */
function ruleOf(app, detail, steps, place, query, key) {
  const step = steps[place];
  const numbers = numbersOf(step, query, key);
  const row = step.shape[0] === 1 ? 0 : rowOf(step, query, key) ?? 0;
  const label = step.row_names?.[row] === undefined ? step.name : numbered(step.row_names, row);
  const plain = { lines: [step.column_names, [label, numbers]], focus: isGrid(step) || step.columns === "keys" ? key : null };
  const earlier = steps.slice(0, place).reverse();
  if (isGrid(step)) {
    const before = earlier.find(isGrid);
    if (before) return { ...plain, ...cellRule(app, detail, numbersOf(before, query, key), numbers, key) };
    return dot(app, earlier, numbers, query, key) ?? plain;
  }
  if (step.columns !== "components" || step.rows === "parameter") return plain;
  const sum = turn(step, earlier, numbers, query, key);
  return mix(app, step, earlier, numbers, query, key) ?? { ...plain, sum, words: sum && `${t("component", 0)}: ` };
}

/** From one score to the next: hidden, kept, softmax, scaled, or something added. */
function cellRule(app, detail, before, numbers, key) {
  const [from, to] = [before[key], numbers[key]];
  const visible = before.map((value) => value < HIDDEN ? -Infinity : value);
  const top = visible.reduce((one, two) => Math.max(one, two), -Infinity);
  const shift = Math.abs(top) > 20 ? top : 0;
  const total = visible.reduce((sum, value) => sum + Math.exp(value - shift), 0);
  if (to < HIDDEN || (from < HIDDEN && to === 0)) return { words: t("unseen") };
  if (Math.abs(numbers.reduce((sum, value) => sum + value, 0) - 1) < 1e-3 && close(Math.exp(from - shift) / total, to)) {
    const power = (value) => ["msup", "e", shift ? ["mrow", value, "−", factor(shift)] : value];
    const others = [...visible.keys()].filter((place) => visible[place] > -Infinity);
    const shown = others.slice(0, 3).flatMap((place, index) => [...(index ? ["+"] : []), power(visible[place])]);
    return { sum: [["mfrac", power(from), ["mrow", ...shown, ...(others.length > 3 ? ["+", "…"] : [])]], "=",
      ["mfrac", Math.exp(from - shift), total], "=", to] };
  }
  if (close(from, to) && numbers.every((value, place) => close(value, before[place]) || value < HIDDEN)) return { words: t("kept", number(to)) };
  const width = detail.scale ** -2;
  if (numbers.every((value, place) => value < HIDDEN || close(before[place] * detail.scale, value))) {
    const root = Math.abs(width - Math.round(width)) < 1e-3 && width > 1.5;
    return { sum: root ? [["mfrac", from, ["msqrt", String(Math.round(width))]], "=", ["mfrac", from, width ** 0.5], "=", to] : [from, "×", detail.scale, "=", to] };
  }
  return { sum: [from, "+", factor(to - from), "=", to] };
}

const vectorsIn = (steps, rows) => steps.filter((step) => step.rows === rows && step.columns === "components");
const terms = (one, two) => one.map((value, place) => value * two[place]);
const inner = (one, two) => terms(one, two).reduce((sum, value) => sum + value, 0);

/** a1 b1 + a2 b2 + ... = total, the first three and the last. */
function sumOf(one, two, total) {
  const last = one.length - 1;
  const term = (place) => [factor(one[place]), "·", factor(two[place])];
  const shown = one.length > 4 ? [0, 1, 2] : [...one.keys()];
  return [...shown.flatMap((place, index) => [...(index ? ["+"] : []), ...term(place)]), ...(one.length > 4 ? ["+", "…", "+", ...term(last)] : []), "=", total];
}

/** A score as the product of two vectors: of the query's and the key's, or of the key's and a parameter. */
function dot(app, earlier, scores, query, key) {
  const sides = [...vectorsIn(earlier, "queries"), ...vectorsIn(earlier, "parameter").filter((step) => step.shape[0] === 1)];
  for (const one of sides) {
    for (const two of vectorsIn(earlier, "keys")) {
      if (one.shape[1] !== two.shape[1]) continue;
      const a = numbersOf(one, query, key);
      if (![...scores.keys()].every((other) => other > 7 || close(inner(a, numbersOf(two, query, other)), scores[other]))) continue;
      const b = numbersOf(two, query, key);
      const left = one.rows === "queries" ? ["msub", "q", String(query)] : one.name;
      return { lines: [null, [one.name, a], [two.name, b], [t("product"), terms(a, b)]], focus: null,
        sum: [left, "·", ["msub", "k", String(key)], "=", ...sumOf(a, b, scores[key])] };
    }
  }
  return null;
}

/** The weighted sum of the values, for component 0. */
function mix(app, step, earlier, numbers, query, key) {
  const weights = earlier.find(isGrid);
  if (!weights || step.rows !== "queries") return null;
  const line = numbersOf(weights, query, key);
  for (const values of vectorsIn(earlier, "keys")) {
    if (values.shape[1] !== numbers.length || values.shape[0] !== line.length) continue;
    const column = (place) => line.map((_, row) => values.data[row * values.shape[1] + place]);
    const fits = [0, numbers.length - 1].every((place) => close(inner(line, column(place)), numbers[place]));
    if (!fits) continue;
    const first = column(0);
    return { lines: [weights.column_names, [weights.name, line], [`${values.name}, ${t("component", 0)}`, first], [t("product"), terms(line, first)]],
      focus: key, words: `${t("component", 0)}: `, sum: sumOf(line, first, numbers[0]) };
  }
  return null;
}

/** What was added to, or by which angle was turned, the vector that this one is named after; component 0. */
function turn(step, earlier, numbers, query, key) {
  const source = vectorsIn(earlier, step.rows).find((other) => other.shape[1] === numbers.length && step.name.includes(other.name));
  if (!source) return null;
  const old = numbersOf(source, query, key);
  if (step.name.includes("+")) return [old[0], "+", factor(numbers[0] - old[0]), "=", numbers[0]];
  const half = numbers.length / 2;
  for (const [pair, step] of [[1, 2], [half, 1]]) { // neighbours, or halves
    const lengths = (line) => Array.from({ length: half }, (_, place) => Math.hypot(line[step * place], line[step * place + pair]));
    const turned = lengths(numbers);
    if (!lengths(old).every((length, place) => close(length, turned[place]))) continue;
    const angle = Math.atan2(old[0] * numbers[pair] - old[pair] * numbers[0], old[0] * numbers[0] + old[pair] * numbers[pair]);
    return [factor(old[0]), "·", "cos", "(", angle, ")", "−", factor(old[pair]), "·", "sin", "(", angle, ")", "=", numbers[0]];
  }
  return null;
}
