// What the panels share.
import { clamp, el, number, siteHidden, styled, token } from "./data.js";
import { drawMap } from "./draw.js";

const panelTurns = new WeakMap(); // root -> the drawing that may still write into it

/** A new drawing begins: an older one that still waits for its data must not write any more. */
export function beginPanel(root) {
  const turn = {};
  panelTurns.set(root, turn);
  return () => panelTurns.get(root) === turn;
}

/** Replace what stands in `root`; the control that had the focus (by data-keep) gets it back. */
export function refill(root, ...children) {
  const held = root.contains(document.activeElement) ? document.activeElement.dataset.keep : null;
  root.replaceChildren(...children.filter(Boolean));
  if (held) [...root.querySelectorAll("[data-keep]")].find((node) => node.dataset.keep === held)?.focus({ preventScroll: true });
}

export const panelNote = (...words) => el("p", { class: "note" }, ...words);

/** Call draw(detail) with the details of the open head; words where they are awaited or missing. */
export async function withDetail(root, app, draw) {
  const current = beginPanel(root);
  const say = (text) => current() && refill(root, el("p", { class: "note", role: "status" }, text));
  const timer = setTimeout(() => say(app.t("panelWait")), 200);
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
export const nameCell = (app, cell) => app.t("panelCell", ...cellNames(app, cell));

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
  const frame = el("div", { class: "panel-mark", hidden: true });
  const mark = (row, column) => {
    frame.hidden = row === null && column === null;
    const share = (value, whole) => `${100 * value / whole}%`;
    styled(frame, { top: share(row ?? 0, rows), left: share(column ?? 0, columns), height: share(row === null ? rows : 1, rows), width: share(column === null ? columns : 1, columns) });
  };
  return { node: el("div", { class: "panel-map" }, canvas, frame), mark };
}

/** A labelled control of a form. */
export const labelled = (words, control, tag = "label") => el(tag, { class: "field-of" }, el("span", {}, words), control);
/** A choice among options [value, words]. */
export const chooser = (keep, chosen, options, change) => el("select", { "data-keep": keep,
  onchange: ({ target }) => change(options[target.selectedIndex][0]) },
options.map(([value, words]) => el("option", { selected: value === chosen }, words)));
export const pressable = (keep, words, press, more = {}) => el("button", { type: "button", "data-keep": keep, onclick: press, ...more }, words);

/** A share of 1 as a bar. */
export const barNode = (share) => styled(el("span", { class: "panel-bar" }), { width: `${100 * clamp(share ?? 0, 0, 1)}%` });

/** What may be wider than the page; keys scroll it. */
export const scrolling = (label, node) => el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, node);
/** A table; the first of each row is its header. What is no cell yet becomes one. */
export const tableOf = (heads, rows, caption = null) => el("table", {}, caption && el("caption", {}, caption),
  el("thead", {}, el("tr", {}, heads.map((head) => head === "" ? el("td") : tableCell("th", { scope: "col" }, head)))),
  el("tbody", {}, rows.map(([first, ...cells]) => el("tr", {}, tableCell("th", { scope: "row" }, first), cells.map((cell) => tableCell("td", {}, cell))))));
const tableCell = (tag, attributes, cell) => cell instanceof HTMLTableCellElement ? cell : el(tag, attributes, cell);

/** MathML from nested arrays, as ["mfrac", 1, ["msqrt", "d"]]: numbers, names and signs find their own elements. */
export function math(...parts) {
  const space = new DOMParser().parseFromString("<math></math>", "text/html").querySelector("math").namespaceURI;
  const build = (part) => {
    const text = typeof part === "number" ? number(part) : part;
    const tag = Array.isArray(part) ? part[0] : typeof part === "number" || /^\d+$/.test(part) ? "mn" : /^\p{L}/u.test(part) ? "mi" : "mo";
    const node = document.createElementNS(space, tag);
    node.append(...(Array.isArray(part) ? part.slice(1).map(build) : [text]));
    return node;
  };
  return build(["math", ["mrow", ...parts]]);
}

/** A factor: negative numbers in brackets. */
export const factor = (value) => value < 0 ? ["mrow", "(", value, ")"] : value;
