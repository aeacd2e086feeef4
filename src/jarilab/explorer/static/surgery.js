import { el, known, number, percent, svg, tokenNode, headWeights } from "./data.js";
import { barNode, beginPanel, cellAt, chooser, hiddenOf, labelled, nameCell, panelNote, pressable, refill, scrolling, smallMap, tableOf, withDetail } from "./panelkit.js";

const surgeryForm = { side: "both", how: "off", amount: "3", link: "erase", all: false };
const surgeryState = { model: null, edits: [], result: null, error: "", busy: false };

export const surgeryPanel = {
  id: "surgery", title: "surgeryTitle",
  draw(root, app) {
    beginPanel(root);
    const [model, before] = [app.view(), surgeryState.model];
    // Edits may be tried on another model or step, but not on another input; results belong to one model.
    if (model !== before) Object.assign(surgeryState, { model, edits: before?.input === model.input ? surgeryState.edits : [], result: null, error: "", busy: false });
    surgeryPage(root, app, () => app.state.panel === surgeryPanel.id && surgeryPanel.draw(root, app));
  },
};

function surgeryPage(root, app, again) {
  const { t } = app;
  const about = [el("p", {}, t("surgeryAbout")), surgeryErasure(app)];
  if (!app.live) {
    refill(root, ...about, el("p", {}, t("surgerySaved"), el("code", {}, `jarilab explore ${app.view().run} --input ${surgeryQuoted(app.view().input)}`)));
    return;
  }
  const { edits, error, busy } = surgeryState;
  const list = edits.map((edit, place) => el("li", {}, surgeryWords(app, edit), " ", pressable(`edit-${place}`, "×", () => {
    edits.splice(place, 1);
    again();
  })));
  list.forEach((item, place) => item.lastChild.setAttribute("aria-label", t("surgeryRemove", surgeryWords(app, edits[place]))));
  const run = pressable("surgery-run", t("run"), () => surgeryRun(app, again));
  run.disabled = busy || !edits.length;
  refill(root, ...about, surgeryForms(app, (edit) => {
    if (!edits.some((other) => JSON.stringify(other) === JSON.stringify(edit))) edits.push(edit);
    again();
  }),
  el("h3", {}, t("surgeryEdits")), list.length ? el("ul", { class: "surgery-edits" }, ...list) : panelNote(t("surgeryNone")), run,
  el("p", { role: "status" }, busy ? t("panelWait") : error), surgeryState.result && surgeryResult(app, surgeryState.result));
}

/** What the open head's largest weights do to the answer. */
function surgeryErasure(app) {
  const box = el("div");
  withDetail(box, app, ({ erasure }) => erasure && refill(box, el("p", {}, app.t("surgeryErasure", number(erasure.largest), percent(erasure.largest_flips),
    number(erasure.random), percent(erasure.random_flips), erasure.draws))));
  return box;
}

