// Two models on the same input: the signed difference of their weights, and how far their rows lie apart.
import { el } from "kit/elements.js";
import { known, number } from "kit/numbers.js";
import { largestOf } from "kit/weights.js";
import { drawnSite, hiddenUnder } from "./edits.js";
import { headWeights } from "./sites.js";
import { t } from "./words.js";

const sameItems = (first, second) => first.length === second.length && first.every((item, place) => item === second[place]);

/** Jensen-Shannon divergence of two rows in nats, at most ln 2; weights were rounded, so rows are made to add up to 1 again. */
function rowDivergence(first, second, start, columns) {
  let [firstSum, secondSum, divergence] = [0, 0, 0];
  for (let at = start; at < start + columns; at += 1) { firstSum += first[at]; secondSum += second[at]; }
  if (!firstSum || !secondSum) return null;
  for (let at = start; at < start + columns; at += 1) {
    const [one, two] = [first[at] / firstSum, second[at] / secondSum];
    const mean = (one + two) / 2;
    if (one > 0) divergence += one * Math.log(one / mean) / 2;
    if (two > 0) divergence += two * Math.log(two / mean) / 2;
  }
  return Math.max(0, divergence);
}

/** {why} in words, or the difference second - first of two maps with their rows' divergence. */
export function differenceOf(app, first, second) {
  const both = [first, second];
  if (first === second) return { why: t("sameModel") };
  if (both.some((pane) => !pane.site)) return { why: t("notBoth") };
  for (const side of ["rowTokens", "columnTokens"]) {
    if (sameItems(first[side], second[side])) continue;
    const shared = first.view.vocabulary === second.view.vocabulary;
    return { why: t(shared ? `other_${side}` : "otherVocabulary") };
  }
  if (!sameItems(first.site.shape, second.site.shape)) return { why: t("otherShape") };
  const apart = (app.state.drawn === "weights" || app.state.display === "lines") && first.view.experiment !== second.view.experiment;
  const match = apart ? matchOf(first, second) : null;
  if (match) second = { ...second, ...match };
  const [one, two] = [first.data, second.data];
  const [rows, columns] = first.site.shape;
  const hidden = first.hidden && second.hidden ? first.hidden.map((flag, place) => flag & second.hidden[place]) : null;
  const data = two.map((value, place) => value - one[place]);
  const shares = first.site.pooled === 1 && app.state.drawn !== "valued"; // rows add up to 1
  const strip = shares ? Array.from({ length: rows }, (_, row) => rowDivergence(one, two, row * columns, columns)) : null;
  const divergences = strip?.filter(known) ?? [];
  return {
    ...second, kind: "difference", name: match ? t("matchedName", second.name, match.head, first.name, app.state.head) : `${second.name} − ${first.name}`, match, index: null, data, hidden, strip, high: largestOf(data, hidden) || 1,
    mean: divergences.length ? mean(divergences) : null,
  };
}

const mean = (numbers) => numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
/** Heads of models trained apart have no common order: the head of the second model whose map lies nearest to the first. */
function matchOf({ data, site: { shape: [rows, columns] } }, { index, site }) {
  const heads = Array.from({ length: site.heads }, (_, head) => {
    const weights = headWeights(drawnSite(index, site), head);
    const apart = Array.from({ length: rows }, (_, row) => rowDivergence(data, weights, row * columns, columns)).filter(known);
    return { head, data: weights, apart: apart.length ? mean(apart) : Infinity };
  });
  const best = heads.reduce((one, other) => other.apart < one.apart ? other : one);
  return { ...best, hidden: hiddenUnder(index, site, best.head) };
}

/** What the strip says in one number, beside the noise between seeds where that is known. */
export function differenceNote(app, { mean, match, view }) {
  const { noise } = app.payload;
  if (match) return el("p", { class: "note" }, t("matched", match.head, view.name, app.state.head), " ", mean === null ? "" : t("divergence", number(mean)));
  if (mean === null) return el("p", { class: "note" }, t("noDivergence"));
  return el("p", { class: "note" }, t("divergence", number(mean)), " ", noise
    ? [t("noise", number(noise.value)), " ", el("b", {}, t(mean > noise.value ? "aboveNoise" : "belowNoise")), " ", el("bdi", {}, noise.about ?? "")]
    : t("noNoise"));
}
