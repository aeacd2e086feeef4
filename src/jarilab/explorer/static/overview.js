// Every head of every model as a small map.
import { note } from "kit/controls.js";
import { el, refill } from "kit/elements.js";
import { drawSmall, headsGrid, markHeads, repaintHead, switchHead } from "kit/heads.js";
import { nameNode } from "kit/tokens.js";
import { toned } from "kit/tones.js";
import { looksSame } from "kit/weights.js";
import { drawnSite, headEdit, hiddenUnder, isInForce, toggleEdit } from "./edits.js";
import { headWeights, kindsOf, wordsOf } from "./sites.js";
import { t } from "./words.js";

export function drawOverview(root, app) {
  const { views } = app.payload;
  const ofView = (view, index) => toned(view.encoding, el("section", { class: "heads-of", "aria-label": view.name },
    views.length > 1 && el("h3", {}, nameNode(view.name)), kindsOf(view).map(([kind, sites]) => kindFigure(app, index, kind, sites))));
  refill(root, views.map(ofView), note(t(`thumbs_${app.state.scale}`)));
  for (const [button, cell] of cellsIn(root, app)) shown.set(button, cell.data);
  markOverview(root, app);
}

const shown = new WeakMap(); // button of a head -> the weights of its map

/** Only what edits have changed. */
export function repaintOverview(root, app) {
  for (const [button, { flip, data, paint }] of cellsIn(root, app)) {
    if (flip) switchHead(button, flip.on);
    if (looksSame(data, shown.get(button))) continue;
    shown.set(button, data);
    repaintHead(button, paint);
  }
}
/** [button, cell] of every head there is. */
function cellsIn(root, app) {
  return [...root.querySelectorAll("button[data-site]")].map((button) => {
    const { view, site, head } = button.dataset;
    const of = app.view(Number(view)).sites.find((one) => one.site === site);
    return [button, headCell(app, Number(view), of, Number(head))];
  });
}

function kindFigure(app, index, kind, sites) {
  const view = app.view(index);
  const rows = sites.map((site) => ({ label: rowName(site, sites), title: site.site, heads: site.heads }));
  const grid = headsGrid(`${view.name}: ${t(`kind_${kind}`)}`, rows, (place, head) => headCell(app, index, sites[place], head));
  return el("figure", { class: "kind" }, el("figcaption", {}, el("b", {}, t(`kind_${kind}`)), " ", t(wordsOf(view, `sides_${kind}`))), grid);
}

/** The layer; where several sites have it, such as windows, what their names say behind the kind: 0.1·15. */
function rowName(site, sites) {
  const several = sites.some((other) => other !== site && other.layer === site.layer);
  return several ? site.site.replace(/^\D+/, "").replace(/ \D+/, "·") : site.layer;
}

function headCell(app, view, site, head) {
  const { scale } = app.state;
  const drawn = drawnSite(view, site);
  const data = headWeights(drawn, head);
  const weights = { data, hidden: hiddenUnder(view, site, head), shape: site.shape, pooled: site.pooled };
  const name = t("headName", site.site, head);
  const attributes = { "data-view": view, "data-site": site.site, "data-keep": `${view} ${site.site} ${head}`, "aria-label": name, title: name,
    onclick: () => app.set({ view, site: site.site, head }) };
  const high = scale === "fit" ? null : 1; // null: each its own
  const off = headEdit(site.site, head);
  const flip = app.computing(view).yes ? { on: !isInForce(view, off), label: t("switch", name), keep: `switch ${view} ${name}`, press: () => toggleEdit(app, view, off) } : null;
  return { shape: site.shape, data, attributes, flip, paint: (canvas) => drawSmall(canvas, drawn, head, weights, { high, scale }) };
}

/** Frame the head that is open. */
export function markOverview(root, app) {
  const { view, site, head } = app.state;
  markHeads(root, (button) => Number(button.view) === view && button.site === site && Number(button.head) === head);
}
