import { chooser, labelled, note, pressable } from "kit/controls.js";
import { adopt, el, refill, styled } from "kit/elements.js";
import { clamp, known, number, unique } from "kit/numbers.js";
import { speaking } from "kit/words.js";
import { beginPanel } from "./kit.js";
import { labelOf, plainOf } from "../measure_words.js";
import { WORDS } from "../words.js";

const t = speaking({
  title: ["Measures", "척도"],
  key: ["Each dot is a head; | marks chance and ¦ the untrained model. Point at a row for its numbers. Click a column to sort, a head to open it.",
    "점 하나가 헤드 하나입니다. |는 우연, ¦는 학습 전 모델의 값입니다. 행을 가리키면 수가 나옵니다. 열을 누르면 정렬하고, 헤드를 누르면 엽니다."],
  keyAlone: ["Each dot is a head; | marks chance. Point at a row for its numbers. Click a column to sort, a head to open it.",
    "점 하나가 헤드 하나입니다. |는 우연의 값입니다. 행을 가리키면 수가 나옵니다. 열을 누르면 정렬하고, 헤드를 누르면 엽니다."],
  chance: ["by chance {0}", "우연 {0}"],
  untrained: ["untrained {0}", "학습 전 {0}"],
  standing: ["what stands out", "두드러진 것만"],
  nothing: ["No head stands out from chance and from the untrained model.", "우연이나 학습 전 모델에 견주어 두드러진 헤드가 없습니다."],
  kind: ["Show", "보기"],
  all: ["all kinds", "모든 종류"],
  find: ["Find the strongest head by", "가장 강한 헤드 찾기"],
  jump: ["Open it", "열기"],
  checks: ["Checks of this model", "이 모델의 검사"],
}, WORDS);

adopt(
  ".measures thead th { position: sticky; top: 0; z-index: 1; background: var(--paper); vertical-align: bottom; white-space: normal; }",
  ".measures tbody th { position: sticky; left: 0; background: var(--paper); text-align: left; }",
  ".measures thead button, .measures tbody button { border: 0; background: none; padding: 0; text-align: inherit; }",
  ".measures tbody button { text-decoration: underline; text-underline-offset: .2em; text-decoration-color: var(--line); }",
  ".measures td { min-width: 5.4rem; position: relative; }",
  ".measures small { color: var(--muted); }",
    ".measures .value { opacity: 0; }",
  ".measures tr:is(:hover, :focus-within, .open) .value { opacity: 1; }",
  ".track { position: relative; display: block; height: 1px; background: var(--line); margin: 4px 5px; }",
  ".track i { position: absolute; top: -4px; left: calc(var(--share) * 100% - 4.5px); width: 9px; height: 9px; border-radius: 50%; background: var(--accent); }",
  ".track b { position: absolute; top: -9px; bottom: -9px; left: calc(var(--at) * 100%); border-left: 1px solid var(--ink); }",
  ".track b.untrained { border-left-style: dotted; }",
  ".measures tbody tr[data-site] { cursor: pointer; }",
  ".measures tbody tr:hover, .measures .open { background: var(--tint); }",
  ".measures tbody .open th { background: var(--tint); box-shadow: inset 3px 0 var(--accent); }",
  ".measures dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.4rem; font-size: var(--t2); max-width: 60rem; }",
  ".measures dt { color: var(--muted); }",
  ".measures dd { margin: 0; }",
  "@media (max-width: 40rem) { .measures dl { grid-template-columns: minmax(0, 1fr); } .measures tbody th { position: static; } }",
);

const state = { sort: null, falling: true, kind: "", find: null, standing: false };
const CLEAR = 0.2; // above chance and the untrained model
const HARM = 0.1; // nats of the answer's loss, with the head off
const drawn = { view: null, language: "", node: null };

export const panel = {
  id: "measures", title: () => t("title"), there: (app) => app.view().sites.some((site) => Object.keys(site.measures ?? {}).length),
  draw(root, app) {
    beginPanel(root);
    // A table of hundreds of heads is made anew only where something else is in it.
    if (drawn.view !== app.view() || drawn.language !== app.language) make(app, root);
    else if (root.firstChild !== drawn.node) refill(root, drawn.node);
    for (const row of drawn.node.querySelectorAll("tr[data-site]")) {
      const open = row.dataset.site === app.state.site && Number(row.dataset.head) === app.state.head;
      row.classList.toggle("open", open);
      row.querySelector("button").setAttribute("aria-current", String(open));
    }
  },
};

function make(app, root) {
  const node = el("div", { class: "measures" });
  Object.assign(drawn, { view: app.view(), language: app.language, node });
  refill(root, node);
  fill(app, node);
}

