import { block, el, number, token } from "./data.js";
import { cellNames, factor, keptPage, limits, math, numbered, panelNote, scrolling, smallMap, tableOf, withDetail } from "./panelkit.js";

const walkShown = 16; // numbers of a row that are written out
const walkHidden = -3e38;
const walkPages = new WeakMap(); // detail -> what was drawn of it

export const walkPanel = {
  id: "walk", title: "walkTitle",
  draw(root, app) {
    return withDetail(root, app, (detail) => keptPage(root, app, walkPages, detail, () => walkPage(app, detail)));
  },
};

function walkPage(app, detail) {
  const steps = detail.steps.map((step) => ({ ...step, ...block(step.matrix) }));
  const intro = panelNote();
  const cards = steps.map((step, place) => walkCard(app, detail, steps, place));
  const node = el("div", { class: "walk" }, intro, el("ol", {}, ...cards.map((card) => card.node)),
    panelNote(app.t("walkError", number(detail.walk_error))));
  const follow = ([chosen, key]) => {
    const query = detail.query ?? chosen;
    const other = query === chosen ? "" : ` ${app.t("walkOther", query)}`;
    intro.textContent = app.t("walkIntro", ...cellNames(app, [query, key])) + other;
    for (const card of cards) card.follow(query, key);
  };
  return { node, follow };
}

const walkIsGrid = (step) => step.rows === "queries" && step.columns === "keys";
const walkRow = (step, query, key) => ({ queries: query, keys: key })[step.rows] ?? null;
const walkLine = (step, row) => step.data.subarray(row * step.shape[1], (row + 1) * step.shape[1]);
const walkClose = (one, two) => Math.abs(one - two) <= 1e-3 * Math.max(1, Math.abs(one), Math.abs(two));
// One step of a recurrent decoder has one row, whichever query was chosen.
const walkOf = (step, query, key) => walkLine(step, step.shape[0] === 1 ? 0 : walkRow(step, query, key) ?? 0);

function walkCard(app, detail, steps, place) {
  const step = steps[place];
  const [rows, columns] = step.shape;
  const hidden = step.data.map((value) => value < walkHidden ? 1 : 0);
  const { low, high } = limits(step.data, hidden);
  const size = Math.max(-low, high);
  const range = low < 0 ? { low: -size, high: size, signed: true } : { low: 0, high: high || 1 };
  const map = smallMap(step.data, step.shape, { ...range, hidden }, step.name, 200);
  const numbers = el("div");
  const node = el("li", {},
    el("h3", {}, step.name, el("span", {}, ` ${step.formula} (${(step.of ?? step.shape).join(" × ")})`)),
    el("div", { class: "walk-body" },
      el("div", {}, map.node, panelNote(`${number(range.low)} … ${number(range.high)}`, step.of && `${step.of}` !== `${step.shape}` ? ` · ${app.t("walkCut", rows, columns)}` : "")), el("div", {}, numbers, walkEqual(app, step))));
  const follow = (query, key) => {
    const row = walkRow(step, query, key);
    map.mark(rows === 1 && row !== null ? 0 : row, step.columns === "keys" && row !== null ? key : null);
    const { lines, focus, sum, words } = walkSum(app, detail, steps, place, query, key);
    numbers.replaceChildren(...[row === null ? null : walkTable(app, lines, focus),
      (sum || words) && el("p", { class: "walk-sum" }, words, sum && math(...sum))].filter(Boolean));
  };
  return { node, follow };
}

/** Rows of equal tokens: how many are still the same and how far the others are apart; each pair on request. */
function walkEqual(app, step) {
  const pairs = Object.entries(step.equal ?? {});
  if (!pairs.length) return "";
  const apart = (value) => value > -walkHidden ? "∞" : number(value);
  const most = pairs.reduce((top, [, value]) => Math.max(top, value), 0);
  const same = pairs.filter(([, value]) => value === 0).length;
  const list = el("ul");
  const fill = () => list.firstChild ?? list.append(...pairs.map(([names, value]) =>
    el("li", {}, `${token(names)}: `, value === 0 ? app.t("walkSame") : app.t("walkDiffer", apart(value)))));
  return el("details", { class: "note", ontoggle: fill }, el("summary", {}, app.t("walkEqual", pairs.length), " ",
    el("strong", {}, same === pairs.length ? app.t("walkSame") : app.t("walkDiffer", apart(most))), same && most ? `, ${app.t("walkSomeSame", same)}` : ""), list);
}

