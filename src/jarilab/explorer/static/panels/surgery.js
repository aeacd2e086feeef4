import { barNode, chooser, labelled, note, pressable, scrolling, tableOf } from "kit/controls.js";
import { adopt, el, refill, svg } from "kit/elements.js";
import { known, number, percent } from "kit/numbers.js";
import { tokenNode } from "kit/tokens.js";
import { speaking } from "kit/words.js";
import { commandOf } from "../command.js";
import { beginPanel, cellAt, hiddenOf, nameCell, numbered, smallMap, withDetail } from "./kit.js";
import { editedNode, likelihoodNode } from "../edited.js";
import { drawnSite, editsOf, isGone, isInForce, toggleEdit, tokenEdit } from "../edits.js";
import { headWeights, isOfTokens } from "../sites.js";
import { WORDS } from "../words.js";

const t = speaking({
  title: ["Surgery", "수술"],
  about: ["Edit the model and see whether the answer changes. A map alone does not show what matters.",
    "모델 안을 바꾸고 답이 바뀌는지 봅니다. 무엇이 중요한지는 맵만으로 알 수 없습니다."],
  saved: ["This page is saved and cannot run the model.", "저장된 페이지라 다시 계산할 수 없습니다."],
  live: ["Run it live:", "직접 실행하려면:"],
  erasure: ["Removing each query's largest key in this head changes the log-probability of the answer by {0} (another token becomes the likeliest at {1} of the places). Removing a random key changes it by {2} ({3}; mean of {4} draws).",
    "이 헤드에서 쿼리마다 가장 많이 보는 키를 없애면 답의 로그 확률이 {0} 변하고(자리의 {1}에서 최상위 토큰이 바뀜), 무작위 키를 없애면 {2} 변합니다({3}, {4}회 평균)."],
  places: ["Positions", "위치"],
  how_off: ["all at place 0", "모두 0번 자리"],
  how_shift: ["moved by", "이동"],
  how_stretch: ["stretched by", "늘이기"],
  how_shuffle: ["shuffled", "뒤섞기"],
  side_source: ["source", "입력"],
  side_target: ["target", "출력"],
  side_both: ["both sides", "양쪽"],
  side: ["Side", "쪽"],
  how: ["How", "방법"],
  amount: ["Amount", "양"],
  add: ["Add", "추가"],
  head: ["Head", "헤드"],
  headOff: ["Switch {0} head {1} off", "{0} 헤드 {1} 끄기"],
  link: ["Link", "연결"],
  link_force: ["force", "강제"],
  link_erase: ["erase", "지우기"],
  token: ["Token", "토큰"],
  tokenOff: ["Hide it from all queries", "모든 쿼리에게 숨기기"],
  tokenWhere: ["{0}: no query of any head and layer sees it, as if it were padding.", "{0}: 어느 층과 헤드의 쿼리도 보지 못합니다(패딩처럼)."],
  tokenless: ["The keys of some attention layers over this side do not match its tokens one by one, so no token can be hidden.", "이쪽을 보는 어텐션 층의 키가 토큰과 하나씩 맞지 않아 숨길 수 없습니다."],
  allHeads: ["in all heads", "모든 헤드에서"],
  none: ["No edit is applied.", "적용된 편집이 없습니다."],
  before: ["before", "전"],
  after: ["after", "후"],
  ofToken: ["token", "토큰"],
  probability: ["Probability of each token of the first answer", "처음 답의 토큰별 확률"],
  divergence: ["Divergence of the next-token distributions: {0} nats (at most ln 2 = 0.693)", "다음 토큰 분포의 발산: {0} nat(최대 ln 2 = 0.693)"],
  probability_words: ["Probability of each word of the text", "글에 있는 낱말마다의 확률"],
  probability_labels: ["Probability of the first class of each token", "토큰마다 처음 분류의 확률"],
  probability_class: ["Probability of the first class", "처음 분류의 확률"],
  divergence_words: ["Divergence of the distributions of words: {0} nats (at most ln 2 = 0.693)", "낱말 분포의 발산: {0} nat(최대 ln 2 = 0.693)"],
  divergence_masked: ["Divergence of the distributions under the mask: {0} nats (at most ln 2 = 0.693)", "가려진 자리의 토큰 분포의 발산: {0} nat(최대 ln 2 = 0.693)"],
  divergence_class: ["Divergence of the distributions of classes: {0} nats (at most ln 2 = 0.693)", "분류 분포의 발산: {0} nat(최대 ln 2 = 0.693)"],
  divergence_labels: ["Divergence of the distributions of classes: {0} nats (at most ln 2 = 0.693)", "분류 분포의 발산: {0} nat(최대 ln 2 = 0.693)"],
  likeliest: ["The likeliest", "가능성이 큰 후보"],
  rank: ["This edit's effect is larger than that of {0} of {1} edits of the same kind at random other places.", "이 편집의 효과는 무작위로 고른 다른 자리의 같은 편집 {1}개 가운데 {0}개보다 큽니다."],
  noControls: ["There are no edits of this kind at random other places to compare it with.", "무작위 다른 자리에 할 수 있는 같은 종류의 편집이 없어 견줄 수 없습니다."],
  this: ["this edit", "이 편집"],
  controls: ["the same at {0} random other places", "무작위 다른 자리 {0}곳"],
}, WORDS);

