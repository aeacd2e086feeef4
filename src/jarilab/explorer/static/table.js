// The numbers of a map as a table, which is made when it is opened.
import { scrolling, tableOf } from "kit/controls.js";
import { el } from "kit/elements.js";
import { tokenNode } from "kit/tokens.js";
import { t } from "./words.js";

const TABLE_CELLS = 4096; // of a larger map only one row becomes a table, its largest weights first
const TABLE_KEYS = 40;

const openTables = new Set(); // names of the panes whose table is open

export function tableNode(app, pane) {
  const box = scrolling(t("asTable"), []);
  const details = el("details", { open: openTables.has(pane.name), ontoggle: () => {
    openTables[details.open ? "add" : "delete"](pane.name);
    if (details.open && !box.firstChild) box.append(weightsTable(app, pane));
  } }, el("summary", {}, t("asTable")), box);
  return details;
}

function weightsTable(app, { data, hidden, site, rowTokens, columnTokens, rowMeanings, columnMeanings }) {
  const [rows, columns] = site.shape;
  const at = (query, key) => query * columns + key;
  const whole = rows * columns <= TABLE_CELLS;
  const { query: pinned } = app.state;
  const all = [...Array(columns).keys()];
  const down = whole ? [...Array(rows).keys()] : [pinned];
  const across = whole ? all : all.sort((one, two) => data[at(pinned, two)] - data[at(pinned, one)]).slice(0, TABLE_KEYS);
  const cell = (place) => hidden?.[place] ? t("hiddenShort") : data[place].toFixed(4);
  const head = (scope, text, place, meaning) => el("th", { scope }, tokenNode(text), ` ${place}`, meaning && el("small", {}, ` ${meaning.name}`));
  return tableOf([t("axes"), ...across.map((key) => head("col", columnTokens[key], key, columnMeanings?.[key]))],
    down.map((query) => [head("row", rowTokens[query], query, rowMeanings?.[query]), ...across.map((key) => cell(at(query, key)))]), whole ? null : t("tableCut"));
}
