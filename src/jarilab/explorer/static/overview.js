// Every head as a small map: layers down, heads across.
import { drawMap } from "web/draw.js";
import { el, refill, styled } from "web/elements.js";
import { clamp, number } from "web/numbers.js";
import { largestOf, maxPool } from "web/weights.js";
import { headWeights, kindsOf, siteHidden, wordsOf } from "./sites.js";
import { t } from "./words.js";

const PIXELS = 96; // larger maps are max-pooled to this, so that no weight is lost between pixels
const poolsOf = new WeakMap(); // site -> maps by head
let seen = null;

/** One head's weights, made small enough. */
function poolOf(site, head) {
  if (!poolsOf.has(site)) poolsOf.set(site, []);
  const pools = poolsOf.get(site);
  if (pools[head]) return pools[head];
  const [rows, columns] = site.shape;
  const [data, mask] = [headWeights(site, head), siteHidden(site)];
  const factor = Math.ceil(Math.max(rows, columns) / PIXELS);
  return pools[head] = factor === 1 ? { data, hidden: mask, rows, columns } : maxPool(data, mask, site.shape, factor);
}

function paint(canvas, app, site, head) {
  const { data, hidden, rows, columns } = poolOf(site, head);
  const { lock, range, scale } = app.state;
  drawMap(canvas, data, rows, columns, { high: lock ?? (range === "full" ? 1 : largestOf(data, hidden) || 1), hidden, scale });
}

export function drawOverview(root, app) {
  seen?.disconnect();
  const view = app.view();
  const painters = new Map();
  seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      painters.get(target)();
      seen.unobserve(target);
    }
  }, { rootMargin: "300px" });
  const { lock, range } = app.state;
  refill(root, ...kindsOf(view).map(([kind, sites]) => gridOf(app, kind, sites, painters)),
    el("p", { class: "note" }, t(lock ? "thumbsLocked" : range === "full" ? "thumbsFull" : "thumbsFit", number(lock ?? 1))));
  for (const canvas of painters.keys()) seen.observe(canvas);
  markOverview(root, app);
}

function gridOf(app, kind, sites, painters) {
  const heads = Math.max(...sites.map((site) => site.heads));
  const grid = styled(el("div", { class: "heads", role: "group", "aria-label": t(`kind_${kind}`) }, el("span"),
    Array.from({ length: heads }, (_, head) => el("span", {}, String(head)))), { "--heads": heads });
  sites.forEach((site, row) => {
    grid.append(el("span", { title: site.site }, String(site.layer)));
    for (let head = 0; head < heads; head += 1) {
      if (head >= site.heads) { grid.append(el("span")); continue; }
      const [rows, columns] = site.shape;
      const canvas = el("canvas", { width: columns, height: rows });
      painters.set(canvas, () => paint(canvas, app, site, head));
      grid.append(el("button", { type: "button", "data-site": site.site, "data-head": head, "data-row": row, "data-keep": `${site.site} ${head}`,
        "aria-label": t("headName", site.site, head), title: t("headName", site.site, head), onkeydown: move,
        onclick: () => app.set({ site: site.site, head }) }, canvas));
    }
  });
  return el("figure", { class: "kind" }, el("figcaption", {}, el("b", {}, t(`kind_${kind}`)), " ", t(wordsOf(app.view(), `sides_${kind}`))), grid);
}

const ARROWS = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], Home: [0, -99], End: [0, 99] };
function move(event) {
  const [down, across] = ARROWS[event.key] ?? [0, 0];
  if ((!down && !across) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const grid = event.currentTarget.parentNode;
  const { row, head } = event.currentTarget.dataset;
  const there = [...grid.querySelectorAll(`[data-row="${Number(row) + down}"]`)];
  const next = there[clamp(Number(head) + across, 0, there.length - 1)];
  if (!next) return;
  stopAt(grid, next);
  next.focus();
}
const stopAt = (grid, chosen) => { for (const button of grid.querySelectorAll("button")) button.tabIndex = button === chosen ? 0 : -1; };

/** Frame the head that is open; each grid keeps one tab stop. */
export function markOverview(root, app) {
  for (const grid of root.querySelectorAll(".heads")) {
    const buttons = [...grid.querySelectorAll("button")];
    const open = ({ dataset }) => dataset.site === app.state.site && Number(dataset.head) === app.state.head;
    for (const button of buttons) button.setAttribute("aria-pressed", open(button));
    stopAt(grid, buttons.find(open) ?? buttons[0]);
  }
}