adopt(
  ".surgery-forms { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); gap: 1rem; }",
  ".surgery-forms fieldset { border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem .8rem; display: flex; flex-wrap: wrap; gap: .6rem .9rem; align-items: end; align-content: start; }",
  ".surgery-forms fieldset p { width: 100%; margin: 0; }",
  ".surgery-forms legend { padding: 0 .3rem; font-weight: 600; }",
  ".surgery-forms input[type=number] { width: 5rem; }",
  ".surgery-result tbody th { text-align: left; }",
  ".surgery-result { border-top: 1px solid var(--line); margin-top: 1rem; padding-top: 1rem; }",
  ".surgery-result .panel-beside { margin-top: 1rem; }",
  ".surgery-strip circle { fill: none; stroke: var(--muted); stroke-width: 1.5; }",
  ".surgery-strip .edit { fill: var(--accent); stroke: var(--ink); }",
  ".surgery-strip .axis { fill: none; stroke: var(--line); }",
  ".surgery-result table { margin-bottom: 1rem; }",
  ".surgery-strip text { fill: var(--ink); font: var(--t1) var(--sans); }",
);

const form = { side: "both", how: "off", amount: "3", link: "erase", all: false };

export const panel = {
  id: "surgery", title: () => t("title"), ofEdits: true, there: (app) => app.view().edits.length > 0 || Boolean(app.view().uneditable), // of a tape there is no model to edit
  draw(root, app) {
    beginPanel(root);
    const index = app.state.view;
    const about = [el("p", {}, t("about")), app.view().opens.includes("erasure") && erasureNote(app)];
    const { yes, why, never } = app.computing(index);
    if (!yes) {
      refill(root, ...about, el("p", {}, why ?? t("saved"), !never && [" ", t("live"), " ", el("code", {}, commandOf(app))]));
      return;
    }
    const { result, busy } = editsOf(index);
    const add = (edit) => !isInForce(index, edit) && toggleEdit(app, index, edit);
    refill(root, ...about, formNode(app, add), editedNode(app, index, "panel") ?? note(t("none")), result && resultNode(app, result, busy));
  },
};

/** What the open head's largest weights do to the answer. */
function erasureNote(app) {
  const box = el("div");
  withDetail(box, app, ({ erasure }) => erasure && refill(box, el("p", {}, t("erasure", number(erasure.largest), percent(erasure.largest_flips),
    number(erasure.random), percent(erasure.random_flips), erasure.draws))));
  return box;
}

function formNode(app, add) {
  const { site, head } = app.state;
  const cell = cellAt(app, app.site().shape).map((place) => place * app.site().pooled);
  const set = (name) => (value) => { form[name] = value; };
  const amount = el("input", { type: "number", step: "any", value: form.amount, "data-keep": "surgery-amount", oninput: (event) => set("amount")(event.target.value) });
  const needs = () => { amount.disabled = !["shift", "stretch"].includes(form.how); };
  needs();
  const how = chooser("surgery-how", form.how, ["off", "shift", "stretch", "shuffle"].map((name) => [name, t(`how_${name}`)]), (value) => { set("how")(value); needs(); });
  const sides = Object.keys(app.view().sides).length > 1 && !app.view().sides.source.picture && chooser("surgery-side", form.side, ["both", "source", "target"].map((name) => [name, t(`side_${name}`)]), set("side"));
  const moved = () => {
    const value = Number(form.amount);
    if (!amount.disabled && !(form.amount && Number.isFinite(value))) amount.focus();
    else add({ kind: "place", side: sides ? form.side : "both", how: form.how, ...(amount.disabled ? {} : { amount: value }) });
  };
  const all = el("input", { type: "checkbox", checked: form.all, "data-keep": "surgery-all", onchange: (event) => set("all")(event.target.checked) });
  const link = chooser("surgery-link", form.link, ["erase", "force"].map((name) => [name, t(`link_${name}`)]), set("link"));
  const hidden = hiddenOf(app, app.site().shape)?.[app.state.query * app.site().shape[1] + app.state.key];
  const linked = pressable("add-link", t("add"), () => add({ kind: "link", site, head: form.all ? null : head, query: cell[0], key: cell[1], how: form.link }));
  linked.disabled = Boolean(hidden) || isGone(app.state.view, app.site(), head, cell[1]);
  const { keys } = app.site();
  const ofTokens = isOfTokens(app.view(), keys);
  const hide = pressable("add-token", t("tokenOff"), () => add(tokenEdit(keys, cell[1])));
  hide.disabled = !ofTokens;
  const group = (title, ...children) => el("fieldset", {}, el("legend", {}, t(title)), ...children);
  return el("div", { class: "surgery-forms" },
    app.view().edits.includes("place") && group("places", labelled(t("how"), how), labelled(t("amount"), amount), sides && labelled(t("side"), sides), pressable("add-place", t("add"), moved)),
    group("head", pressable("add-head", t("headOff", site, head), () => add({ kind: "head", site, head }))),
    group("link", el("p", {}, nameCell(app, cell), hidden ? ` · ${t("hiddenShort")}` : ""), labelled(t("how"), link),
      el("label", {}, all, " ", t("allHeads")), linked),
    app.view().edits.includes("token") && group("token", el("p", {}, ofTokens ? t("tokenWhere", numbered(app.view().sides[keys].tokens, cell[1])) : t("tokenless")), hide));
}

