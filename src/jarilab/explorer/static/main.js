// The page: header, controls, tabs; what is drawn again when something changes.
import { chooser, labelled, letterOf, pressable } from "kit/controls.js";
import { onNightfall } from "kit/draw.js";
import { byId, el, painted, refill, styled } from "kit/elements.js";
import { clamp, known } from "kit/numbers.js";
import { firstPayload } from "kit/payload.js";
import { answerNode, nameNode, token, tokenNode } from "kit/tokens.js";
import { toned } from "kit/tones.js";
import { languageButton } from "kit/words.js";
import { drawAgain, runsOf } from "./command.js";
import { editsOf, restoreEdits, undoEdit } from "./edits.js";
import { exporters, saveAs } from "./export.js";
import { followEffects } from "./effects.js";
import { drawBars, drawFinding, drawMost } from "./finding.js";
import { helpButton, keysInWords } from "./help.js";
import { drawMaps, markCell, refitMaps, repaintMaps } from "./map.js";
import { drawModelMap, markModelMap, repaintModelMap } from "./model_map.js";
import { hasSentence, spokenNodes } from "./sentence.js";
import { shareButtons } from "./sharing.js";
import { answerOf, inputName, inputWith, PAIRS } from "./sites.js";
import { app, DRAWN, followAddress, languageChanged, look, lookAsAddressed, SCALES, startEngines } from "./state.js";
import { t } from "./words.js";

// ---------------------------------------------------------------- header

function drawHeader() {
  const { views } = app.payload;
  document.documentElement.lang = app.language;
  document.documentElement.dataset.only = app.state.only;
  document.title = `${token(inputName(views[0]))} · ${views.map((view) => token(view.name)).join(", ")}`;
  const texts = { skip: "skip", headline: "title", lede: "lede", "overview-title": "allHeads", "panels-title": "panels", "how-title": "how", "options-title": "options" };
  for (const [id, words] of Object.entries(texts)) byId(id).replaceChildren(t(words));
  byId("map-help").replaceChildren(keysInWords());
  refill(byId("language"), helpButton(), languageButton(languageChanged));
  drawInput(views);
  refill(byId("models"), ...views.map(modelCard));
}

let asked = ""; // what the field showed when it was drawn; another text in it is being typed
function drawInput(views) {
  const focused = document.activeElement;
  const typed = focused?.id === "input" && app.reading() && focused.value !== asked ? focused.value : null;
  const box = el("input", { id: "input", name: "input", autocomplete: "off", spellcheck: "false", dir: "auto", readonly: !app.reading(),
    "aria-describedby": "input-note", "data-keep": "input" });
  asked = inputName(views[0]);
  box.value = typed ?? asked;
  const mayRead = app.live || firstPayload.views.every(({ engine }) => engine?.text?.read);
  const field = mayRead || !hasSentence(views[0]) ? [el("label", { for: "input" }, t("input")), box] : null; // the sentence is enough
  refill(byId("ask"), field, app.reading() ? el("button", { type: "submit" }, t("run")) : null, parts.filesNode?.(app, (input) => look({ input })),
    el("p", { class: "note", id: "input-note" }, inputNote(views)));
}
/** What can be computed, and where. */
function inputNote(views) {
  if (app.live) return t("inputLive");
  const states = views.map((_, index) => app.computing(index));
  const models = views[0].with_image ? `${runsOf(app)} --image …` : runsOf(app);
  const why = states.find((state) => state.why && !state.never)?.why;
  if (states.some((state) => state.otherStep)) return t("otherStep", firstPayload.views[0].step);
  if (app.reading()) return t("inputHere", Math.max(...states.map((state) => state.apart)).toExponential(0));
  if (why) return t("inputStill", why);
  if (states.some((state) => state.yes)) return t("inputKept", models);
  return views[0].words.length ? t("inputSaved", models) : null;
}

