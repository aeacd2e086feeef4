// Why: where the model looks. Every head of the chosen models, and one of them large.
import { chooser, labelled, note } from "kit/controls.js";
import { legendNode } from "kit/draw.js";
import { el, refill } from "kit/elements.js";
import { headsGrid, drawSmall, markHeads } from "kit/heads.js";
import { gridDrawing } from "kit/mapdrawing.js";
import { known } from "kit/numbers.js";
import { commandNode } from "kit/proof.js";
import { savers, sheetOf } from "kit/saving.js";
import { cutToken, nameNode, tokenNode } from "kit/tokens.js";
import { toned } from "kit/tones.js";
import { speaking } from "kit/words.js";
import { gallery } from "./images.js";
import { drawLarge, fitLarge, largeMaps, largeSheet } from "./large.js";
import { chooseExample, chooseHead, colours, kindsThere, look, modelName, shownModels, sitesOf } from "./look.js";
import { pills, section } from "./parts.js";
import { examples, headWeights, hiddenIn, withDigits } from "./study.js";
import { KINDS, WORDS } from "./words.js";

const t = speaking({
  link: ["Why", "이유"],
  title: ["Why: where the model looks", "이유: 모델은 어디를 보는가"],
  about: ["For each {0}, *attention* gives weights that sum to 1 to the {0}s that it may look at. A row of a map holds the weights of one *query*, the {0} that looks, over the *keys*, the {0}s that it looks at. A model has several *layers* in sequence, each with several *heads* in parallel. Both are counted from 0, as in the code.",
    "*어텐션*은 {0}마다, 볼 수 있는 {0}들에 합이 1인 가중치를 줍니다. 맵의 한 행은 *쿼리*(보는 {0}) 하나가 *키*(보이는 {0})마다 주는 가중치입니다. 모델에는 여러 *층*이 차례로 있고, 층마다 여러 *헤드*가 나란히 있습니다. 층과 헤드는 코드에서처럼 0부터 셉니다."],
  encoder: ["The encoder reads. Rows and columns: the input. Every {0} looks at every {0}, itself included.", "인코더는 읽습니다. 행과 열: 입력. {0}마다 자신을 포함한 모든 {0}에 가중치를 줍니다."],
  decoder: ["The decoder reads and goes on writing. Rows and columns: the input, then the answer as it is written. A {0} cannot look at later ones (hatched).",
    "디코더는 읽고 이어서 씁니다. 행과 열: 입력, 이어서 쓰이는 답. 뒤에 오는 것은 볼 수 없습니다(빗금)."],
  cross: ["The decoder writes the answer and looks at the input through the encoder. Rows: the answer, each row the step before its next {0}. Columns: the input.",
    "디코더는 답을 쓰면서 인코더가 읽은 입력을 봅니다. 행: 답(다음 {0}의 바로 앞 단계). 열: 입력."],
  example: ["Example input → right answer", "예제 입력 → 정답"],
  models: ["Models side by side", "나란히 볼 모델"],
  attention: ["Attention", "어텐션"],
  scale: ["Colour scale", "색 눈금"], even: ["times the even share", "균등 몫의 배수"], full: ["0 to 1", "0–1"],
  rows: ["Rows", "행"], asRead: ["as read", "읽은 차례"], together: ["equal digits together", "같은 숫자끼리"],
  every: ["Every head", "모든 헤드"],
  grid: ["Layers go down, heads go across; every small map has queries down and keys across. Choose one (click, or arrow keys and Enter) and it opens below, the same head in every model.",
    "아래로 층, 옆으로 헤드이며, 작은 맵마다 쿼리는 아래로, 키는 옆으로 놓입니다. 하나를 고르면(클릭, 또는 화살표 키와 Enter) 모든 모델의 같은 헤드가 아래에 크게 열립니다."],
  allHeads: ["{0}: all heads", "{0}: 모든 헤드"],
  headOf: ["{0}, layer {1}, head {2}", "{0}, 층 {1}, 헤드 {2}"],
  answers: ["answers {0}", "답: {0}"], right: [" ✓ right", " ✓ 맞음"], wrong: [" ✗ wrong", " ✗ 틀림"],
  opened: ["It opens with the head that separates equal digits most.", "같은 숫자를 가장 잘 구별하는 헤드로 열렸습니다."],
  more: ["To see every measure, switch heads off or try other inputs, run this where the runs were trained:",
    "모든 척도를 보거나 헤드를 끄거나 다른 입력을 쓰려면 학습한 곳에서 다음 명령을 실행하세요."],
}, KINDS, WORDS);

const boxes = Object.fromEntries(["gallery", "controls", "kind", "legend", "overview", "command"].map((id) => [id, el("div", { id })]));
const opened = el("p", { class: "note", id: "large-note" });

