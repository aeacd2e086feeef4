// What the panels share.
import { drawMap } from "kit/draw.js";
import { el, refill, styled } from "kit/elements.js";
import { clamp } from "kit/numbers.js";
import { token } from "kit/tokens.js";
import { siteHidden } from "../sites.js";
import { t } from "../words.js";

/** Whether this panel has something to say of heads: what is known of them differs between models. */
export const hasDetails = (app, panel) => app.view().opens.includes(panel) && (app.live || app.view().sites.some((site) => Object.keys(site.details ?? {}).length));

const turns = new WeakMap(); // root -> the drawing that may still write into it

/** A new drawing begins: an older one that still waits for its data must not write any more. */
export function beginPanel(root) {
  const turn = {};
  turns.set(root, turn);
  return () => turns.get(root) === turn;
}

/** Call draw(detail) with the details of the open head; words where they are awaited or missing. */
export async function withDetail(root, app, draw) {
  const current = beginPanel(root);
  const say = (text) => current() && refill(root, el("p", { class: "note", role: "status" }, text));
  const timer = setTimeout(() => say(t("wait")), 200);
  let detail = null;
  try {
    detail = await app.detail();
  } catch (error) {
    say(error.message);
  } finally {
    clearTimeout(timer);
  }
  if (detail && current()) await draw(detail);
}

/** Show what make() drew of a detail, {node, follow}; it is made once, and then follows the chosen cell. */
export function keptPage(root, app, pages, detail, make) {
  let page = pages.get(detail);
  if (page?.language !== app.language) pages.set(detail, page = { language: app.language, ...make() });
  if (root.firstChild !== page.node) refill(root, page.node);
  page.follow(cellAt(app, detail.scores.shape));
}

/** The chosen cell in a matrix of that shape; a pooled map has coarser cells. */
export function cellAt(app, shape) {
  const site = app.site();
  return [app.state.query, app.state.key].map((place, side) =>
    clamp((place ?? 0) * (shape[side] > site.shape[side] ? site.pooled : 1), 0, shape[side] - 1));
}

export const numbered = (names, place) => `${token(names?.[place] ?? "")} (${place})`;
export const cellNames = (app, cell) => ["queries", "keys"].map((side, place) => numbered(app.view().sides[app.site()[side]]?.tokens, cell[place]));
export const nameCell = (app, cell) => t("cell", ...cellNames(app, cell));

/** Which cells of a matrix of that shape are hidden, or null. */
export function hiddenOf(app, shape) {
  const hidden = siteHidden(app.site());
  return hidden?.length === shape[0] * shape[1] ? hidden : null;
}

/** Smallest and largest of what can be seen. */
export function limits(data, hidden) {
  let [low, high] = [Infinity, -Infinity];
  for (let place = 0; place < data.length; place += 1) {
    if (hidden?.[place]) continue;
    low = Math.min(low, data[place]);
    high = Math.max(high, data[place]);
  }
  return low > high ? { low: 0, high: 1 } : { low, high };
}

/** A small map; mark(row, column) frames a row, a column or a cell. */
export function smallMap(data, [rows, columns], options, label, width = 240) {
  const canvas = drawMap(el("canvas", { role: "img", "aria-label": label }), data, rows, columns, options);
  const across = Math.min(width / 10, width / columns);
  styled(canvas, { width: `${columns * across}px`, height: `${rows * Math.min(width / rows, Math.max(7, across))}px` });
  const frame = el("div", { class: "small-mark", hidden: true });
  const mark = (row, column) => {
    frame.hidden = row === null && column === null;
    const share = (value, whole) => `${100 * value / whole}%`;
    styled(frame, { top: share(row ?? 0, rows), left: share(column ?? 0, columns), height: share(row === null ? rows : 1, rows), width: share(column === null ? columns : 1, columns) });
  };
  return { node: el("div", { class: "small-map" }, canvas, frame), mark };
}