function modelCard(view, index) {
  const facts = [["task", view.task], ["encoding", view.encoding], ["step", view.step], ["seed", view.seed], ["runName", view.run],
    ["experiment", view.experiment?.slice(0, 8)]].filter(([, value]) => known(value));
  const choose = () => el("label", {}, el("input", { type: "radio", name: "view", checked: index === app.state.view,
    "data-keep": `view ${index}`, onchange: () => app.set({ view: index }) }), " ", nameNode(view.name));
  const more = el("details", { class: "about" }, el("summary", { "aria-label": t("about"), title: t("about") }, "ⓘ"),
    el("p", { class: "facts" }, facts.map(([name, value]) => el("span", {}, `${t(name)} `, el("b", {}, nameNode(value))))));
  const title = el("h2", {}, app.payload.views.length > 1 ? choose() : nameNode(view.name));
  const silent = SILENT.includes(view.says) && el("p", { class: "note" }, t(`says_${view.says}`, view.mask));
  const answer = known(view.answer) ? el("p", { class: "answer" }, `${t(answerOf(view))} `, answerNode(view.answer), verdict(view)) : silent;
  return toned(view.name, el("article", { class: index === app.state.view ? "model chosen" : "model" }, el("div", { class: "said" }, title, answer, more), parts.editedNode?.(app, index),
    el("div", { class: "spoken" }, spokenNodes(app, view, index))));
}
const SILENT = ["vectors", "words", "labels"]; // what gives no answer: why, and what edits are told by
function verdict({ answer, expected }) {
  if (!known(expected)) return null;
  if (answer === expected) return [" ", el("b", { class: "right" }, `✓ ${t("right")}`)];
  return [" ", el("b", { class: "wrong" }, `✗ ${t("wrong")}`), ` · ${t("expected")} `, tokenNode(expected)];
}

// ---------------------------------------------------------------- controls

const flagBox = (name, change = (on) => app.set({ [name]: on })) => el("label", { class: "flag" }, el("input", { type: "checkbox",
  checked: Boolean(app.state[name]), "data-keep": name, onchange: (event) => change(event.target.checked) }), ` ${t(`flag_${name}`)}`);
/** A choice of [value, words] for one name of the state. */
const selectOf = (name, words, options, more = {}) => labelled(t(words), chooser(name, app.state[name], options, (value) => app.set({ [name]: value, ...more })));

function drawTools() {
  const pick = (name, words, pairs, more) => selectOf(name, words, pairs.map(([value, key]) => [value, t(key)]), more);
  const names = app.payload.views.map((view, index) => [index, token(view.name)]);
  const cutting = app.payload.views.some((_, index) => app.computing(index).yes) && flagBox("cutting");
  const pairs = app.payload.views.some(({ sides }) => known(sides.source?.second)) && pick("pair", "pair", PAIRS.map((name) => [name, `pair_${name}`]));
  const ofLines = () => [pairs, selectOf("top", "topKeys", [1, 3, 5, 10].map((count) => [count, count])), flagBox("heads"), flagBox("every")];
  const drawn = DRAWN.map((name) => [name, `drawn_${name}`]);
  const ofMaps = () => [pick("drawn", "drawn", drawn), pick("scale", "colours", SCALES.map((name) => [name, name])), pairs, cutting, flagBox("plain"), pick("zoom", "zoom", [["fit", "fitCells"], ["large", "largeCells"]]),
    ...(names.length > 2 ? [selectOf("second", "difference", names), selectOf("first", "minus", names)] : [])];
  const save = Object.keys(exporters).map((kind) => pressable(`save ${kind}`, kind.toUpperCase(), () => saveAs(app, kind)));
  refill(byId("tools"), pick("display", "display", [["map", "maps"], ["lines", "lines"]]),
    ...(app.state.display === "lines" ? ofLines() : ofMaps()), labelled(t("save"), el("div", { class: "row" }, save), "div"), labelled(t("share"), el("div", { class: "row" }, shareButtons(app)), "div"));
}

// ---------------------------------------------------------------- tabs

function drawTabs() {
  const open = openPanel();
  byId("tabs").closest("section").hidden = !open;
  refill(byId("tabs"), ...panelsThere().map((panel) => pressable(panel.id, panel.title(), () => app.set({ panel: panel.id }), { role: "tab",
    id: `tab-${panel.id}`, "aria-controls": `panel-${panel.id}`, "aria-selected": String(panel === open), tabindex: panel === open ? 0 : -1,
    onkeydown: moveTab })));
  for (const panel of app.panels) rootOf(panel).hidden = panel !== open;
}
const panelsThere = () => app.panels.filter((panel) => panel.there?.(app) ?? true);
const openPanel = () => panelsThere().find((panel) => panel.id === app.state.panel) ?? panelsThere()[0];
function moveTab(event) {
  const place = { ArrowRight: 1, ArrowLeft: -1, Home: -99, End: 99 }[event.key];
  if (!place) return;
  event.preventDefault();
  const there = panelsThere();
  const count = there.length;
  const at = there.indexOf(openPanel()) + place;
  const next = there[Math.abs(place) > 1 ? clamp(at, 0, count - 1) : (at + count) % count];
  app.set({ panel: next.id });
  byId(`tab-${next.id}`).focus();
}

