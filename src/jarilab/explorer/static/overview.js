// Every head of the chosen model as a small map.
import { note } from "web/controls.js";
import { el, refill } from "web/elements.js";
import { drawSmall, headsGrid, markHeads } from "web/heads.js";
import { number } from "web/numbers.js";
import { headWeights, kindsOf, siteHidden, wordsOf } from "./sites.js";
import { t } from "./words.js";

export function drawOverview(root, app) {
  const { lock, range } = app.state;
  const about = lock ? "thumbsLocked" : range === "full" ? "thumbsFull" : "thumbsFit";
  refill(root, kindsOf(app.view()).map(([kind, sites]) => kindFigure(app, kind, sites)), note(t(about, number(lock ?? 1))));
  markOverview(root, app);
}

function kindFigure(app, kind, sites) {
  const rows = sites.map((site) => ({ label: site.layer, title: site.site, heads: site.heads }));
  const grid = headsGrid(t(`kind_${kind}`), rows, (place, head) => headCell(app, sites[place], head));
  return el("figure", { class: "kind" }, el("figcaption", {}, el("b", {}, t(`kind_${kind}`)), " ", t(wordsOf(app.view(), `sides_${kind}`))), grid);
}

function headCell(app, site, head) {
  const { lock, range, scale } = app.state;
  const weights = { data: headWeights(site, head), hidden: siteHidden(site), shape: site.shape };
  const name = t("headName", site.site, head);
  const attributes = { "data-site": site.site, "data-keep": `${site.site} ${head}`, "aria-label": name, title: name,
    onclick: () => app.set({ site: site.site, head }) };
  const high = lock ?? (range === "full" ? 1 : null); // null: each its own
  return { shape: site.shape, attributes, paint: (canvas) => drawSmall(canvas, site, head, weights, { high, scale }) };
}

/** Frame the head that is open. */
export function markOverview(root, app) {
  const { site, head } = app.state;
  markHeads(root, (button) => button.site === site && Number(button.head) === head);
}
