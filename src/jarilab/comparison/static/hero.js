// What the report opens with: what two models answer, each over its large map, at the head and cell that say most.
import { boardOf, fitBoards, markBoard } from "kit/board.js";
import { pressable } from "kit/controls.js";
import { legendNode } from "kit/draw.js";
import { el, refill } from "kit/elements.js";
import { known, number } from "kit/numbers.js";
import { infoNote, proofChip } from "kit/proof.js";
import { mapDrawing } from "kit/mapdrawing.js";
import { savers, sheetOf } from "kit/saving.js";
import { nameNode, tokenNode } from "kit/tokens.js";
import { toned } from "kit/tones.js";
import { speaking } from "kit/words.js";
import { expectedNode, fieldOf, isImage, roomOfImage, thumbnail } from "./images.js";
import { bare, digitPlaces, examples, headWeights, hiddenIn, ordered, payload } from "./study.js";
import { openHere } from "./why.js";
import { factsOf, KINDS, WORDS } from "./words.js";

const t = speaking({
  without: ["no positions", "위치 없음"],
  right: ["right", "맞음"], wrong: ["wrong", "틀림"],
  which: ["{0}, layer {1}, head {2}", "{0}, 층 {1}, 헤드 {2}"],
  measured: ["the head of {0} whose removal raises the loss most.", "끄면 {0}의 손실이 가장 크게 커지는 헤드."],
  farthest: ["the head of {0} that is farthest from chance.", "{0}에서 우연과 가장 다른 헤드."],
  framed: ["Framed: from {0} to {1}, weight {2}.", "테두리: {0} → {1}, 가중치 {2}."],
  alike: ["{0} gives equal {1}s exactly equal weights: it cannot tell them apart.", "{0}: 같은 {1}에는 가중치도 똑같아 서로 구별하지 못합니다."],
  alikeRows: ["{0} gives equal {1}s exactly equal rows: it cannot tell them apart.", "{0}: 같은 {1}의 행이 똑같아 서로 구별하지 못합니다."],
  apart: ["With {0} they differ by up to {1}.", "{0}: 최대 {1} 차이."],
  over: ["Over the image: what the framed row looks at. Fainter is less.", "이미지 위: 테두리 행이 보는 것. 옅을수록 가중치가 작습니다."],
  noHead: ["This model has no such head.", "이 모델에는 그런 헤드가 없습니다."],
  open: ["Open this head below", "아래에서 이 헤드 열기"],
  figure: ["What two models answer, and where they look", "두 모델의 답과 어텐션 맵"],
  map: ["attention map", "어텐션 맵"], axes: ["query ↓ key →", "쿼리 ↓ 키 →"],
  label: ["{0}: attention map, {1} queries down, {2} keys across; the largest weight of the framed row is on {3}",
    "{0}: 어텐션 맵, 쿼리 {1}개(아래로), 키 {2}개(옆으로). 테두리 행의 최대 가중치는 {3}"],
}, KINDS, WORDS);

const LARGEST = 64; // points of a cell
const BESIDE = 8; // columns of maps that stand side by side on a phone too
const TALLEST = 400; // of a map, so that it is on the first screen
const opening = payload.opening ?? null;
const example = opening ? examples[opening.example] : null;
const models = example ? opening.models.map((number) => example.models[number]) : [];
const better = models.at(-1);
const root = el("figure", { id: "hero" });
let boards = [];

const siteOf = (model) => model.sites.find((site) => site.name === opening.site && opening.head < site.heads);
const layerOf = (model) => model.sites.filter(({ kind }) => kind === siteOf(model).kind).indexOf(siteOf(model));

function mapOf(site) {
  const weights = headWeights(site, opening.head);
  const hidden = hiddenIn(site);
  return { data: Float32Array.from(weights), hidden, shape: [site.query.length, site.key.length], options: { scale: "even", hidden } };
}