/** Each panel keeps a place of its own, so that one that answers late writes nowhere else. */
function rootOf({ id }) {
  const existing = byId(`panel-${id}`);
  if (existing) return existing;
  const root = el("div", { role: "tabpanel", id: `panel-${id}`, class: `panel ${id}`, "aria-labelledby": `tab-${id}`, tabindex: 0 });
  byId("panels").append(root);
  return root;
}
async function drawPanel() {
  const panel = openPanel();
  if (!panel) return;
  const root = rootOf(panel);
  const { query, key, site } = app.state;
  byId("panels-cell").replaceChildren(t("headName", site, app.state.head), ", ", t("ofCell", query, key, token(app.view().name)));
  try {
    await panel.draw(root, app);
  } catch (error) {
    root.replaceChildren(el("p", { class: "note" }, t("failed", error.message)));
  }
}

// ---------------------------------------------------------------- what changes what

const ALL = ["views", "language"];
const HEADER = [...ALL, "view", "engines", "only"];
const EDITED = ["edits", "asked"];
const COLOURS = ["view", "scale"];
const MAPS = [...COLOURS, "site", "head", "drawn", "display", "zoom", "first", "second", "top", "heads", "every", "plain", "pair"];
const TOOLS = ["plain", "pair", "drawn", "display", "scale", "zoom", "first", "second", "top", "heads", "every", "cutting", "engines"];

function drawChanged(changed) {
  drawTop(changed);
  drawRest(changed);
}

/** What a page begins with. */
function drawTop(changed) {
  const any = (...lists) => lists.flat().some((name) => changed.has(name));
  if (any("preview")) return drawMaps(byId("maps"), app);
  if (any(HEADER)) drawHeader();
  else if (any(EDITED, "site", "head", "query", "scale")) refill(byId("models"), ...app.payload.views.map(modelCard));
  if (any(ALL, "engines")) drawModelMap(byId("overview"), app);
  else if (any("edits", "effects")) repaintModelMap(byId("overview"), app);
  else if (any("view", "site", "head")) markModelMap(byId("overview"), app);
  if (any(ALL, MAPS, "engines") || (app.state.display === "lines" && any("query"))) drawMaps(byId("maps"), app);
  else if (any("edits")) repaintMaps(byId("maps"), app);
  else if (any("query", "key")) markCell(app);
  if (any(HEADER, "site", "head", "edits", "effects")) {
    drawFinding(byId("finding"), app);
    drawBars(byId("bars"), app);
  }
  if (any(HEADER, "site", "head", "query", "key", "edits")) drawMost(byId("most"), app);
  if (any(HEADER, "site", "head")) drawAgain(byId("again"), app);
  if (any(ALL, MAPS, ["query", "key", "edits"])) parts.drawImage?.(byId("image"), app);
  if (any(ALL, TOOLS)) drawTools();
}

/** What lies below the first screen. */
function drawRest(changed) {
  if (changed.has("preview")) return;
  const any = (...lists) => lists.flat().some((name) => changed.has(name));
  if (any(HEADER)) parts.drawScrub?.(byId("scrubbing"), app);
  if (any(ALL, "panel", "view", "engines")) drawTabs();
  const other = [...changed].some((name) => !EDITED.includes(name) && name !== "effects");
  if (other || openPanel()?.ofEdits) drawPanel();
}

app.onchange = drawChanged;
addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input:not([type=checkbox], [type=radio], [type=range]), textarea");
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && letterOf(event) === "z" && !typing && undoEdit(app)) event.preventDefault();
});
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const { value } = byId("input");
  if (app.reading()) look({ input: value === inputName(app.view(0)) ? app.view(0).input : inputWith(app.view(0), { text: value }) });
});
onNightfall(() => app.onchange(new Set(ALL)));
new ResizeObserver(() => refitMaps(app)).observe(byId("maps"));

let parts = {};
/** Draw the page. panels: what its tabs show. more: {drawImage, markImage, drawScrub, filesNode, editedNode}, which a tape does not need. */
export async function begin(panels, more = {}) {
  app.panels = panels;
  parts = more;
  if (parts.markImage) app.onspot = parts.markImage;
  const all = new Set(ALL);
  drawTop(all);
  await painted();
  drawRest(all);
  followAddress();
  if (app.live) restoreEdits(app);
  document.documentElement.dataset.ready = firstPayload.format;
  await painted();
  followEffects(app);
  await startEngines(); // they take longer than all that is drawn
  if (!app.live && app.state.input !== app.view(0).input) await lookAsAddressed({ input: app.state.input });
  if (!app.live) restoreEdits(app);
  document.documentElement.dataset.engines = "ready";
}
