import { block, el, number, percent } from "./data.js";
import { legendNode } from "./draw.js";
import { hiddenOf, keptPage, limits, panelNote, pressable, refill, smallMap, withDetail } from "./panelkit.js";

const partsFirst = 8; // of many parts, the largest are drawn and the rest are summed
const partsPages = new WeakMap(); // detail -> what was drawn of it

export const partsPanel = {
  id: "parts", title: "partsTitle",
  draw(root, app) {
    return withDetail(root, app, (detail) => keptPage(root, app, partsPages, detail, () => partsPage(app, detail)));
  },
};

/** Rows less their means over what can be seen: a constant along a row makes no difference to the softmax. */
function partsCentred(data, hidden, [rows, columns]) {
  const centred = new Float32Array(data.length);
  for (let row = 0; row < rows; row += 1) {
    const places = Array.from({ length: columns }, (_, column) => row * columns + column).filter((place) => !hidden?.[place]);
    const mean = places.reduce((sum, place) => sum + data[place], 0) / (places.length || 1);
    for (const place of places) centred[place] = data[place] - mean;
  }
  return centred;
}

const partsInner = (one, two) => one.reduce((sum, value, place) => sum + value * two[place], 0);
const partsAdd = (maps) => maps.reduce((sum, data) => sum.map((value, place) => value + data[place]));

function partsPage(app, detail) {
  const scores = block(detail.scores);
  const hidden = hiddenOf(app, scores.shape);
  const total = partsCentred(scores.data, hidden, scores.shape);
  const variance = partsInner(total, total);
  const measured = (detail.parts ?? []).map(({ name, matrix }) => {
    const { data } = block(matrix);
    const centred = partsCentred(data, hidden, scores.shape);
    return { name, data, share: variance ? partsInner(centred, total) / variance : 0, size: partsInner(centred, centred) };
  });
  const sum = { name: app.t("partsSum"), data: scores.data };
  const node = el("div", {});
  let [cell, figures] = [[0, 0], []];
  const follow = (chosen) => {
    cell = chosen;
    for (const figure of figures) figure.follow(cell);
  };
  const fill = (all) => {
    const many = measured.length > partsFirst + 1;
    const shown = [...(many ? partsSorted(app, measured, all) : measured), ...(measured.length === 1 ? [] : [sum])];
    const ranges = shown.map((part) => limits(part.data, hidden));
    const size = Math.max(1e-9, ...ranges.map(({ low, high }) => Math.max(-low, high)));
    const range = { low: -size, high: size, signed: true };
    figures = shown.map((part) => partsFigure(app, part, scores.shape, { ...range, hidden }));
    refill(node, el("p", {}, measured.length > 1 ? detail.parts_about : app.t("partsNone")), el("div", { class: "parts-grid" }, ...figures.map((figure) => figure.node)),
      many && pressable("parts", all ? app.t("partsFew") : app.t("partsAll", measured.length), () => fill(!all)), legendNode(range, app.t("partsRange"), null),
      measured.length > 1 && panelNote(app.t("partsError", number(detail.parts_error)), " ", app.t("partsShares")));
    follow(cell);
  };
  fill(false);
  return { node, follow };
}

/** Many parts, the largest first; all, or the rest of them summed. */
function partsSorted(app, measured, all) {
  const sorted = [...measured].sort((one, two) => two.size - one.size);
  if (all) return sorted;
  const rest = sorted.slice(partsFirst);
  return [...sorted.slice(0, partsFirst), { name: app.t("partsRest", rest.length), data: partsAdd(rest.map((part) => part.data)), share: rest.reduce((sum, part) => sum + part.share, 0) }];
}

function partsFigure(app, { name, data, share }, shape, options) {
  const map = smallMap(data, shape, options, name, 170);
  const value = el("span", {});
  const words = share === undefined ? null : el("span", {}, app.t("partsShare", percent(share).replace("-", "−")));
  const node = el("figure", { class: share === undefined ? "parts-sum" : null }, map.node, el("figcaption", {}, el("strong", {}, name), words, value));
  const follow = ([query, key]) => {
    map.mark(query, key);
    value.textContent = app.t("partsCell", number(data[query * shape[1] + key]));
  };
  return { node, follow };
}
