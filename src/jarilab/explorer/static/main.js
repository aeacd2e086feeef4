// The page: header, controls, tabs; what is drawn again when something changes.
import { byId, clamp, el, firstPayload, known, nameNode, percent, styled, token, tokenNode, toned } from "./data.js";
import { DRAWN, SCALES, app, chooseLanguage, followAddress, look, paintedSide, wordsOf } from "./state.js";
import { t } from "./words.js";
import { drawOverview, markOverview } from "./overview.js";
import { drawMaps, fitMaps, markCell } from "./map.js";
import { drawPicture, markPicture } from "./picture.js";
import { drawScrub } from "./scrub.js";
import { exporters, saveAs } from "./export.js";
import { chooser, labelled, pressable, refill } from "./panelkit.js";
import { walkPanel } from "./walk.js";
import { lensPanel } from "./lens.js";
import { partsPanel } from "./parts.js";
import { surgeryPanel } from "./surgery.js";
import { measuresPanel } from "./measures.js";
import { tasklensPanel } from "./tasklens.js";

app.panels = [walkPanel, lensPanel, partsPanel, surgeryPanel, measuresPanel, tasklensPanel];

// ---------------------------------------------------------------- header

function mainHeader() {
  const { views } = app.payload;
  document.documentElement.lang = app.language;
  document.title = `${token(views[0].input)} · ${views.map((view) => token(view.name)).join(", ")}`;
  const texts = { skip: "skip", headline: "title", lede: "lede", "overview-title": "allHeads", "panels-title": "panels", "map-help": "help" };
  for (const [id, words] of Object.entries(texts)) byId(id).replaceChildren(t(words));
  const other = app.language === "ko" ? "en" : "ko";
  refill(byId("language"), pressable("language", t("language"), () => chooseLanguage(other), { class: "plain", lang: other }));
  mainInput(views);
  refill(byId("models"), ...views.map(mainCard));
}

let mainAsked = ""; // what the field showed when it was drawn; another text in it is being typed
function mainInput(views) {
  const field = document.activeElement;
  const typed = field?.id === "input" && app.live && field.value !== mainAsked ? field.value : null;
  const box = el("input", { id: "input", name: "input", autocomplete: "off", spellcheck: "false", dir: "auto", readonly: !app.live,
    "aria-describedby": "input-note", "data-keep": "input" });
  mainAsked = views[0].input;
  box.value = typed ?? mainAsked;
  const note = app.live ? t("inputLive") : views[0].experiment ? t("inputSaved", token(views[0].run)) : null;
  refill(byId("ask"), el("label", { for: "input" }, t("input")), box, app.live ? el("button", { type: "submit" }, t("run")) : null,
    el("p", { class: "note", id: "input-note" }, note));
}

function mainCard(view, index) {
  const facts = [["task", view.task], ["encoding", view.encoding], ["step", view.step], ["seed", view.seed], ["runName", view.run],
    ["experiment", view.experiment?.slice(0, 8)]].filter(([, value]) => known(value));
  const choose = () => el("label", {}, el("input", { type: "radio", name: "view", checked: index === app.state.view,
    "data-keep": `view ${index}`, onchange: () => app.set({ view: index }) }), " ", nameNode(view.name));
  return toned(index, el("article", { class: "model" }, el("h2", {}, app.payload.views.length > 1 ? choose() : nameNode(view.name)),
    el("p", { class: "facts" }, facts.map(([name, value]) => el("span", {}, `${t(name)} `, el("b", {}, nameNode(value))))),
    known(view.answer) && el("p", {}, `${t(paintedSide(view) ? "answer_painted" : view.sides.target?.boxes ? "answer_found" : "answer")} `, tokenNode(view.answer, { class: "token big" }), mainVerdict(view)), mainOutputs(view, index)));
}
function mainVerdict({ answer, expected }) {
  if (!known(expected)) return null;
  if (answer === expected) return [" ", el("b", { class: "right" }, `✓ ${t("right")}`)];
  return [" ", el("b", { class: "wrong" }, `✗ ${t("wrong")}`), ` · ${t("expected")} `, tokenNode(expected)];
}

/** The answer token by token; the one pointed at tells what else was likely. */
function mainOutputs(view, index) {
  const { outputs } = view;
  if (!outputs.length) return null;
  const said = el("p", { class: "likely", "aria-live": "polite" }, t(wordsOf(view, "written")));
  const likely = ([text, share]) => el("span", { class: "likely-one" }, tokenNode(text), ` ${percent(share)}`, styled(el("i"), { "--share": share }));
  const show = (place) => {
    for (const [at, button] of [...row.children].entries()) button.tabIndex = at === place ? 0 : -1;
    said.replaceChildren(`${place} → `, ...outputs[place].top.map(likely));
  };
  const move = (event, place) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    row.children[clamp(place + step, 0, outputs.length - 1)].focus();
  };
  const row = el("div", { class: "outputs", role: "toolbar", "aria-label": t(wordsOf(view, "written")) }, outputs.map((output, place) =>
    pressable(`output ${index} ${place}`, tokenNode(output.token), () => show(place), { tabindex: place ? -1 : 0,
      onpointerenter: () => show(place), onfocus: () => show(place), onkeydown: (event) => move(event, place) })));
  return [row, said];
}

// ---------------------------------------------------------------- controls

const mainFlag = (name, change = (on) => app.set({ [name]: on })) => el("label", { class: "flag" }, el("input", { type: "checkbox",
  checked: Boolean(app.state[name]), "data-keep": name, onchange: (event) => change(event.target.checked) }), ` ${t(`flag_${name}`)}`);
