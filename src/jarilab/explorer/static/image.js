// The image that the patches, or the codes of a painter, are of: what a query looks at, or what looks at a key, lies over
// it, and a patch pointed at is a cell of the maps.
import { chooser, labelled, note, pressable } from "kit/controls.js";
import { legendNode } from "kit/draw.js";
import { el, refill, styled } from "kit/elements.js";
import { clamp, known, number, percent } from "kit/numbers.js";
import { framePatch, layOver, overImage, patchField, pixelsOf } from "kit/patches.js";
import { token, tokenNode } from "kit/tokens.js";
import { speaking } from "kit/words.js";
import { pointCell, shownPane } from "./map.js";
import { picturedSide } from "./sites.js";
import { WORDS } from "./words.js";

const t = speaking({
  image: ["The image", "이미지"], sound: ["The sound: its mel spectrogram, {0} s", "소리: 멜 스펙트로그램, {0} s"],
  plain: ["without anything over it", "덮지 않은 이미지"],
  label: ["the image, {0} rows of {1} patches", "이미지, 패치 {0}행 {1}열"],
  help: ["Arrows choose a patch; the cell of the maps follows.", "화살표로 패치를 고르면 맵의 칸이 따라옵니다."],
  side: ["A patch is taken as", "패치를 고르면"],
  of: ["Laid over it", "덮을 값"],
  strength: ["Strength", "진하기"],
  of_query: ["what the query looks at", "쿼리가 보는 것"],
  of_mean: ["mean of all patches", "모든 패치의 평균"],
  of_class: ["the class token's", "클래스 토큰이 보는 것"],
  row: ["query {0}, over its keys: the fainter, the less weight", "쿼리 {0}, 키별: 옅을수록 가중치가 작음"],
  row_mean: ["mean over the patches, which the class is read from: the fainter, the less weight", "클래스를 읽는 패치 평균: 옅을수록 가중치가 작음"],
  row_class: ["the class token, which the class is read from: the fainter, the less weight", "클래스를 읽는 클래스 토큰: 옅을수록 가중치가 작음"],
  best: ["largest at", "최대:"],
  nowhere: ["Without a place, as {0}:", "자리 없는 토큰({0}):"],
  queries: ["Object queries", "객체 쿼리"],
  box: ["object query {0}: {1}, {2}; show what it looks at", "객체 쿼리 {0}: {1}, {2}. 누르면 보는 곳 표시"],
  nothing: ["nothing", "없음"],
  distance: ["This head looks {0} patches far on average (equal weights: {1}).", "이 헤드는 평균 {0} 패치 떨어진 곳을 봅니다(균등할 때 {1})."],
  otherSound: ["These queries look at each other, not at the sound.", "이 쿼리들은 소리가 아니라 서로를 봅니다."],
  other: ["These queries look at each other, not at the image.", "이 쿼리들은 이미지가 아니라 서로를 봅니다."],
  none: ["There is nothing here to lay over the image.", "여기에는 이미지 위에 덮을 것이 없습니다."],
  column: ["key {0}, over the queries that look at it: the fainter, the less weight", "키 {0}, 이를 보는 쿼리별: 옅을수록 가중치가 작음"],
  before: ["This query comes before the image and cannot look at it.", "이 쿼리는 이미지보다 앞에 있어 이미지를 볼 수 없습니다."],
  textWords: ["The text; press a word to see where it looks in the image, as {0}:", "글. 낱말을 누르면 이미지에서 보는 곳이 나옵니다({0}):"],
  captionWords: ["The caption, with the query's weight on each word; point at one for the places that look at it:", "설명의 낱말과 쿼리가 주는 가중치. 낱말을 가리키면 그 낱말을 보는 자리가 나옵니다:"],
}, WORDS);

const choice = { side: "query", of: "query", strength: 75, spot: null, word: false };
let followSpot = () => {};

