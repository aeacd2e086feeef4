import { barNode, chooser, labelled, note, pressable } from "web/controls.js";
import { adopt, el, refill } from "web/elements.js";
import { known, number, unique } from "web/numbers.js";
import { speaking } from "web/words.js";
import { beginPanel } from "./kit.js";
import { WORDS } from "../words.js";

const t = speaking({
  title: ["Measures", "척도"],
  key: ["Each cell: the value; in small print (what uniform weights give) (the untrained model). Click a column to sort, a head to open it.",
    "각 칸: 값, 작은 글씨는 (균등한 가중치의 값) (훈련 전 모델). 열을 누르면 정렬하고, 헤드를 누르면 엽니다."],
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
  ".measures td { min-width: 5.4rem; }",
  ".measures small { color: var(--muted); }",
  ".measures tbody tr[data-site] { cursor: pointer; }",
  ".measures tbody tr:hover, .measures .open { background: var(--tint); }",
  ".measures tbody .open th { background: var(--tint); box-shadow: inset 3px 0 var(--accent); }",
  ".measures dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.4rem; font-size: .88rem; max-width: 60rem; }",
  ".measures dt { color: var(--muted); }",
  ".measures dd { margin: 0; }",
  "@media (max-width: 40rem) { .measures dl { grid-template-columns: minmax(0, 1fr); } .measures tbody th { position: static; } }",
);

const state = { sort: null, falling: true, kind: "", find: null };
const drawn = { view: null, language: "", node: null };

export const panel = {
  id: "measures", title: () => t("title"),
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
  const kinds = unique(sites.map((site) => site.kind));
  if (!kinds.includes(state.kind)) state.kind = "";
  if (!measures.some((measure) => measure.name === state.find)) state.find = measures[0]?.name ?? null;
  const all = sites.flatMap((site) => Array.from({ length: site.heads }, (_, head) => ({ site, head })));
  const rows = all.filter(({ site }) => !state.kind || site.kind === state.kind);
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
    labelled(t("find"), chooser("measures-find", state.find, measures.map((measure) => [measure.name, measure.label]), (value) => { state.find = value; })),
    pressable("measures-jump", t("jump"), jump),
    kinds.length > 1 && labelled(t("kind"), chooser("measures-kind", state.kind, [["", t("all")], ...kinds.map((kind) => [kind, t(`kind_${kind}`)])],
      (value) => { state.kind = value; again(); }))),
  note(t("key")),
  el("div", { class: "scroll" }, el("table", {}, headNode(app, measures, again), el("tbody", {}, ...rows.map((row) => rowNode(app, row, measures, topsOf(all, measures, valueOf), open))))),
  el("dl", {}, ...measures.flatMap((measure) => [el("dt", {}, measure.label), el("dd", {}, measure.about)])),
  checks?.length && el("h3", {}, t("checks")),
  checks?.length && el("dl", {}, ...checks.flatMap((check) => [el("dt", {}, `${check.label}: ${number(check.value)}`), el("dd", {}, check.about)])));
}

/** What a full bar stands for: the end of the range, or the largest value there is. */
const topsOf = (all, measures, valueOf) => new Map(measures.map((measure) => [measure.name, measure.range?.[1]
  ?? all.reduce((top, row) => Math.max(top, valueOf(row, measure.name) ?? 0), 0)]));

function headNode(app, measures, again) {
  const heads = measures.map((measure) => {
    const sorted = state.sort === measure.name;
    const button = pressable(`sort-${measure.name}`, `${measure.label}${sorted ? (state.falling ? " ↓" : " ↑") : ""}`, () => {
      Object.assign(state, { sort: measure.name, falling: sorted ? !state.falling : true });
      again();
    });
    button.title = measure.about;
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
    const small = [scored.chance, scored.untrained].filter((values) => known(values?.[head])).map((values) => `(${number(values[head])})`);
    return el("td", {}, number(value), barNode(value / (tops.get(measure.name) || 1)), el("small", {}, small.join(" ")));
  });
  return el("tr", { "data-site": site.site, "data-head": head, onclick: (event) => event.target !== button && open({ site, head }) },
    el("th", { scope: "row" }, button), ...cells);
}
