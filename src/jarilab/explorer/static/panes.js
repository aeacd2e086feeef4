// What there is to draw of the open head in every model: numbers, hidden cells, names of rows and columns.
import { block } from "kit/blocks.js";
import { visibleKeys } from "kit/draw.js";
import { known } from "kit/numbers.js";
import { largestOf, maxPool } from "kit/weights.js";
import { differenceOf } from "./compare.js";
import { drawnSite, hiddenUnder } from "./edits.js";
import { meaningsOf } from "./meaning.js";
import { headWeights, isSpecial, siteHidden, siteTokens } from "./sites.js";
import { t } from "./words.js";

/** Everything there is to draw of the open head, for the maps and for the export. */
export function panesOf(app) {
  const { views } = app.payload;
  const { head } = app.state;
  const panes = views.map((view, index) => {
    const site = app.site(index);
    const { why, data, plainHidden } = !site || head >= site.heads ? { why: t("noHead", app.state.site, app.state.head, headsThere(view)) } : numbersOf(app, view, index, site);
    if (why) return { name: view.name, view, index, why };
    const seen = plainHidden ?? (drawnOf(app) === "weights" ? hiddenUnder(index, site, head) : siteHidden(site));
    const leftOut = leftOutBy(app.state.pair, view, site);
    return { kind: "map", isPlain: Boolean(plainHidden ?? leftOut), name: view.name, view, index, site, data, hidden: leftOut?.map((left, at) => left || seen?.[at] ? 1 : 0) ?? seen, leftOut,
      keys: leftOut && visibleKeys({ hidden: seen, pooled: site.pooled }, ...site.shape), strip: null,
      rowTokens: siteTokens(view, site, "queries"), columnTokens: siteTokens(view, site, "keys"),
      ...(site.pooled > 1 ? {} : { rowMeanings: meaningsOf(view, site.queries), columnMeanings: meaningsOf(view, site.keys) }) };
  });
  const shown = panes.filter((pane) => pane.site);
  // Norms of values have no even share, and no largest value but their own.
  const scale = drawnOf(app) === "valued" ? "fit" : app.state.scale;
  const high = scale === "fit" ? Math.max(...shown.map((pane) => largestOf(pane.data, pane.hidden))) || 1 : 1;
  for (const pane of shown) pane.options = { low: 0, high, scale, hidden: pane.hidden, pooled: pane.site.pooled, keys: pane.keys };
  if (views.length < 2 || app.state.display === "lines") return panes;
  const difference = differenceOf(app, panes[app.state.first], panes[app.state.second]);
  if (!difference.why) difference.options = { low: -difference.high, high: difference.high, signed: true, hidden: difference.hidden };
  return [...panes, { name: t("difference"), ...difference }];
}

/** Which heads a model has instead, in words. */
const headsThere = ({ sites }) => sites.length > 1 ? `${sites[0].site} – ${sites.at(-1).site}` : sites[0].site;

/** What is drawn; lines are always of the weights. */
export const drawnOf = ({ state: { display, drawn } }) => display === "lines" ? "weights" : drawn;

/** The numbers of one model's map, or {why} there are none. */
function numbersOf(app, view, index, site) {
  const drawn = drawnOf(app);
  if (drawn === "weights") return withoutSpecial(app, view, site, headWeights(drawnSite(index, site), app.state.head), hiddenUnder(index, site, app.state.head));
  if (drawn === "rollout") return site.kind === "encoder" && view.rollout ? { data: block(view.rollout).data } : { why: t("noRollout") };
  const { why, detail } = app.opened(index);
  if (!detail?.valued) return { why: why ?? t("noValued") };
  const { data, shape } = block(detail.valued);
  return site.pooled === 1 ? { data } : maxPool(data, null, shape, site.pooled);
}

/** 1 where a weight does not lead from one sentence of a pair to the other, as `pair` chooses; null where all are shown. */
export function leftOutBy(pair, { sides }, site) {
  const [row, column] = [sides[site.queries].second, sides[site.keys].second];
  if (pair === "all" || !known(row) || !known(column) || site.pooled > 1) return null;
  const [rows, columns] = site.shape;
  const isFirst = (place, second) => place < second === (pair === "ab");
  return Uint8Array.from({ length: rows * columns }, (_, at) => isFirst(Math.floor(at / columns), row) && !isFirst(at % columns, column) ? 0 : 1);
}

/** Where that is chosen: the keys that are special tokens hidden, and the other weights of a row made to add up to 1 again. */
function withoutSpecial(app, view, site, data, hidden) {
  const special = site.pooled > 1 ? [] : siteTokens(view, site, "keys").map(isSpecial);
  if (!app.state.plain || !special.some(Boolean) || special.every(Boolean)) return { data };
  const columns = special.length;
  const plainHidden = data.map((_, at) => hidden?.[at] || special[at % columns] ? 1 : 0);
  const rest = data.map((weight, at) => plainHidden[at] ? 0 : weight);
  const sums = Array.from({ length: site.shape[0] }, (_, row) => rest.subarray(row * columns, (row + 1) * columns).reduce((sum, weight) => sum + weight, 0));
  return { data: rest.map((weight, at) => sums[Math.floor(at / columns)] ? weight / sums[Math.floor(at / columns)] : 0), plainHidden };
}
