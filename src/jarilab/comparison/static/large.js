// One head large, in every chosen model, with what is known of its rows.
import { boardOf, cellAfter, cellUnder, fitBoards, markBoard, scrollToCell, scrollTogether } from "kit/board.js";
import { note } from "kit/controls.js";
import { el, refill, svg } from "kit/elements.js";
import { mapDrawing } from "kit/mapdrawing.js";
import { known, number } from "kit/numbers.js";
import { infoNote, proofChip } from "kit/proof.js";
import { sheetOf } from "kit/saving.js";
import { nameNode, tokenNode } from "kit/tokens.js";
import { toned } from "kit/tones.js";
import { speaking } from "kit/words.js";
import { fieldOf, roomOfImage } from "./images.js";
import { colours, look, modelName, rowOrder, shownModels, sitesOf } from "./look.js";
import { digitPlaces, equalDigits, headWeights, hiddenIn } from "./study.js";
import { factsOf, KINDS, WORDS } from "./words.js";

const t = speaking({
  enlarged: ["Layer {0}, head {1}, enlarged", "층 {0}, 헤드 {1}, 크게"],
  noHead: ["This model has no such head.", "이 모델에는 그런 헤드가 없습니다."],
  map: ["attention map", "어텐션 맵"], axes: ["query ↓ key →", "쿼리 ↓ 키 →"],
  label: ["{0}, layer {1}, head {2}: {3} queries down, {4} keys across. Arrow keys read the weights.",
    "{0}, 층 {1}, 헤드 {2}: 쿼리 {3}개(아래로), 키 {4}개(옆으로). 화살표 키로 가중치를 읽습니다."],
  point: ["Point at a map, or move to it with Tab and use the arrow keys, to read a weight.", "맵을 가리키거나, Tab으로 옮겨 가 화살표 키를 쓰면 가중치가 보입니다."],
  reading: ["From {0} (query {1}) to {2} (key {3}), weight: {4}", "{0}(쿼리 {1}) → {2}(키 {3}), 가중치: {4}"],
  verdict: ["Rows of equal digits ({0}, joined by brackets): {1}.", "같은 숫자의 행({0}, 괄호로 이음): {1}."],
  same: ["identical, difference 0", "똑같음, 차이 0"], differ: ["differ by up to {0}", "최대 {0} 차이"],
  and: [" and ", ", "],
}, KINDS, WORDS);

/** Where it stands on the page. */
export const largeMaps = {
  title: el("h3", { id: "large-title", "aria-live": "polite" }),
  readout: el("p", { id: "readout", role: "status" }),
  root: el("div", { class: "panels", id: "large" }),
};
const LANE = 9; // the width of a bracket
let boards = []; // the maps on screen

export function drawLarge() {
  refill(largeMaps.title, t("enlarged", look.layer, look.head));
  boards = [];
  refill(largeMaps.root, shownModels().map((model) => figureOf(model)));
  scrollTogether(boards);
  fitLarge();
  markCell();
}

function figureOf(model) {
  const site = sitesOf(model)[look.layer];
  const figure = el("figure", { class: "pane beside" }, el("h4", {}, nameNode(modelName(model))));
  if (site && look.head < site.heads) {
    const board = siteBoard(model, site);
    boards.push(board);
    figure.append(board.node, el("figcaption", {}, board.image?.node, verdict(site),
      proofChip(site.trust ?? {}, `proof large ${modelName(model)}`), infoNote(`info large ${modelName(model)}`, factsOf(model))));
  } else figure.append(note(t("noHead")));
  return toned(model.encoding, figure);
}

