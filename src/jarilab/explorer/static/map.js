// One head large, in every model: maps that share their colours, their scrolling and the cell that is pointed at.
import { boardOf, cellAfter, cellUnder, fitBoards, markBoard, scrollToCell, scrollTogether } from "kit/board.js";
import { drawMap, legendNode } from "kit/draw.js";
import { letterOf } from "kit/controls.js";
import { byId, el, refill, styled } from "kit/elements.js";
import { clamp, known, number } from "kit/numbers.js";
import { nameNode, token, tokenNode } from "kit/tokens.js";
import { toned } from "kit/tones.js";
import { rankOf, looksSame } from "kit/weights.js";
import { differenceNote } from "./compare.js";
import { headEdit, isGone, isInForce, linkEdit, toggleEdit, tokenEdit } from "./edits.js";
import { drawLegend } from "./legend.js";
import { linesNode } from "./lines.js";
import { drawnOf, panesOf } from "./panes.js";
import { proofNode } from "./proof.js";
import { isOfTokens, kindsOf, originOf, siteHidden, wordsOf } from "./sites.js";
import { tableNode } from "./table.js";
import { t } from "./words.js";

let shownPanes = []; // what is on screen
let pointed = null; // the cell that is pointed at; the pinned one is in the state

/** What is on screen of a model. */
export const shownPane = (index) => shownPanes[index];
/** Point at a cell from elsewhere; null: at none. */
export function pointCell(app, spot) {
  pointed = spot;
  markCell(app);
}

export function drawMaps(root, app) {
  const focused = shownPanes.findIndex((pane) => pane.board?.field === document.activeElement);
  pointed = null;
  shownPanes = panesOf(app);
  const lines = app.state.display === "lines";
  byId("head-title").replaceChildren(t("headName", app.state.site, app.state.head));
  byId("head-about").replaceChildren(t(wordsOf(app.view(), `about_${app.site().kind}`)), " ", t(`about_${drawnOf(app)}`));
  byId("head-origin").textContent = originOf(app.site(), app.state.head);
  drawLegend(app, shownPanes, drawnOf(app));
  const columns = shownPanes.find((pane) => pane.kind === "map")?.site.shape[1] ?? 0;
  styled(root, { "--least": columns <= 12 ? "15rem" : columns <= 40 ? "20rem" : "30rem" });
  refill(root, ...shownPanes.map((pane) => paneNode(app, pane, lines)));
  scrollTogether(boardsShown());
  fitMaps(app);
  shownPanes[focused]?.board?.field.focus({ preventScroll: true });
  markCell(app);
}

/** The same maps under other edits: numbers that changed are drawn into what stands there, so nothing is laid out again. */
export function repaintMaps(root, app) {
  const panes = panesOf(app);
  const alike = (pane, place) => pane.why ? pane.why === shownPanes[place].why : Boolean(shownPanes[place].board);
  if (app.state.display === "lines" || panes.length !== shownPanes.length || !panes.every(alike)) return drawMaps(root, app);
  pointed = null;
  panes.forEach((pane, place) => repaint(app, shownPanes[place], pane));
  drawLegend(app, shownPanes, drawnOf(app));
  markCell(app);
}
function repaint(app, shown, pane) {
  const same = pane.why || (looksSame(pane.data, shown.data) && looksSame(pane.hidden ?? [], shown.hidden ?? []) && pane.options.high === shown.options.high);
  Object.assign(shown, pane); // its board and its listeners stay
  if (same) return;
  const { board, below, proof } = shown;
  if (proof) {
    shown.proof = proofOf(app, shown);
    shown.proof.open ||= proof.open;
    proof.replaceWith(shown.proof);
  }
  drawMap(board.canvas, pane.data, ...pane.site.shape, pane.options);
  if (pane.strip) drawStrip(board.beside, pane);
  shown.below = numbersBelow(app, shown);
  below.forEach((node, place) => node.replaceWith(shown.below[place]));
}

/** Whether it is a run of jari, which has steps; a tape and a model of another library have none. */
const trained = (view) => known(view.experiment);

/** In the colour of its model; a difference has none. */
const tonedAs = (view, node) => view ? toned(view.name, node) : node;

function paneNode(app, pane, lines) {
  const figure = tonedAs(pane.kind === "difference" ? null : pane.view, el("figure", { class: pane.index === app.state.view ? "pane chosen" : "pane" }, el("h3", {}, nameNode(pane.name),
    pane.kind === "map" && trained(pane.view) ? el("small", {}, " ", t("atStep", pane.view.step)) : null)));
  if (pane.why) return figure.append(el("p", { class: "note" }, pane.why)), figure;
  pane.proof = proofOf(app, pane);
  if (lines) return figure.append(linesNode(app, pane), pane.proof), figure;
  pane.below = numbersBelow(app, pane);
  figure.append(boardNode(app, pane), pane.proof, ...pane.below);
  return figure;
}
const proofOf = (app, pane) => pane.kind === "map" && !pane.isPlain && drawnOf(app) !== "rollout" ? proofNode(app, pane, drawnOf(app) === "weights") : "";
/** What tells the numbers of a map once more. */
function numbersBelow(app, pane) {
  return pane.kind === "map" ? [tableNode(app, pane)] : [legendNode(pane.options, t("differenceLegend")), differenceNote(app, pane)];
}
/** How far the rows of two maps lie apart. */
const drawStrip = (canvas, { strip }) => drawMap(canvas, strip.map((value) => value ?? NaN), strip.length, 1, { high: Math.LN2 });