/** lines: [name, numbers] of equal length; focus: the column that the cell stands in. */
function walkTable(app, [heads, ...lines], focus) {
  const count = lines[0][1].length;
  const first = Math.max(0, Math.min((focus ?? 0) - walkShown / 2, count - walkShown));
  const shown = Array.from({ length: Math.min(walkShown, count) }, (_, place) => first + place);
  const here = (place) => place === focus ? "here" : null;
  const written = (value) => value < walkHidden ? "−∞" : number(value);
  const more = count - shown.length;
  return scrolling(lines[0][0], tableOf(["", ...shown.map((place) => el("th", { scope: "col", class: here(place) }, heads ? token(heads[place]) : String(place))),
    ...(more ? [el("td", { class: "note" }, app.t("panelMore", more))] : [])],
  lines.map(([name, numbers]) => [name, ...shown.map((place) => el("td", { class: here(place) }, written(numbers[place])))])));
}

// How a step's numbers follow from those of earlier steps. A rule is shown only where it gives the very number at hand,
// so a step of an unknown name gets its arithmetic too, and none gets a wrong one. ------------------------------------

/** {lines: [heads, [name, numbers]...], focus, sum: MathML, words}. */
function walkSum(app, detail, steps, place, query, key) {
  const step = steps[place];
  const own = walkOf(step, query, key);
  const row = step.shape[0] === 1 ? 0 : walkRow(step, query, key) ?? 0;
  const label = step.row_names?.[row] === undefined ? step.name : numbered(step.row_names, row);
  const plain = { lines: [step.column_names, [label, own]], focus: walkIsGrid(step) || step.columns === "keys" ? key : null };
  const earlier = steps.slice(0, place).reverse();
  if (walkIsGrid(step)) {
    const before = earlier.find(walkIsGrid);
    if (before) return { ...plain, ...walkCellRule(app, detail, walkOf(before, query, key), own, key) };
    return walkDot(app, earlier, own, query, key) ?? plain;
  }
  if (step.columns !== "components" || step.rows === "parameter") return plain;
  const sum = walkTurn(step, earlier, own, query, key);
  return walkMix(app, step, earlier, own, query, key) ?? { ...plain, sum, words: sum && `${app.t("walkComponent", 0)}: ` };
}

/** From one score to the next: hidden, kept, softmax, scaled, or something added. */
function walkCellRule(app, detail, before, own, key) {
  const [from, to] = [before[key], own[key]];
  const visible = before.map((value) => value < walkHidden ? -Infinity : value);
  const top = visible.reduce((one, two) => Math.max(one, two), -Infinity);
  const shift = Math.abs(top) > 20 ? top : 0;
  const total = visible.reduce((sum, value) => sum + Math.exp(value - shift), 0);
  if (to < walkHidden || (from < walkHidden && to === 0)) return { words: app.t("walkUnseen") };
  if (Math.abs(own.reduce((sum, value) => sum + value, 0) - 1) < 1e-3 && walkClose(Math.exp(from - shift) / total, to)) {
    const power = (value) => ["msup", "e", shift ? ["mrow", value, "−", factor(shift)] : value];
    const others = [...visible.keys()].filter((place) => visible[place] > -Infinity);
    const shown = others.slice(0, 3).flatMap((place, index) => [...(index ? ["+"] : []), power(visible[place])]);
    return { sum: [["mfrac", power(from), ["mrow", ...shown, ...(others.length > 3 ? ["+", "…"] : [])]], "=",
      ["mfrac", Math.exp(from - shift), total], "=", to] };
  }
  if (walkClose(from, to) && own.every((value, place) => walkClose(value, before[place]) || value < walkHidden)) return { words: app.t("walkKept", number(to)) };
  const width = detail.scale ** -2;
  if (own.every((value, place) => value < walkHidden || walkClose(before[place] * detail.scale, value))) {
    const root = Math.abs(width - Math.round(width)) < 1e-3 && width > 1.5;
    return { sum: root ? [["mfrac", from, ["msqrt", String(Math.round(width))]], "=", ["mfrac", from, width ** 0.5], "=", to] : [from, "×", detail.scale, "=", to] };
  }
  return { sum: [from, "+", factor(to - from), "=", to] };
}

