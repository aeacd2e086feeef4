// Two models on the same input: the signed difference of their weights, and how far their rows lie apart.
import { el, headWeights, known, largestOf, number, siteHidden, siteTokens } from "./data.js";

const compareSame = (first, second) => first.length === second.length && first.every((item, place) => item === second[place]);

/** Jensen-Shannon divergence of two rows in nats, at most ln 2; weights were rounded, so rows are made to add up to 1 again. */
function compareRow(first, second, start, columns) {
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

/** {why} in words, or the difference second - first with its rows' divergence. */
export function differenceOf(app) {
  const { first, second, head } = app.state;
  const [views, sites] = [[app.view(first), app.view(second)], [app.site(first), app.site(second)]];
  if (first === second) return { why: app.t("sameModel") };
  if (sites.some((site) => !site || head >= site.heads)) return { why: app.t("noHead") };
  for (const side of ["queries", "keys"]) {
    const [one, two] = [0, 1].map((place) => views[place].sides[sites[place][side]]?.tokens ?? []);
    if (!compareSame(one, two)) return { why: app.t(`other_${side}`) };
  }
  if (!compareSame(sites[0].shape, sites[1].shape)) return { why: app.t("otherShape") };
  const [one, two] = sites.map((site) => headWeights(site, head));
  const [rows, columns] = sites[0].shape;
  const masks = sites.map(siteHidden);
  const hidden = masks.every(Boolean) ? masks[0].map((flag, place) => flag & masks[1][place]) : null;
  const data = two.map((value, place) => value - one[place]);
  const pooled = sites[0].pooled > 1;
  const strip = pooled ? null : Array.from({ length: rows }, (_, row) => compareRow(one, two, row * columns, columns));
  const told = strip?.filter(known) ?? [];
  return {
    kind: "difference", name: `${views[1].name} − ${views[0].name}`, view: views[1], site: sites[1], data, hidden, strip,
    rowTokens: siteTokens(views[1], sites[1], "queries"), columnTokens: siteTokens(views[1], sites[1], "keys"), high: largestOf(data, hidden) || 1,
    mean: told.length ? told.reduce((sum, value) => sum + value, 0) / told.length : null,
  };
}

/** What the strip says in one number, beside the noise between seeds where that is known. */
export function differenceNote(app, { mean }) {
  const { noise } = app.payload;
  if (mean === null) return el("p", { class: "note" }, app.t("noDivergence"));
  return el("p", { class: "note" }, app.t("divergence", number(mean)), " ", noise
    ? [app.t("noise", number(noise.value)), " ", el("b", {}, app.t(mean > noise.value ? "aboveNoise" : "belowNoise")), " ", el("bdi", {}, noise.about ?? "")]
    : app.t("noNoise"));
}