function boardNode(app, pane) {
  const [rows, columns] = pane.site.shape;
  const label = t("mapLabel", pane.name, t("headName", app.state.site, app.state.head), rows, columns);
  const strip = pane.strip && styled(drawStrip(el("canvas", { class: "strip", "aria-hidden": "true", title: t("stripTitle") }), pane), { "--rows": rows });
  pane.board = boardOf({ map: { data: pane.data, shape: pane.site.shape, options: pane.options }, rowTokens: pane.rowTokens,
    columnTokens: pane.columnTokens, rowMeanings: pane.rowMeanings, columnMeanings: pane.columnMeanings, words: { kind: t("map"), label, axes: t("axes") }, crosses: ["row", "column", "spot", "pin"], beside: strip,
    attributes: { "aria-describedby": "map-help", onkeydown: (event) => moveByKey(event, app, pane), onpointermove: (event) => pointAt(event, app, pane),
      onpointerleave: () => pointCell(app, null), onclick: (event) => { pointAt(event, app, pane); pinCell(app); if (app.state.cutting) cutCell(app, pane, app.state); } } });
  return pane.board.node;
}

const boardsShown = () => shownPanes.flatMap((pane) => pane.board ?? []);

/** One size of cell for all maps; labels are thinned out where they would not fit. */
function fitMaps(app) {
  fittedWidth = byId("maps").clientWidth;
  const boards = boardsShown();
  if (!boards.length) return;
  const room = Math.max(...boards.map(({ field }) => field.closest(".pane").clientWidth)); // of those that are shown
  for (const { node } of boards) node.classList.toggle("fits", app.state.zoom === "fit");
  fitBoards(boards, room, 24, (fit) => app.state.zoom === "large" ? Math.max(18, Math.floor(fit)) : fit >= 8 ? Math.floor(fit) : Math.max(1, fit));
}

let fittedWidth = 0;
/** The same where the maps have got another width; that they are higher changes nothing. */
export function refitMaps(app) {
  if (byId("maps").clientWidth !== fittedWidth) fitMaps(app);
}

// ---------------------------------------------------------------- the cell

function pointAt(event, app, { board }) {
  const [query, key] = cellUnder(event, board);
  if (pointed?.query === query && pointed.key === key) return;
  pointCell(app, { query, key });
}
function pinCell(app) {
  const { query, key } = pointed ?? app.state;
  app.set({ query, key });
  sayCell(app, "pinned");
}

function moveByKey(event, app, pane) {
  if (event.ctrlKey || event.metaKey) return;
  const [{ board }, key] = [pane, letterOf(event)];
  const from = pointed ?? app.state;
  const next = cellAfter(event, board, [from.query, from.key]);
  if (next) {
    pointCell(app, { query: next[0], key: next[1] });
    sayCell(app);
    scrollToCell(board);
  } else if (key === "Enter" || key === " ") pinCell(app);
  else if (key === "Escape" && pointed) { pointCell(app, null); sayCell(app); }
  else if (key === "x") cutCell(app, pane, from);
  else if (key === "X") cutColumn(app, pane, from);
  else if (key === "[" || key === "]") stepHead(app, key === "]" ? 1 : -1, 0);
  else if (key === "{" || key === "}") stepHead(app, 0, key === "}" ? 1 : -1);
  else return;
  event.preventDefault();
}

/** Take a link away, or give it back: this query no longer sees this key, in the open head of the model of this map. */
function cutCell(app, pane, cell) {
  const edit = cutOf(app, pane, cell);
  if (edit) toggleEdit(app, pane.index, edit);
}
/** The edit of a cell; null where none can be made. */
function cutOf(app, pane, { query, key }) {
  const { index, site } = pane;
  const masked = siteHidden(site); // by the model: a cell that an edit hides can be given back
  if (!isEditable(app, pane) || masked?.[query * site.shape[1] + key]) return null;
  const edit = linkEdit(site.site, app.state.head, query, key);
  return isGone(index, site, app.state.head, key) && !isInForce(index, edit) ? null : edit;
}
const isEditable = (app, { kind, index, site }) => kind === "map" && drawnOf(app) === "weights" && site.pooled <= 1 && app.computing(index).yes;
/** Take the token of a column away from everybody, or give it back. */
function cutColumn(app, pane, cell) {
  const edit = cutTokenOf(app, pane, cell);
  if (edit) toggleEdit(app, pane.index, edit);
}
/** The edit of a column's token; null where none can be made. */
function cutTokenOf(app, pane, { key }) {
  const { view, site } = pane;
  return isEditable(app, pane) && view.edits.includes("token") && isOfTokens(view, site.keys) ? tokenEdit(site.keys, key) : null;
}