/** The patches of the chosen model's image, its boxes, and the map that lies over it. */
export function drawImage(root, app) {
  const view = app.view();
  choice.word = false;
  const site = app.site();
  const at = picturedSide(view, site) ?? "source"; // whose tokens lie over the image
  const { picture: image } = view.sides[at] ?? {}; // as the payload calls it
  const pane = shownPane(app.state.view);
  root.hidden = !image;
  followSpot = () => {};
  if (!image) return refill(root);
  const over = site.keys === at && !pane?.why && pane?.data;
  const inside = site.queries === at;
  const side = inside && over ? choice.side : site.keys === at ? "key" : null;
  const of = over && inside && image.pool ? choice.of : "query";
  const scene = { root, app, view, image, at, inside, site, pane, side, of };
  const field = fieldOf(scene);
  const bestNode = el("p", { class: "image-said", "aria-live": "off" });
  const legend = el("div");
  const follow = (spot) => {
    const row = over ? overlayOf(scene, spot) : null;
    drawCover(field, row);
    weighWords(root, scene, row, spot);
    frame(scene, field, spot);
    legend.replaceChildren(...(row ? [legendNode(overImage(row.high), t(row.words, token(view.sides[site[row.side]].tokens[row.place * site.pooled] ?? "")))] : []));
    bestNode.replaceChildren(...(over && !row ? [t("before")] : sayBest(scene, row, spot)));
  };
  const title = image.seconds ? t("sound", Number(image.seconds.toFixed(1))) : t("image");
  refill(root, el("h3", {}, title), el("div", { class: "image-beside" },
    el("figure", { class: "image-frame" }, field.node),
    over ? el("figure", { class: "image-plain" }, pixelsOf(image, { class: "plain" }), el("figcaption", {}, t("plain"))) : null,
    el("div", { class: "image-words" }, nowhereRow(scene), objectQueries(scene), bestNode, legend, tools(root, scene), distanceNote(scene),
      over ? null : note(t(pane?.why ? "none" : image.seconds ? "otherSound" : "other")))));
  followSpot = follow;
  follow(app.state);
}

/** The cell that is pointed at has moved. */
export const markImage = (spot) => followSpot(spot);

function tools(root, { app, image, at, side, site, pane }) {
  const again = (name) => (value) => { choice[name] = value; drawImage(root, app); };
  const strength = el("input", { type: "range", min: 0, max: 100, step: 5, value: choice.strength, "data-keep": "image-strength",
    oninput: ({ target }) => { choice.strength = Number(target.value); markImage(app.state); } });
  const over = site.keys === at && !pane?.why;
  const inside = over && site.queries === at;
  return el("div", { class: "panel-row" },
    inside && labelled(t("side"), chooser("image-side", side, ["query", "key"].map((name) => [name, t(name)]), again("side"))),
    inside && image.pool && labelled(t("of"), chooser("image-of", choice.of, [["query", t("of_query")], ["pool", t(`of_${image.pool}`)]], again("of"))),
    over && labelled(t("strength"), strength));
}

// ---------------------------------------------------------------- the drawing

function fieldOf(scene) {
  const { image, side } = scene;
  const boxes = outlines(scene);
  const help = side ? el("span", { class: "unseen", id: "image-help" }, t("help")) : null;
  const field = patchField(image, { role: side ? "application" : boxes.length ? "group" : "img", tabindex: side ? 0 : null, "aria-roledescription": side ? t("image") : null,
    "data-keep": "image-field", "aria-label": image.seconds ? t("sound", image.seconds) : t("label", image.rows, image.columns), "aria-describedby": side ? "image-help" : null, onkeydown: (event) => moveByKey(event, scene),
    onpointermove: (event) => pointAt(event, scene), onpointerleave: () => { choice.spot = null; pointCell(scene.app, null); },
    onclick: (event) => { pointAt(event, scene); pinSpot(scene); } }, [help, boxes.map((box) => box.node)]);
  return Object.assign(field, { boxes });
}

/** What lies over the image: the row of a query, of what a class is read from, or the column of a key; null for a query that
 *  comes before the image. values: of each patch, of which `hidden` has a mark where the query may not look at the key. */
