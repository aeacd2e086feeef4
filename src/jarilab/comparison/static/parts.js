// What the sections of the report are made of: headings, tables, rows of pills.
import { scrolling } from "kit/controls.js";
import { el } from "kit/elements.js";
import { firstPayload } from "kit/payload.js";
import { chartDrawing, savers, sheetOf } from "kit/saving.js";
import { cutToken, nameNode } from "kit/tokens.js";
import { speaking } from "kit/words.js";

const t = speaking({ smoothing: ["Smoothing", "매끄럽게"], none: ["none", "없음"] });

/** A section that the links at the top lead to. */
export const section = (id, title, ...children) => el("section", { id, "aria-labelledby": `${id}-title` },
  el("h2", { id: `${id}-title` }, title), ...children);

export const cell = (value, kind = "number") => el("td", { class: kind }, value);
export const heading = (value, attributes = {}) => el("th", { scope: "row", ...attributes }, value);

/** A table that may be wider than the page. heads: [words, class]; bodies: lists of rows. */
export function tableOf(id, label, heads, bodies) {
  const head = heads.map(([words, kind = "number"]) => el("th", { scope: "col", class: kind }, words));
  return scrolling(label, el("table", { id }, el("thead", {}, el("tr", {}, head)), bodies.map((rows) => el("tbody", {}, rows))));
}

/** A chart that can be saved. name: of the file. box: where the chart is drawn. caption: what stands above it, the title or more. */
export const figure = (name, title, box, caption = title) => el("figure", {}, el("figcaption", {}, caption), box,
  savers(name, title, () => sheetOf([chartDrawing(box.querySelector("svg"))], `${title}. ${firstPayload.title}`)));

/** Radio buttons or check boxes that look like a row of pills. change(index, box) */
export function pills(keep, legend, type, options, isChosen, change) {
  const pill = (text, index) => el("label", {}, el("input", { type, name: keep, checked: isChosen(index), "data-keep": `${keep} ${index}`,
    onchange: ({ target }) => change(index, target) }), nameNode(cutToken(text, 40)));
  return el("fieldset", {}, el("legend", {}, legend), el("div", { class: "choices" }, options.map(pill)));
}

const PARTS = [0, 0.6, 0.9];
/** How much of the mean before a smoothed curve keeps at each point. now(): what is chosen. */
export const smoothing = (now, change) => pills("smoothing", t("smoothing"), "radio", PARTS.map((part) => part ? String(part) : t("none")),
  (index) => PARTS[index] === now(), (index) => change(PARTS[index]));

/** Names between which stands a comma. */
export const listed = (texts) => texts.flatMap((text, index) => [index ? ", " : "", nameNode(text)]);