function board(model, site) {
  const map = mapOf(site);
  const columns = site.key.length;
  const row = map.data.subarray(opening.query * columns, (opening.query + 1) * columns);
  const label = t("label", model.encoding, site.query.length, columns, site.key[row.indexOf(Math.max(...row))]);
  const made = boardOf({ map, rowTokens: site.query, columnTokens: site.key, rowMeanings: digitPlaces(site).rows, columnMeanings: digitPlaces(site).columns, words: { kind: t("map"), label, axes: t("axes") },
    crosses: ["spot"], attributes: { role: "img", tabindex: false, "aria-roledescription": false } });
  boards.push(made);
  const over = fieldOf(example, site, map.data);
  over?.follow(opening.query, opening.key);
  return over ? el("div", { class: "on-image" }, made.node, over.node) : made.node;
}

function pane(model) {
  const { answer, correct } = model;
  const site = siteOf(model);
  const judged = known(correct) ? el("strong", { class: correct ? "right" : "wrong" }, tokenNode(answer ?? ""), correct ? " ✓" : " ✗",
    el("span", { class: "unseen" }, t(correct ? "right" : "wrong"))) : el("strong", {}, tokenNode(answer ?? ""));
  return toned(model.encoding, el("div", { class: "pane" },
    el("p", { class: "who" }, el("b", {}, nameNode(model.encoding)), model.encoding === bare && !ordered && ` · ${t("without")}`),
    el("p", { class: "said" }, thumbnail(example), tokenNode(example.input), el("span", { "aria-hidden": "true" }, " → "), judged, expectedNode(example, correct)),
    site ? board(model, site) : el("p", { class: "note" }, t("noHead")),
    el("div", {}, site && proofChip(site.trust ?? {}, `proof ${model.encoding}`), infoNote(`info ${model.encoding}`, factsOf(model)))));
}

/** Whether equal tokens are told apart: in the rows of an encoder, in the columns of what looks at it. */
const apartIn = (model) => (siteOf(model)?.equal_rows ?? siteOf(model)?.equal_columns)?.[opening.head];

function caption() {
  const site = siteOf(better);
  const { head, query, key, measured } = opening;
  const weights = models.filter(siteOf).flatMap((model, index) => [index ? ", " : "", nameNode(model.encoding), " ",
    (headWeights(siteOf(model), head)[query * site.key.length + key]).toFixed(2)]);
  const [first] = models;
  const blind = models.length > 1 && apartIn(first) === 0 && apartIn(better) > 0;
  const unit = t("unit");
  const which = t("which", t(site.kind), layerOf(better), head);
  return [which[0].toUpperCase(), which.slice(1), ": ", t.parts(measured ? "measured" : "farthest", nameNode(better.encoding)), " ",
    t.parts("framed", tokenNode(site.query[query]), tokenNode(site.key[key]), weights), " ",
    isImage(example) && [t("over"), " "],
    blind && [t.parts(site.equal_rows ? "alikeRows" : "alike", nameNode(first.encoding), unit), " ",
      t.parts("apart", nameNode(better.encoding), number(apartIn(better)))]];
}

function sheet() {
  const title = (model) => `${model.encoding}: ${example.input} → ${model.answer ?? ""} ${known(model.correct) ? model.correct ? "✓" : "✗" : ""}`;
  const drawings = models.filter(siteOf).map((model) => mapDrawing(title(model), mapOf(siteOf(model)), siteOf(model).query, siteOf(model).key,
    digitPlaces(siteOf(model)).rows, digitPlaces(siteOf(model)).columns));
  return sheetOf(drawings, t("which", t(siteOf(better).kind), layerOf(better), opening.head));
}

export function drawHero() {
  if (!better || !siteOf(better)) return null;
  boards = [];
  const close = siteOf(better).key.length <= BESIDE;
  refill(root, el("div", { class: close ? "panels close" : "panels" }, models.map(pane)), el("figcaption", {}, caption()),
    el("div", { class: "after" }, pressable("open head", t("open"), () => openHere(opening)), savers("opening", t("figure"), sheet),
    legendNode({ scale: "even" }, t("evenShare"))));
  return root;
}

export function fitHero() {
  if (!boards.length) return;
  const room = root.querySelector(".pane").clientWidth;
  const highest = TALLEST / Math.max(...boards.map((made) => made.rows));
  fitBoards(boards, room, 8 + roomOfImage(example, room), (fitting) => Math.max(13, Math.floor(Math.min(fitting, highest))), LARGEST);
  for (const made of boards) markBoard(made, [opening.query, opening.key]);
}