const walkVectors = (steps, rows) => steps.filter((step) => step.rows === rows && step.columns === "components");
const walkTerms = (one, two) => one.map((value, place) => value * two[place]);
const walkInner = (one, two) => walkTerms(one, two).reduce((sum, value) => sum + value, 0);

/** a1 b1 + a2 b2 + ... = total, the first three and the last. */
function walkSumOf(one, two, total) {
  const last = one.length - 1;
  const term = (place) => [factor(one[place]), "·", factor(two[place])];
  const shown = one.length > 4 ? [0, 1, 2] : [...one.keys()];
  return [...shown.flatMap((place, index) => [...(index ? ["+"] : []), ...term(place)]), ...(one.length > 4 ? ["+", "…", "+", ...term(last)] : []), "=", total];
}

/** A score as the product of two vectors: of the query's and the key's, or of the key's and a parameter. */
function walkDot(app, earlier, scores, query, key) {
  const sides = [...walkVectors(earlier, "queries"), ...walkVectors(earlier, "parameter").filter((step) => step.shape[0] === 1)];
  for (const one of sides) {
    for (const two of walkVectors(earlier, "keys")) {
      if (one.shape[1] !== two.shape[1]) continue;
      const a = walkOf(one, query, key);
      if (![...scores.keys()].every((other) => other > 7 || walkClose(walkInner(a, walkOf(two, query, other)), scores[other]))) continue;
      const b = walkOf(two, query, key);
      const own = one.rows === "queries" ? ["msub", "q", String(query)] : one.name;
      return { lines: [null, [one.name, a], [two.name, b], [app.t("walkProduct"), walkTerms(a, b)]], focus: null,
        sum: [own, "·", ["msub", "k", String(key)], "=", ...walkSumOf(a, b, scores[key])] };
    }
  }
  return null;
}

/** The weighted sum of the values, for component 0. */
function walkMix(app, step, earlier, own, query, key) {
  const weights = earlier.find(walkIsGrid);
  if (!weights || step.rows !== "queries") return null;
  const line = walkOf(weights, query, key);
  for (const values of walkVectors(earlier, "keys")) {
    if (values.shape[1] !== own.length || values.shape[0] !== line.length) continue;
    const column = (place) => line.map((_, row) => values.data[row * values.shape[1] + place]);
    const fits = [0, own.length - 1].every((place) => walkClose(walkInner(line, column(place)), own[place]));
    if (!fits) continue;
    const first = column(0);
    return { lines: [weights.column_names, [weights.name, line], [`${values.name}, ${app.t("walkComponent", 0)}`, first], [app.t("walkProduct"), walkTerms(line, first)]],
      focus: key, words: `${app.t("walkComponent", 0)}: `, sum: walkSumOf(line, first, own[0]) };
  }
  return null;
}

/** What was added to, or by which angle was turned, the vector that this one is named after; component 0. */
function walkTurn(step, earlier, own, query, key) {
  const source = walkVectors(earlier, step.rows).find((other) => other.shape[1] === own.length && step.name.includes(other.name));
  if (!source) return null;
  const old = walkOf(source, query, key);
  if (step.name.includes("+")) return [old[0], "+", factor(own[0] - old[0]), "=", own[0]];
  const half = own.length / 2;
  for (const [pair, step] of [[1, 2], [half, 1]]) { // neighbours, or halves
    const lengths = (line) => Array.from({ length: half }, (_, place) => Math.hypot(line[step * place], line[step * place + pair]));
    const turned = lengths(own);
    if (!lengths(old).every((length, place) => walkClose(length, turned[place]))) continue;
    const angle = Math.atan2(old[0] * own[pair] - old[pair] * own[0], old[0] * own[0] + old[pair] * own[pair]);
    return [factor(old[0]), "·", "cos", "(", angle, ")", "−", factor(old[pair]), "·", "sin", "(", angle, ")", "=", own[0]];
  }
  return null;
}