/** A word of a POSIX shell. */
const surgeryQuoted = (text) => /^[\w+.,:/-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`;

function surgeryForms(app, add) {
  const { t } = app;
  const { site, head } = app.state;
  const cell = cellAt(app, app.site().shape).map((place) => place * app.site().pooled);
  const set = (name) => (value) => { surgeryForm[name] = value; };
  const amount = el("input", { type: "number", step: "any", value: surgeryForm.amount, "data-keep": "surgery-amount", oninput: (event) => set("amount")(event.target.value) });
  const needs = () => { amount.disabled = !["shift", "stretch"].includes(surgeryForm.how); };
  needs();
  const how = chooser("surgery-how", surgeryForm.how, ["off", "shift", "stretch", "shuffle"].map((name) => [name, t(`surgery_${name}`)]), (value) => { set("how")(value); needs(); });
  const sides = Object.keys(app.view().sides).length > 1 && !app.view().sides.source.picture && chooser("surgery-side", surgeryForm.side, ["both", "source", "target"].map((name) => [name, t(`surgery_${name}`)]), set("side"));
  const moved = () => {
    const value = Number(surgeryForm.amount);
    if (!amount.disabled && !(surgeryForm.amount && Number.isFinite(value))) amount.focus();
    else add({ kind: "place", side: sides ? surgeryForm.side : "both", how: surgeryForm.how, ...(amount.disabled ? {} : { amount: value }) });
  };
  const all = el("input", { type: "checkbox", checked: surgeryForm.all, "data-keep": "surgery-all", onchange: (event) => set("all")(event.target.checked) });
  const link = chooser("surgery-link", surgeryForm.link, ["erase", "force"].map((name) => [name, t(`surgery_${name}`)]), set("link"));
  const hidden = hiddenOf(app, app.site().shape)?.[app.state.query * app.site().shape[1] + app.state.key];
  const linked = pressable("add-link", t("surgeryAdd"), () => add({ kind: "link", site, head: surgeryForm.all ? null : head, query: cell[0], key: cell[1], how: surgeryForm.link }));
  linked.disabled = Boolean(hidden);
  const group = (title, ...children) => el("fieldset", {}, el("legend", {}, t(title)), ...children);
  return el("div", { class: "surgery-forms" },
    group("surgeryPlaces", labelled(t("surgeryHow"), how), labelled(t("surgeryAmount"), amount), sides && labelled(t("surgerySide"), sides), pressable("add-place", t("surgeryAdd"), moved)),
    group("head", pressable("add-head", t("surgeryHeadOff", site, head), () => add({ kind: "head", site, head }))),
    group("surgeryLink", el("p", {}, nameCell(app, cell), hidden ? ` · ${t("hiddenShort")}` : ""), labelled(t("surgeryHow"), link),
      el("label", {}, all, " ", t("surgeryAllHeads")), linked));
}

function surgeryWords(app, edit) {
  const { t } = app;
  if (edit.kind === "place") return `${t("surgeryPlaces")}, ${t(`surgery_${edit.side}`)}: ${t(`surgery_${edit.how}`)}${known(edit.amount) ? ` ${edit.amount}` : ""}`;
  if (edit.kind === "head") return t("surgeryHeadOff", edit.site, edit.head);
  return `${t(`surgery_${edit.how}`)} ${t("panelCell", edit.query, edit.key)}: ${edit.site} ${edit.head === null ? t("surgeryAllHeads") : `${t("head")} ${edit.head}`}`;
}

async function surgeryRun(app, again) {
  const [{ input, step }, model] = [app.view(), app.view()];
  Object.assign(surgeryState, { busy: true, error: "" });
  again();
  let [result, error] = [surgeryState.result, ""];
  try {
    const edits = [...surgeryState.edits];
    result = { edits, ...await app.post("/api/surgery", { input, view: app.state.view, step, edits }) };
  } catch (trouble) {
    error = trouble.message;
  }
  if (surgeryState.model !== model) return;
  Object.assign(surgeryState, { busy: false, result, error });
  again();
}

// What came of it -----------------------------------------------------------------------------------------------------

function surgeryResult(app, { view, effect, edits }) {
  const { t } = app;
  const before = app.view().answer;
  const answer = (title, text, changed) => el("div", {}, el("dt", {}, title), el("dd", { class: changed ? "changed" : "" }, tokenNode(text)));
  const tokens = effect.tokens.map(({ token, before, after }) => [tokenNode(token),
    ...[before, after].map((value) => el("td", {}, barNode(value), known(value) ? percent(value) : "–"))]);
  const { log_probability: log } = effect;
  return el("section", { class: "surgery-result", "aria-label": t("surgeryAfter") },
    panelNote(edits.map((edit) => surgeryWords(app, edit)).join("; ")),
    known(effect.answer) && el("dl", {}, answer(`${t("answer")}, ${t("surgeryBefore")}`, before, false), answer(`${t("answer")}, ${t("surgeryAfter")}`, effect.answer, effect.answer !== before)),
    el("p", {}, t("surgeryLog", number(log.before), number(log.after))),
    scrolling(t("surgeryProbability"), tableOf([t("surgeryToken"), t("surgeryBefore"), t("surgeryAfter")], tokens, t("surgeryProbability"))),
    el("p", {}, t("surgeryDivergence", number(effect.divergence))), surgeryStrip(app, effect), surgeryMaps(app, view));
}

/** The divergence among those of the controls. */
function surgeryStrip(app, { divergence, controls }) {
  const { t } = app;
  if (!controls?.length) return panelNote(t("surgeryNoControls"));
  const rank = t("surgeryRank", controls.filter((control) => control.divergence < divergence).length, controls.length);
  const [width, height] = [360, 62];
  const top = Math.max(divergence, ...controls.map((control) => control.divergence)) || 1;
  const x = (value) => 14 + (width - 28) * value / top;
  const label = (value, anchor) => svg("text", { class: "small", x: x(value), y: height - 4, "text-anchor": anchor }, number(value));
  return el("figure", {}, svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "surgery-strip", role: "img", "aria-label": rank },
    svg("path", { class: "axis", d: `M14 30H${width - 14}` }), label(0, "middle"), label(top, "end"),
    ...controls.map((control) => svg("circle", { cx: x(control.divergence), cy: 30, r: 4 }, svg("title", {}, `${control.what}: ${number(control.divergence)}`))),
    svg("path", { class: "edit", d: `M${x(divergence)} 21l9 9l-9 9l-9 -9z` }, svg("title", {}, `${t("surgeryThis")}: ${number(divergence)}`))),
  el("figcaption", {}, `◆ ${t("surgeryThis")}, ○ ${t("surgeryControls", controls.length)}. ${rank}`));
}

/** The open head before and after. */
function surgeryMaps(app, view) {
  const edited = view?.sites.find((site) => site.site === app.state.site);
  if (!edited) return null;
  const figures = [[app.site(), "surgeryBefore"], [edited, "surgeryAfter"]].map(([site, when]) => {
    const words = `${app.t("headName", app.state.site, app.state.head)}: ${app.t(when)}`;
    const map = smallMap(headWeights(site, app.state.head), site.shape, { low: 0, high: 1, hidden: hiddenOf(app, site.shape) }, words, 260);
    map.mark(...cellAt(app, site.shape));
    return el("figure", {}, map.node, el("figcaption", {}, words));
  });
  return el("div", { class: "panel-beside" }, ...figures);
}