/** What can be cut at the pinned cell. While another is pointed at they keep their room, so that the map stays where it is. */
function cutButtons(app, pane) {
  const offered = [["cut", "x", cutOf(app, pane, app.state)], ["cutToken", "X", cutTokenOf(app, pane, app.state)]];
  return offered.map(([name, key, edit]) => {
    if (!edit) return null;
    const words = t(isInForce(pane.index, edit) ? `un${name}` : name);
    return el("button", { type: "button", class: pointed ? "cut away" : "cut", title: `${words} (${key})`, "data-keep": `${name} ${pane.index}`, onclick: () => toggleEdit(app, pane.index, edit) }, `✂ ${words}`);
  });
}

/** Open the head beside, or the same head one layer on. */
function stepHead(app, across, down) {
  const [, sites] = kindsOf(app.view()).find(([kind]) => kind === app.site().kind);
  const next = sites[sites.indexOf(app.site()) + down];
  if (next) app.set({ site: next.site, head: clamp(app.state.head + across, 0, next.heads - 1) });
  byId("live").replaceChildren(t("headName", app.state.site, app.state.head));
}

/** Move the crosses and the readout; nothing else is drawn again. */
export function markCell(app) {
  const spot = pointed ?? app.state;
  for (const { field } of boardsShown()) styled(field, { "--pinned-row": app.state.query, "--pinned-column": app.state.key });
  const marked = shownPanes.filter((pane) => pane.board && markBoard(pane.board, [spot.query, spot.key], pointed === null));
  byId("readout").replaceChildren(...readingOf(app, marked));
  app.onspot(spot);
}

/** [name, value in words] of a pane at a cell. */
function valueIn(app, pane, { query, key }) {
  const columns = pane.site.shape[1];
  const value = pane.data[query * columns + key];
  if (pane.leftOut?.[query * columns + key]) return [pane.name, t("leftOut")];
  if (pane.hidden?.[query * columns + key]) return [pane.name, t(pane.kind === "map" && isInForce(pane.index, headEdit(pane.site.site, app.state.head)) ? "proof_off" : "hiddenCell")];
  if (pane.kind === "difference") {
    const apart = known(pane.strip?.[query]) ? ` · ${t("rowDivergence", number(pane.strip[query]))}` : "";
    return [pane.name, `${value > 0 ? "+" : ""}${value.toFixed(4).replace("-", "−")}${apart}`];
  }
  return [pane.name, `${value.toFixed(4)} · ${t("rank", ...rankOf(pane.data, pane.hidden, columns, query, key))}`];
}
function cellIn(pane, { query, key }) {
  return [pane.rowTokens[query], query, pane.columnTokens[key], key];
}
/** A token and its place, in words. */
function placed({ view, site, rowMeanings, columnMeanings }, side, text, place) {
  const meaning = (side === "queries" ? rowMeanings : columnMeanings)?.[place];
  const onImage = view?.sides[site[side]].picture && /^(\d+),(\d+)$/.exec(text);
  if (onImage) return t("thePatch", onImage[1], onImage[2], place);
  return t.parts("theToken", tokenNode(text), place, meaning ? `, ${meaning.name}` : "");
}
function readingOf(app, panes) {
  if (!panes.length) return [t(app.state.display === "lines" ? "linesHelp" : "pointAtMap")];
  const spot = pointed ?? app.state;
  const [queryToken, query, keyToken, key] = cellIn(panes[0], spot);
  return [el("span", {}, placed(panes[0], "queries", queryToken, query), " → ", placed(panes[0], "keys", keyToken, key)),
    ...panes.map((pane) => {
      const [name, words] = valueIn(app, pane, spot);
      const cell = cellIn(pane, spot); // models may have written different tokens
      const other = cell[0] !== queryToken || cell[2] !== keyToken ? ["(", tokenNode(cell[0]), " → ", tokenNode(cell[2]), ") "] : null;
      return el("span", {}, shownPanes.length > 1 ? [nameNode(name), ": "] : `${t(`drawn_${drawnOf(app)}`)} `, other, el("b", {}, words), cutButtons(app, pane));
    })];
}
/** For people who listen: only after keys, not after each move of a pointer. */
function sayCell(app, prefix) {
  const panes = shownPanes.filter((pane) => pane.board && !pane.board.field.classList.contains("outside"));
  const spot = pointed ?? app.state;
  if (!panes.length) return;
  const [queryToken, query, keyToken, key] = cellIn(panes[0], spot);
  const { rowMeanings, columnMeanings } = panes[0];
  const spoken = (text, meaning) => meaning ? `${token(text)} (${meaning.name})` : token(text);
  const cell = t("sayCell", spoken(queryToken, rowMeanings?.[query]), query, spoken(keyToken, columnMeanings?.[key]), key);
  byId("live").replaceChildren([prefix ? t(prefix) : "", cell,
    ...panes.map((pane) => valueIn(app, pane, spot).join(" "))].filter(Boolean).join("; "));
}