function siteBoard(model, site) {
  const order = rowOrder(site);
  const columns = site.key.length;
  const weights = headWeights(site, look.head);
  const placeOf = (at) => order[Math.floor(at / columns)] * columns + at % columns;
  const data = Float32Array.from({ length: order.length * columns }, (_, at) => weights[placeOf(at)]);
  const lanes = svg("svg", { class: "brackets", "aria-hidden": "true" });
  const label = t("label", modelName(model), look.layer, look.head, site.query.length, columns);
  const point = (event) => { const [row, column] = cellUnder(event, board); setCell(order[row], column); };
  const begin = () => { if (look.query === null) setCell(order[0], 0); };
  const move = (event) => {
    const next = cellAfter(event, board, [Math.max(0, order.indexOf(look.query)), look.key ?? 0]);
    if (!next) return;
    event.preventDefault();
    setCell(order[next[0]], next[1]);
    scrollToCell(board);
  };
  const hidden = hiddenIn(site); // whose rows are always as read
  const map = { data, hidden, shape: [order.length, columns], options: { ...colours(), hidden } };
  const board = boardOf({
    map, ...axesOf(site, order),
    words: { kind: t("map"), label, axes: t("axes") }, crosses: ["row", "column", "spot"], beside: lanes,
    attributes: { onpointermove: point, onpointerdown: point, onfocus: begin, onkeydown: move },
  });
  return Object.assign(board, { model, site, map, order, lanes, weights, brackets: equalDigits(site), image: fieldOf(look.example, site, weights) });
}

/** The tokens at the sides of a map, and the places of their digits. order: of the rows. */
function axesOf(site, order) {
  const { rows, columns } = digitPlaces(site);
  return { rowTokens: order.map((place) => site.query[place]), rowMeanings: order.map((place) => rows[place] ?? null),
    columnTokens: site.key, columnMeanings: columns };
}

/** One cell size for all maps, so that they can be compared; brackets need it too. */
export function fitLarge() {
  if (!boards.length) return;
  const room = largeMaps.root.firstChild.clientWidth;
  const aside = 24 + LANE * Math.max(...boards.map((board) => board.brackets.length)) + roomOfImage(look.example, room);
  const size = fitBoards(boards, room, aside, (fitting) => Math.max(13, Math.floor(fitting)));
  for (const { lanes, order, brackets } of boards) {
    const [width, height] = [LANE * brackets.length + 2, size * order.length];
    const middle = (place) => (order.indexOf(place) + 0.5) * size;
    const bracket = (places, lane) => svg("path", { d: bracketPath(places.map(middle), LANE * lane + 7) });
    lanes.setAttribute("width", width);
    lanes.setAttribute("height", height);
    lanes.setAttribute("viewBox", `0 0 ${width} ${height}`);
    lanes.replaceChildren(...brackets.map(bracket));
  }
  markCell();
}
const bracketPath = (ys, x) => `M${x} ${Math.min(...ys)}V${Math.max(...ys)}${ys.map((y) => `M${x - 6} ${y}H${x}`).join("")}`;

// ---------------------------------------------------------------- the cell

function setCell(query, key) {
  if (query === look.query && key === look.key) return;
  Object.assign(look, { query, key });
  markCell();
}

function markCell() {
  const { query, key } = look;
  const marked = boards.filter((board) => markBoard(board, query === null ? null : [board.order.indexOf(query), key]));
  if (!marked.length) return refill(largeMaps.readout, t("point"));
  for (const { image } of marked) image?.follow(query, key);
  const [{ site }] = marked;
  const weightIn = ({ weights, columns }) => weights[query * columns + key].toFixed(4);
  const values = marked.flatMap((board, index) => [index ? "; " : "", nameNode(modelName(board.model)), ` ${weightIn(board)}`]);
  const [from, to] = [tokenNode(site.query[query]), tokenNode(site.key[key])];
  return refill(largeMaps.readout, t.parts("reading", from, String(query), to, String(key), values));
}

// ---------------------------------------------------------------- in words

function verdict(site) {
  const digits = equalDigits(site).map((places) => site.query[places[0]]);
  const value = site.equal_rows?.[look.head];
  if (!digits.length || !known(value)) return null;
  const named = digits.length < 2 ? digits.join("") : `${digits.slice(0, -1).join(", ")}${t("and")}${digits.at(-1)}`;
  const words = value === 0 ? t("same") : t("differ", number(value));
  return el("p", {}, t.parts("verdict", named, el("strong", { class: value === 0 ? "zero" : null }, words)));
}

/** The maps on screen, as a drawing. */
export function largeSheet() {
  const drawings = boards.map(({ model, map, rowTokens, columnTokens, rowMeanings, columnMeanings }) =>
    mapDrawing(modelName(model), map, rowTokens, columnTokens, rowMeanings, columnMeanings));
  return sheetOf(drawings, `${look.example.input}: ${t(look.kind)}, ${t("enlarged", look.layer, look.head)}`);
}