const PLACES = ["cross", "decoder", "encoder"];
function drawControls() {
  const { models } = look.example;
  const kinds = kindsThere();
  const choose = (change) => (value, box) => { change(value, box); drawMaps(); };
  const answerOf = ({ expected }) => known(expected) ? ` → ${cutToken(expected, 30)}` : "";
  const asked = examples.map((example) => [example, cutToken(example.input, 60) + answerOf(example)]);
  const toggle = (index, box) => {
    if (box.checked) look.shown.add(index);
    else if (look.shown.size > 1) look.shown.delete(index);
    box.checked = look.shown.has(index); // the last one stays
  };
  const images = gallery(look.example, (example) => { chooseExample(example); drawControls(); drawMaps(); });
  refill(boxes.gallery, images);
  refill(boxes.controls, !images && labelled(t("example"), chooser("example", look.example, asked, choose(chooseExample))),
    pills("models", t("models"), "checkbox", models.map(modelName), (index) => look.shown.has(index), choose(toggle)),
    pills("attention", t("attention"), "radio", kinds.map((kind) => t(kind)), (index) => kinds[index] === look.kind,
      choose((index) => Object.assign(look, { kind: kinds[index], query: null, key: null }))),
    pills("scale", t("scale"), "radio", [t("even"), t("full")], (index) => look.even === (index === 0),
      choose((index) => { look.even = index === 0; })),
    withDigits && pills("rows", t("rows"), "radio", [t("asRead"), t("together")], (index) => look.together === (index === 1),
      choose((index) => { look.together = index === 1; })));
}

function drawMaps() {
  const place = PLACES.find((word) => look.kind.includes(word));
  refill(boxes.kind, note(t(place, t("unit"))));
  refill(boxes.legend, legendNode(colours(), t(look.even ? "evenShare" : "weight")));
  refill(boxes.overview, shownModels().map((model) => overview(model)));
  refill(boxes.command, look.example.explore && [note(t("more")), commandNode(look.example.explore, "copy command")]);
  openHead();
}

/** All heads of the models on screen, as a drawing. */
function gridSheet() {
  const mapsOf = (site) => Array.from({ length: site.heads }, (_, head) => ({ data: headWeights(site, head), hidden: hiddenIn(site),
    shape: [site.query.length, site.key.length], options: { ...colours(), hidden: hiddenIn(site) } }));
  const drawings = shownModels().map((model) => gridDrawing(modelName(model), sitesOf(model).map((site, layer) => ({ label: layer, maps: mapsOf(site) }))));
  return sheetOf(drawings, `${look.example.input}: ${t(look.kind)}, ${t(look.even ? "evenShare" : "weight")}`);
}

function overview(model) {
  const judged = el("span", { class: model.correct ? "right" : "wrong" }, t(model.correct ? "right" : "wrong"));
  const sites = sitesOf(model);
  const rows = sites.map((site, layer) => ({ label: layer, title: site.name, heads: site.heads }));
  const cell = (layer, head) => {
    const site = sites[layer];
    const shape = [site.query.length, site.key.length];
    const name = t("headOf", modelName(model), layer, head);
    const weights = { data: headWeights(site, head), hidden: hiddenIn(site), shape };
    const enlarge = () => {
      Object.assign(look, { layer, head });
      opened.hidden = true;
      openHead();
      largeMaps.title.scrollIntoView({ block: "nearest" });
    };
    return { shape, paint: (canvas) => drawSmall(canvas, site, head, weights, { high: 1, ...colours() }),
      attributes: { "data-keep": name, "aria-label": name, title: name, onclick: enlarge } };
  };
  return toned(model.encoding, el("div", { class: "pane" }, el("h4", {}, nameNode(modelName(model))),
    el("p", { class: "answer" }, t.parts("answers", tokenNode(model.answer)), known(model.correct) && judged),
    headsGrid(t("allHeads", modelName(model)), rows, cell)));
}

function openHead() {
  markHeads(boxes.overview, ({ row, head }) => Number(row) === look.layer && Number(head) === look.head);
  drawLarge();
}

if (examples.length) {
  chooseExample(examples[0]);
  opened.hidden = !chooseHead();
}

/** Show the head that the report opens with, and go there. */
export function openHere({ example, site, head, models, query, key }) {
  chooseExample(examples[example]);
  const { sites } = look.example.models[models.at(-1)];
  const { kind } = sites.find(({ name }) => name === site);
  const layer = sites.filter((one) => one.kind === kind).findIndex(({ name }) => name === site);
  Object.assign(look, { kind, layer, head, query, key, shown: new Set(models) });
  opened.hidden = true;
  drawControls();
  drawMaps();
  largeMaps.title.scrollIntoView({ block: "start" });
  largeMaps.root.querySelector(".field")?.focus({ preventScroll: true });
}

export const why = {
  id: "why", name: () => t("link"), fit: fitLarge,
  draw() {
    if (!examples.length) return null;
    drawControls();
    drawMaps();
    refill(opened, t("opened"));
    return section("why", t("title"), el("p", {}, t.parts("about", t("unit"))),
      boxes.gallery, boxes.controls, boxes.kind, boxes.legend,
      el("h3", {}, t("every")), note(t("grid")), boxes.overview, savers("heads", t("every"), gridSheet),
      largeMaps.title, opened, largeMaps.readout, largeMaps.root, savers("head", t("attention"), largeSheet), boxes.command);
  },
};