function overlayOf({ image, at, inside, site, pane, side, of }, { query, key }) {
  const [rows, columns] = site.shape;
  const patches = image.rows * image.columns;
  const cell = (place) => Math.floor((image.first + place) / site.pooled);
  const mask = pane.hidden; // as the maps: also what edits hide
  const laid = (words, side, place, line, hides) => {
    const values = Float32Array.from({ length: patches }, (_, patch) => line(cell(patch)));
    const hidden = mask && Uint8Array.from({ length: patches }, (_, patch) => mask[hides(cell(patch))]);
    return { words, side, place, line, values, hidden, high: values.reduce((most, value) => Math.max(most, value), 0) || 1 };
  };
  if (inside && of === "query" && (side === "key" || choice.word)) {
    const down = (place) => place * columns + key;
    return laid("column", "keys", key, (place) => pane.data[down(place)], down);
  }
  if (inside && at === "target" && query < cell(0)) return null;
  let row = pane.data.subarray(query * columns, (query + 1) * columns);
  let words = "row";
  if (of === "pool") {
    // A class token comes first; a mean is over the patches, which come last.
    words = `row_${image.pool}`;
    const from = image.pool === "class" ? 0 : cell(0);
    const count = image.pool === "class" ? 1 : rows - from;
    row = new Float32Array(columns);
    for (let one = from; one < from + count; one += 1) for (let key = 0; key < columns; key += 1) row[key] += pane.data[one * columns + key] / count;
  }
  return laid(words, "queries", query, (place) => row[place], (place) => query * columns + place);
}
function drawCover(field, row) {
  field.cover.hidden = true;
  if (row) layOver(field, row, choice.strength / 100);
}
/** Frame the patches of query and key. */
function frame({ image, at, site, view, of }, field, spot) {
  for (const name of ["query", "key"]) {
    const mine = site[name === "query" ? "queries" : "keys"] === at && !(name === "query" && of === "pool");
    framePatch(field, name, mine ? spot[name] * site.pooled - image.first : -1);
  }
  const chosen = site.queries === "target" && view.sides.target?.boxes ? spot.query : -1;
  for (const box of field.boxes) box.node.classList.toggle("chosen", box.query === chosen);
}

/** What was found by each object query, from likely to unlikely things. */
const objectsOf = (view) => (view.sides.target?.boxes ?? []).map((box, query) => {
  const { token: label, top } = view.outputs[query];
  return { box, query, label, share: top[0][1], real: label !== "nothing" };
});
/** The box of each object query, the largest first, so that a smaller one within it can be pressed; unlikely ones are only drawn. */
function outlines(scene) {
  const area = ({ box: [left, top, right, bottom] }) => (right - left) * (bottom - top);
  return objectsOf(scene.view).sort((one, two) => area(two) - area(one)).map((object) => ({ query: object.query, node: outlined(scene, object) }));
}
function outlined({ app, view, site }, { box: [left, top, right, bottom], query, label, share, real }) {
  const words = el("span", {}, real ? `${token(label)} · q${query}` : `q${query}`);
  const look = `box ${real ? "real" : "nothing"}${top < 0.09 ? " high" : ""}`;
  const press = (event) => {
    if (site.queries === "target" && app.state.query === query) return; // chosen already: the press is for the patch under it
    event.stopPropagation();
    chooseObject(app, view, site, query);
  };
  const node = real ? el("button", { type: "button", class: look, "data-keep": `box ${query}`, "aria-label": t("box", query, token(label), percent(share)),
    "aria-pressed": String(site.queries === "target" && app.state.query === query), onclick: press }, words)
    : el("div", { class: look, "aria-hidden": "true" }, words);
  return styled(node, { left: `${100 * left}%`, top: `${100 * top}%`, width: `${100 * (right - left)}%`, height: `${100 * (bottom - top)}%` });
}

// ---------------------------------------------------------------- pointing