function fill(app, node) {
  const { sites, checks } = app.view();
  const again = () => {
    fill(app, node);
    panel.draw(node.parentNode, app);
  };
  const measures = app.payload.measures.filter((measure) => sites.some((site) => site.measures?.[measure.name]));
  const beside = sites.some((site) => Object.values(site.measures ?? {}).some((scored) => scored.untrained));
  const kinds = unique(sites.map((site) => site.kind));
  if (!kinds.includes(state.kind)) state.kind = "";
  if (!measures.some((measure) => measure.name === state.find)) state.find = measures[0]?.name ?? null;
  const all = sites.flatMap((site) => Array.from({ length: site.heads }, (_, head) => ({ site, head })));
  const rows = all.filter((row) => (!state.kind || row.site.kind === state.kind) && (!state.standing || standsOut(row, measures)));
  const valueOf = ({ site, head }, name) => site.measures?.[name]?.value[head] ?? null;
  if (state.sort) {
    const sign = state.falling ? -1 : 1; // what is undefined stays below
    const rank = (row) => valueOf(row, state.sort) ?? sign * -Infinity;
    rows.sort((one, two) => rank(one) === rank(two) ? 0 : sign * (rank(one) - rank(two)));
  }
  const open = ({ site, head }) => app.set({ site: site.site, head });
  const jump = () => {
    const best = all.filter((row) => known(valueOf(row, state.find))).sort((one, two) => valueOf(two, state.find) - valueOf(one, state.find))[0];
    if (best) open(best);
  };
  refill(node, el("div", { class: "panel-row" },
    labelled(t("find"), chooser("measures-find", state.find, measures.map((measure) => [measure.name, labelOf(measure)]), (value) => { state.find = value; })),
    pressable("measures-jump", t("jump"), jump),
    kinds.length > 1 && labelled(t("kind"), chooser("measures-kind", state.kind, [["", t("all")], ...kinds.map((kind) => [kind, t(`kind_${kind}`)])],
      (value) => { state.kind = value; again(); })),
  el("label", { class: "flag" }, el("input", { type: "checkbox", checked: state.standing, "data-keep": "measures-standing",
    onchange: (event) => { state.standing = event.target.checked; again(); } }), ` ${t("standing")}`)),
  note(t(beside ? "key" : "keyAlone")), state.standing && !rows.length && note(t("nothing")),
  el("div", { class: "scroll" }, el("table", {}, headNode(app, measures, again), el("tbody", {}, ...rows.map((row) => rowNode(app, row, measures, topsOf(all, measures, valueOf), open))))),
  el("dl", {}, ...measures.flatMap((measure) => [el("dt", {}, labelOf(measure)), el("dd", {}, plainOf(measure), " ", el("small", {}, measure.about))])),
  checks?.length && el("h3", {}, t("checks")),
  checks?.length && el("dl", {}, ...checks.flatMap((check) => [el("dt", {}, `${check.label}: ${number(check.value)}`), el("dd", {}, check.about)])));
}

/** Whether a head does something that neither chance nor the untrained model does, or is needed for the answer. */
function standsOut({ site, head }, measures) {
  return measures.some(({ name }) => {
    const scored = site.measures?.[name];
    const [value, chance, untrained] = ["value", "chance", "untrained"].map((kind) => scored?.[kind]?.[head]);
    if (!known(value)) return false;
    if (name === "ablation") return value >= HARM;
    return known(chance) && value - Math.max(chance, untrained ?? chance) >= CLEAR;
  });
}

/** What a full bar stands for: the end of the range, or the largest value there is. */
const topsOf = (all, measures, valueOf) => new Map(measures.map((measure) => [measure.name, measure.range?.[1]
  ?? all.reduce((top, row) => Math.max(top, valueOf(row, measure.name) ?? 0), 0)]));

function headNode(app, measures, again) {
  const heads = measures.map((measure) => {
    const sorted = state.sort === measure.name;
    const button = pressable(`sort-${measure.name}`, `${labelOf(measure)}${sorted ? (state.falling ? " ↓" : " ↑") : ""}`, () => {
      Object.assign(state, { sort: measure.name, falling: sorted ? !state.falling : true });
      again();
    });
    button.title = plainOf(measure) || measure.about;
    return el("th", { scope: "col", "aria-sort": sorted ? (state.falling ? "descending" : "ascending") : "none" }, button);
  });
  return el("thead", {}, el("tr", {}, el("th", { scope: "col" }, t("head")), ...heads));
}

function rowNode(app, { site, head }, measures, tops, open) {
  const button = pressable(`row-${site.site}-${head}`, `${site.site} · ${head}`, () => open({ site, head }));
  const cells = measures.map((measure) => {
    const scored = site.measures?.[measure.name];
    const value = scored?.value[head];
    if (!known(value)) return el("td", {}, "–");
    const besides = ["chance", "untrained"].map((kind) => [kind, scored[kind]?.[head]]).filter(([, other]) => known(other));
    const share = (part) => clamp(part / (tops.get(measure.name) || 1), 0, 1);
    const ticks = besides.map(([kind, other]) => styled(el("b", { class: kind }), { "--at": share(other) }));
    const words = besides.map(([kind, other]) => t(kind, number(other))).join(", ");
    return styled(el("td", { class: "heat", title: `${number(value)}${words && `, ${words}`}` }, el("span", { class: "value" }, number(value)), el("span", { class: "track", "aria-hidden": "true" }, el("i"), ticks),
      el("span", { class: "unseen" }, words)), { "--share": share(value) });
  });
  return el("tr", { "data-site": site.site, "data-head": head, onclick: (event) => event.target !== button && open({ site, head }) },
    el("th", { scope: "row" }, button), ...cells);
}
