// The input as a sentence, in the colours of one row of the open map, and the answer with its probabilities.
import { pressable } from "kit/controls.js";
import { valueColour, visibleKeys } from "kit/draw.js";
import { el, styled } from "kit/elements.js";
import { clamp, known, percent } from "kit/numbers.js";
import { cutToken, token, tokenNode } from "kit/tokens.js";
import { speaking } from "kit/words.js";
import { drawnSite, hiddenUnder } from "./edits.js";
import { headWeights, isSpecial, paintedSide, wordsOf } from "./sites.js";
import { WORDS } from "./words.js";

const LONGEST = 160; // tokens of a sentence
const LETTERS = 32; // of a token
const t = speaking({ patches: ["image, {0} patches", "이미지, 패치 {0}개"], sentence: ["{0}: press a token to see where it looks from there", "{0}: 토큰을 누르면 거기서 보는 곳이 나옵니다"] }, WORDS);

/** What the model was asked for: all that it wrote, or what follows its text. */
export const answerPlaces = ({ outputs, says, sides, prompt }) => says === "next" || (!says && !sides.source && outputs.length > 1 && sides.target) ? outputs.slice(-1) : outputs.slice(prompt ?? 0);

/** The side whose tokens are the input. */
const inputSide = (view) => view.with_image ? "target" : view.sides.source && !view.sides.source.picture ? "source" : !view.sides.source && view.sides.target && !paintedSide(view) ? "target" : null;

/** Whether the input stands on the page as a sentence. */
export function hasSentence(view) {
  const side = inputSide(view);
  const count = side === null ? 0 : view.sides[side].tokens.length - patchesOf(view, side).length;
  return count > 0 && count <= LONGEST;
}

/** The places of the patches that a text has among its tokens. */
function patchesOf(view, side) {
  const { first, rows, columns } = view.sides[side].picture ?? { first: 0, rows: 0, columns: 0 };
  return Array.from({ length: rows * columns }, (_, patch) => first + patch);
}

/** The input as a sentence and what the model says to it. */
export function spokenNodes(app, view, index) {
  const written = outputTokens(app, view, index);
  return [sentenceNode(app, view, index, written?.point), written?.node];
}

/**
 * The input's tokens; those that are keys of the open map have the colours of the row that is looked from. point: shows what was likely at
 * a place, if the outputs are places of this text.
 */