function pointAt(event, { app, image, site, side }) {
  if (!side) return;
  const area = event.currentTarget.getBoundingClientRect();
  const at = (place, begin, size, whole, count) => clamp(Math.floor((place - begin) / size * whole), 0, count - 1);
  const row = at(event.clientY, area.top, area.height, image.height, image.rows);
  const column = at(event.clientX, area.left, area.width, image.width, image.columns);
  const place = Math.floor((image.first + row * image.columns + column) / site.pooled);
  choice.spot = { query: app.state.query, key: app.state.key, [side]: place };
  pointCell(app, choice.spot);
}
function pinSpot({ app }) {
  const { spot } = choice;
  if (spot) app.set({ query: spot.query, key: spot.key });
}
const MOVES = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] };
function moveByKey(event, { app, view, image, at, site, side }) {
  const move = MOVES[event.key];
  if (!move || !side || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const patch = Math.max(0, app.state[side] * site.pooled - image.first);
  const row = clamp(Math.floor(patch / image.columns) + move[0], 0, image.rows - 1);
  const column = clamp(patch % image.columns + move[1], 0, image.columns - 1);
  const place = image.first + row * image.columns + column;
  app.set({ [side]: Math.floor(place / site.pooled) });
  const words = shownPane(app.state.view);
  const value = words?.data ? words.data[app.state.query * site.shape[1] + app.state.key] : null;
  document.getElementById("live").replaceChildren(`${t(side)} ${token(view.sides[at].tokens[place])}`, known(value) ? `; ${t("drawn_weights")} ${number(value)}` : "");
}

// ---------------------------------------------------------------- words

function sayBest({ view, image, at, site }, row, spot) {
  if (!row || row.hidden?.every(Boolean)) return [];
  const { tokens } = view.sides[at];
  const best = row.values.indexOf(row.values.reduce((most, value) => Math.max(most, value), 0));
  const other = row.side === "keys" ? "query" : "key"; // which the patches stand for
  const place = spot[other] * site.pooled;
  return [t("best"), " ", tokenNode(tokens[image.first + best] ?? ""), `: ${number(row.values[best])}`,
    ...(place >= image.first ? [`; ${t(other)} `, tokenNode(tokens[place]), `: ${number(row.line(spot[other]))}`] : [])];
}

/** Tokens without a place in the image stand beside it, to be chosen there. */
function nowhereRow(scene) {
  const { app, view, image, at, side, site } = scene;
  const { tokens } = view.sides[at];
  const places = [...tokens.keys()].filter((place) => place < image.first || place >= image.first + image.rows * image.columns);
  if (!places.length || !side || site.pooled > 1) return null;
  const words = at !== "target" ? "nowhere" : view.with_image ? "textWords" : "captionWords";
  const isText = words === "textWords";
  const choose = (place) => pressable(`nowhere ${place}`, [tokenNode(tokens[place]), isText && el("small")], () => app.set({ [side]: place }),
    { class: isText ? "word" : null, "data-place": place, "aria-pressed": String(app.state[side] === place) });
  const each = places.map((place) => words === "captionWords" ? wordButton(scene, place, tokenNode(tokens[place])) : choose(place));
  return el("p", { class: "image-row" }, `${t(words, t(side))} `, each);
}
/** The weight of the query on each word before the image; none where what looks at a key is shown. */
function weighWords(root, { site, pane }, row, { query }) {
  for (const button of root.querySelectorAll(".word")) {
    const weight = row?.words === "row" ? pane.data[query * site.shape[1] + Number(button.dataset.place)] : null;
    styled(button, { "--weight": weight ?? 0 }).lastChild.replaceChildren(weight?.toFixed(3) ?? "");
  }
}
/** A word comes before the image: it can only be looked at. Pointed at, it shows by which codes; pressed, it stays the key. */
function wordButton({ root, app, side }, place, name) {
  const point = (on) => () => { choice.word = on; pointCell(app, on ? { query: app.state.query, key: place } : null); };
  const hold = () => {
    Object.assign(choice, { side: "key", word: false });
    app.set({ key: place });
    drawImage(root, app);
  };
  return pressable(`nowhere ${place}`, [name, el("small")], hold, { class: "word", "data-place": place, "aria-pressed": String(side === "key" && app.state.key === place),
    onpointerenter: point(true), onpointerleave: point(false) });
}

/** An object query's row; where the maps are not of queries, the last attention to the image opens. */
function chooseObject(app, view, site, query) {
  const crosses = view.sites.filter(({ kind }) => kind === "cross");
  app.set({ query, ...(site.kind === "cross" ? {} : { site: crosses.at(-1).site }) });
}
/** Each object query, to be chosen. */
function objectQueries({ app, view, site }) {
  const objects = objectsOf(view);
  if (!objects.length) return null;
  return el("div", { class: "image-row", role: "group", "aria-label": t("queries") }, el("span", {}, t("queries")), objects.map(({ query, label, share, real }) =>
    pressable(`object ${query}`, [`q${query} `, real ? tokenNode(label) : t("nothing"), ` ${percent(share)}`], () => chooseObject(app, view, site, query),
      { class: real ? "real" : "nothing", "aria-pressed": String(site.queries === "target" && app.state.query === query) })));
}

function distanceNote({ app, at, image, site }) {
  if (at === "target" || image.seconds) return null; // words and sounds have distances of their own, which are no patches
  const distance = site.measures?.distance;
  const value = distance?.value[app.state.head];
  if (!known(value)) return null;
  return note(t("distance", number(value), number(distance.chance?.[app.state.head])));
}