// What came of it -----------------------------------------------------------------------------------------------------

function resultNode(app, { view, effect }, busy) {
  const tokens = effect.tokens.map(({ token, before, after }) => [tokenNode(token),
    ...[before, after].map((value) => el("td", {}, barNode(value), known(value) ? percent(value) : "–"))]);
  const { log_probability: log } = effect;
  const wordsFor = (key) => SAYS[app.view().says]?.includes(key) ? `${key}_${app.view().says}` : key;
  return el("section", { class: "surgery-result", "aria-label": t("after") },
    log ? [el("p", {}, likelihoodNode(app.view(), effect)),
      scrolling(t(wordsFor("probability")), tableOf([t("ofToken"), t("before"), t("after")], tokens, t(wordsFor("probability"))))] : null,
    likeliestNode(effect.likeliest),
    el("p", {}, log ? t(wordsFor("divergence"), number(effect.divergence)) : t("vectorsMoved", percent(effect.divergence))), busy ? note(t("wait")) : stripOf(app, effect), maps(app));
}

/** What has words of its own, by what a model says. */
const SAYS = { words: ["probability", "divergence"], labels: ["probability", "divergence"], class: ["probability", "divergence"], masked: ["divergence"] };

/** The likeliest of what can be said at the one place of an answer. */
function likeliestNode(likeliest) {
  if (!likeliest) return null;
  const share = ([text, value]) => [tokenNode(text), el("br"), percent(value)];
  const ranks = likeliest.before.map((_, place) => String(place + 1));
  return scrolling(t("likeliest"), tableOf(["", ...ranks], ["before", "after"].map((when) => [t(when), ...likeliest[when].map(share)]), t("likeliest")));
}

/** The divergence among those of the controls. */
function stripOf(app, { divergence, controls }) {
  if (!controls?.length) return note(t("noControls"));
  const rank = t("rank", controls.filter((control) => control.divergence < divergence).length, controls.length);
  const [width, height] = [360, 62];
  const top = Math.max(divergence, ...controls.map((control) => control.divergence)) || 1;
  const x = (value) => 14 + (width - 28) * value / top;
  const label = (value, anchor) => svg("text", { class: "small", x: x(value), y: height - 4, "text-anchor": anchor }, number(value));
  return el("figure", {}, svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "surgery-strip", role: "img", "aria-label": rank },
    svg("path", { class: "axis", d: `M14 30H${width - 14}` }), label(0, "middle"), label(top, "end"),
    ...controls.map((control) => svg("circle", { cx: x(control.divergence), cy: 30, r: 4 }, svg("title", {}, `${control.what}: ${number(control.divergence)}`))),
    svg("path", { class: "edit", d: `M${x(divergence)} 21l9 9l-9 9l-9 -9z` }, svg("title", {}, `${t("this")}: ${number(divergence)}`))),
  el("figcaption", {}, `◆ ${t("this")}, ○ ${t("controls", controls.length)}. ${rank}`));
}

/** The open head before and after. */
function maps(app) {
  const figures = [[app.site(), "before"], [drawnSite(app.state.view, app.site()), "after"]].map(([site, when]) => {
    const words = `${t("headName", app.state.site, app.state.head)}: ${t(when)}`;
    const map = smallMap(headWeights(site, app.state.head), site.shape, { low: 0, high: 1, hidden: hiddenOf(app, site.shape) }, words, 260);
    map.mark(...cellAt(app, site.shape));
    return el("figure", {}, map.node, el("figcaption", {}, words));
  });
  return el("div", { class: "panel-beside" }, ...figures);
}