/** A choice of [value, words] for one name of the state. */
const mainSelect = (name, words, options, more = {}) => labelled(t(words), chooser(name, app.state[name], options, (value) => app.set({ [name]: value, ...more })));

function mainTools() {
  const pick = (name, words, pairs, more) => mainSelect(name, words, pairs.map(([value, key]) => [value, t(key)]), more);
  const names = app.payload.views.map((view, index) => [index, token(view.name)]);
  const lock = (on) => app.set({ lock: on ? Number(byId("legend").dataset.high) : null });
  const ofLines = () => [mainSelect("top", "topKeys", [1, 3, 5, 10].map((count) => [count, count])), mainFlag("heads"), mainFlag("every")];
  const drawn = DRAWN.map((name) => [name, `drawn_${name}`]);
  const ofMaps = () => [pick("drawn", "drawn", drawn, { lock: null }), pick("scale", "colours", SCALES.map((name) => [name, name])), pick("range", "range", [["full", "full"], ["fit", "fit"]]),
    mainFlag("lock", lock), pick("zoom", "zoom", [["fit", "fitCells"], ["large", "largeCells"]]),
    ...(names.length > 2 ? [mainSelect("second", "difference", names), mainSelect("first", "minus", names)] : [])];
  const save = Object.keys(exporters).map((kind) => pressable(`save ${kind}`, kind.toUpperCase(), () => saveAs(app, kind)));
  refill(byId("tools"), pick("display", "display", [["map", "maps"], ["lines", "lines"]]),
    ...(app.state.display === "lines" ? ofLines() : ofMaps()), labelled(t("save"), el("div", { class: "row" }, save), "div"));
}

// ---------------------------------------------------------------- tabs

function mainTabs() {
  const open = mainOpen();
  refill(byId("tabs"), ...app.panels.map((panel) => pressable(panel.id, t(panel.title), () => app.set({ panel: panel.id }), { role: "tab",
    id: `tab-${panel.id}`, "aria-controls": `panel-${panel.id}`, "aria-selected": String(panel === open), tabindex: panel === open ? 0 : -1,
    onkeydown: mainTabMove })));
  for (const panel of app.panels) mainRoot(panel).hidden = panel !== open;
}
const mainOpen = () => app.panels.find((panel) => panel.id === app.state.panel) ?? app.panels[0];
function mainTabMove(event) {
  const place = { ArrowRight: 1, ArrowLeft: -1, Home: -99, End: 99 }[event.key];
  if (!place) return;
  event.preventDefault();
  const count = app.panels.length;
  const at = app.panels.indexOf(mainOpen()) + place;
  const next = app.panels[Math.abs(place) > 1 ? clamp(at, 0, count - 1) : (at + count) % count];
  app.set({ panel: next.id });
  byId(`tab-${next.id}`).focus();
}

/** Each panel keeps a place of its own, so that one that answers late writes nowhere else. */
function mainRoot({ id }) {
  const found = byId(`panel-${id}`);
  if (found) return found;
  const root = el("div", { role: "tabpanel", id: `panel-${id}`, class: `panel ${id}`, "aria-labelledby": `tab-${id}`, tabindex: 0 });
  byId("panels").append(root);
  return root;
}
async function mainPanel() {
  const panel = mainOpen();
  const root = mainRoot(panel);
  const { query, key, site } = app.state;
  byId("panels-cell").replaceChildren(t("headName", site, app.state.head), ", ", t("ofCell", query, key, token(app.view().name)));
  try {
    await panel.draw(root, app);
  } catch (error) {
    root.replaceChildren(el("p", { class: "note" }, t("failed", error.message)));
  }
}

// ---------------------------------------------------------------- what changes what

const MAIN_ALL = ["views", "language"];
const MAIN_HEADER = [...MAIN_ALL, "view"];
const MAIN_COLOURS = ["view", "scale", "range", "lock"];
const MAIN_MAPS = [...MAIN_COLOURS, "site", "head", "drawn", "display", "zoom", "first", "second", "top", "heads", "every"];
const MAIN_TOOLS = ["drawn", "display", "scale", "range", "lock", "zoom", "first", "second", "top", "heads", "every"];

function mainDraw(changed) {
  const any = (...lists) => lists.flat().some((name) => changed.has(name));
  if (any(MAIN_HEADER)) {
    mainHeader();
    drawScrub(byId("scrubbing"), app);
  }
  if (any(MAIN_ALL, MAIN_COLOURS)) drawOverview(byId("overview"), app);
  else if (any("site", "head")) markOverview(byId("overview"), app);
  if (any(MAIN_ALL, MAIN_MAPS) || (app.state.display === "lines" && any("query"))) drawMaps(byId("maps"), app);
  else if (any("query", "key")) markCell(app);
  if (any(MAIN_ALL, MAIN_MAPS, ["query", "key"])) drawPicture(byId("picture"), app);
  if (any(MAIN_ALL, MAIN_TOOLS)) mainTools();
  if (any(MAIN_ALL, "panel")) mainTabs();
  mainPanel();
}

app.onchange = mainDraw;
app.onspot = markPicture;
byId("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (app.live) look({ input: byId("input").value });
});
let mainWidth = 0;
new ResizeObserver(() => {
  if (byId("maps").clientWidth === mainWidth) return; // drawing changes the height, never the width
  mainWidth = byId("maps").clientWidth;
  fitMaps(app);
}).observe(byId("maps"));
mainDraw(new Set(MAIN_ALL));
followAddress();
document.documentElement.dataset.ready = firstPayload.format;
