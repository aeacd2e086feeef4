// Controls of a form, and tables: what is chosen, pressed and read.
import { el, styled } from "./elements.js";
import { clamp } from "./numbers.js";

export const note = (...words) => el("p", { class: "note" }, ...words);

/** The letter of a pressed key as a Latin keyboard has it there: in Hangul mode another one comes. Of other keys their name. */
export function letterOf({ key, code, shiftKey }) {
  const letter = /^Key([A-Z])$/.exec(code)?.[1];
  return !letter || /^[a-z]$/i.test(key) ? key : shiftKey ? letter : letter.toLowerCase();
}

/** A labelled control of a form. */
export const labelled = (words, control, tag = "label") => el(tag, { class: "field-of" }, el("span", {}, words), control);
/** A choice among options [value, words]. */
export const chooser = (keep, chosen, options, change) => el("select", { "data-keep": keep,
  onchange: ({ target }) => change(options[target.selectedIndex][0]) },
options.map(([value, words]) => el("option", { selected: value === chosen }, words)));
export const pressable = (keep, words, press, more = {}) =>
  el("button", { type: "button", "data-keep": keep, onclick: press, ...more }, words);

/** A share of 1 as a bar. */
export const barNode = (share) => styled(el("span", { class: "share-bar" }), { width: `${100 * clamp(share ?? 0, 0, 1)}%` });

/** What may be wider than the page; keys scroll it. */
export const scrolling = (label, node) => el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label }, node);
/** A table; the first of each row is its header. What is no cell yet becomes one. */
export function tableOf(heads, rows, caption = null) {
  const headCell = (head) => head === "" ? el("td") : cellOf("th", { scope: "col" }, head);
  const row = ([first, ...cells]) => el("tr", {}, cellOf("th", { scope: "row" }, first), cells.map((cell) => cellOf("td", {}, cell)));
  return el("table", {}, caption && el("caption", {}, caption),
    el("thead", {}, el("tr", {}, heads.map(headCell))), el("tbody", {}, rows.map(row)));
}
const cellOf = (tag, attributes, cell) => cell instanceof HTMLTableCellElement ? cell : el(tag, attributes, cell);