function sentenceNode(app, view, index, point) {
  if (!hasSentence(view)) return null;
  const side = inputSide(view);
  const { tokens } = view.sides[side];
  const site = app.site(index);
  const { query, head } = app.state;
  const row = site && head < site.heads && site.keys === side && site.pooled <= 1 && query < site.shape[0] ? rowOf(index, site, head, query) : null;
  const framed = site?.queries === side && row ? query : null;
  const node = (text, at) => {
    const weight = row?.weights[at];
    const seen = known(weight) && !row.hidden?.[at];
    const button = pressable(`sentence ${index} ${at}`, cutToken(text, LETTERS), () => app.set({ view: index, query: clamp(at, 0, app.site(index).shape[0] - 1) }),
      { class: `word ${isSpecial(text) ? "special" : ""}`, title: seen ? percent(weight) : token(text), tabindex: -1, "aria-current": at === framed ? "true" : null, disabled: site?.queries !== side,
        ...(point && { onpointerenter: () => point(at), onfocus: () => point(at) }) });
    return seen ? styled(button, { background: valueColour(weight, { scale: app.state.scale === "fit" ? "full" : app.state.scale }, row.keys), color: inkOn(valueColour(weight, { scale: app.state.scale }, row.keys)) }) : button;
  };
  const spaced = tokens.some((text) => [...text].length > 1);
  const patches = patchesOf(view, side);
  const words = tokens.map((text, at) => patches.includes(at) ? null : node(text, at));
  if (patches.length) words[patches[0]] = imageNode(row, patches);
  return el("p", { class: spaced ? "sentence spaced" : "sentence", role: "group", "aria-label": t("sentence", t("input")) }, words);
}
/** The image in its place among the tokens, with its share of the row. */
function imageNode(row, patches) {
  const share = row && patches.reduce((sum, at) => sum + row.weights[at], 0);
  return el("span", { class: "word special" }, `▦ ${t("patches", patches.length)}${row ? `: ${percent(share)}` : ""}`);
}
function rowOf(index, site, head, query) {
  const columns = site.shape[1];
  const hidden = hiddenUnder(index, site, head);
  const cut = (cells) => cells?.subarray(query * columns, (query + 1) * columns);
  return { weights: cut(headWeights(drawnSite(index, site), head)), hidden: cut(hidden), keys: visibleKeys({ hidden: cut(hidden) }, 1, columns)[0] };
}
/** Black or white, whichever is read better on a colour. */
function inkOn(colour) {
  const [red, green, blue] = colour.match(/\d+/g).map((part) => (part / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? "#15181b" : "#fff";
}

/** What a row of outputs is, where a model is asked otherwise than to write. */
const WRITTEN = { masked: "written_image", class: "written_image", words: "written_words", labels: "written_labels" };
const pointedAt = new Map(); // view index -> the place whose candidates are shown

/**
 * {node, point}: the answer token by token with its probabilities, and what else was likely: at the least sure place, or where one points.
 * The words of a text that the model was given stand in the sentence; point(place) shows what was likely there.
 */
function outputTokens(app, view, index) {
  const { outputs } = view;
  if (!outputs.length) return null;
  const words = t(WRITTEN[view.says] ?? (view.sides.source || paintedSide(view) ? wordsOf(view, "written") : "written_text")); // of a text that is given
  const shareOf = ({ token: text, top }) => top.find(([other]) => other === text)?.[1] ?? null;
  const places = answerPlaces(view);
  const ofText = inputSide(view) !== null && (view.says === "words" || places.length < outputs.length);
  const listed = !ofText ? outputs : view.says === "words" ? [] : places;
  const first = outputs.indexOf(places.reduce((one, other) => (shareOf(other) ?? 0) < (shareOf(one) ?? 0) ? other : one));
  const candidates = el("div", { class: "likely", "aria-live": "polite" });
  const likely = ([text, share]) => [tokenNode(text), styled(el("i"), { "--share": share }), el("span", {}, percent(share))];
  const show = (place) => {
    pointedAt.set(index, place);
    for (const [at, button] of [...row.children].entries()) button.tabIndex = outputs[place] === listed[at] || listed.length === 1 ? 0 : -1;
    candidates.replaceChildren(...outputs[place].top.flatMap(likely));
  };
  const move = (event, place) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    row.children[clamp(listed.indexOf(outputs[place]) + step, 0, listed.length - 1)].focus();
  };
  const press = (place) => {
    show(place);
    if (!ofText && app.site(index)?.queries === "target") app.set({ view: index, query: clamp(place, 0, app.site(index).shape[0] - 1) });
  };
  const row = el("div", { class: "outputs", role: "toolbar", "aria-label": words, title: words }, listed.map((output) => [output, outputs.indexOf(output)]).map(([output, place]) =>
    pressable(`output ${index} ${place}`, [tokenNode(output.token), el("small", {}, known(shareOf(output)) ? percent(shareOf(output)) : "–")], () => press(place), { tabindex: -1,
      class: places.includes(output) ? "asked" : null, onpointerenter: () => show(place), onfocus: () => show(place), onkeydown: (event) => move(event, place) })));
  show(pointedAt.get(index) < outputs.length ? pointedAt.get(index) : first);
  const written = el("div", { class: "written" }, row, candidates);
  const node = paintedSide(view) ? el("details", {}, el("summary", {}, t("codes", outputs.length)), written) : written; // the image says more
  return { node, point: ofText && show };
}
