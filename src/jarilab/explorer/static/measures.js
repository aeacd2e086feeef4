import { el, known, number, unique } from "./data.js";
import { barNode, beginPanel, chooser, labelled, panelNote, pressable, refill } from "./panelkit.js";

const measuresState = { sort: null, falling: true, kind: "", find: null };
const measuresDrawn = { view: null, language: "", node: null };

export const measuresPanel = {
  id: "measures", title: "measuresTitle",
  draw(root, app) {
    beginPanel(root);
    // A table of hundreds of heads is made anew only where something else is in it.
    if (measuresDrawn.view !== app.view() || measuresDrawn.language !== app.language) measuresMake(app, root);
    else if (root.firstChild !== measuresDrawn.node) refill(root, measuresDrawn.node);
    for (const row of measuresDrawn.node.querySelectorAll("tr[data-site]")) {
      const open = row.dataset.site === app.state.site && Number(row.dataset.head) === app.state.head;
      row.classList.toggle("open", open);
      row.querySelector("button").setAttribute("aria-current", String(open));
    }
  },
};

function measuresMake(app, root) {
  const node = el("div", { class: "measures" });
  Object.assign(measuresDrawn, { view: app.view(), language: app.language, node });
  refill(root, node);
  measuresFill(app, node);
}

function measuresFill(app, node) {
  const { t } = app;
  const { sites, checks } = app.view();
  const again = () => {
    measuresFill(app, node);
    measuresPanel.draw(node.parentNode, app);
  };
  const measures = app.payload.measures.filter((measure) => sites.some((site) => site.measures?.[measure.name]));
  const kinds = unique(sites.map((site) => site.kind));
  if (!kinds.includes(measuresState.kind)) measuresState.kind = "";
  if (!measures.some((measure) => measure.name === measuresState.find)) measuresState.find = measures[0]?.name ?? null;
  const all = sites.flatMap((site) => Array.from({ length: site.heads }, (_, head) => ({ site, head })));
  const rows = all.filter(({ site }) => !measuresState.kind || site.kind === measuresState.kind);
  const valueOf = ({ site, head }, name) => site.measures?.[name]?.value[head] ?? null;
  if (measuresState.sort) {
    const sign = measuresState.falling ? -1 : 1; // what is undefined stays below
    const rank = (row) => valueOf(row, measuresState.sort) ?? sign * -Infinity;
    rows.sort((one, two) => rank(one) === rank(two) ? 0 : sign * (rank(one) - rank(two)));
  }
  const open = ({ site, head }) => app.set({ site: site.site, head });
  const jump = () => {
    const best = all.filter((row) => known(valueOf(row, measuresState.find))).sort((one, two) => valueOf(two, measuresState.find) - valueOf(one, measuresState.find))[0];
    if (best) open(best);
  };
  refill(node, el("div", { class: "panel-row" },
    labelled(t("measuresFind"), chooser("measures-find", measuresState.find, measures.map((measure) => [measure.name, measure.label]), (value) => { measuresState.find = value; })),
    pressable("measures-jump", t("measuresJump"), jump),
    kinds.length > 1 && labelled(t("measuresKind"), chooser("measures-kind", measuresState.kind, [["", t("measuresAll")], ...kinds.map((kind) => [kind, t(`kind_${kind}`)])],
      (value) => { measuresState.kind = value; again(); }))),
  panelNote(t("measuresKey")),
  el("div", { class: "scroll" }, el("table", {}, measuresHead(app, measures, again), el("tbody", {}, ...rows.map((row) => measuresRow(app, row, measures, measuresTops(all, measures, valueOf), open))))),
  el("dl", {}, ...measures.flatMap((measure) => [el("dt", {}, measure.label), el("dd", {}, measure.about)])),
  checks?.length && el("h3", {}, t("measuresChecks")),
  checks?.length && el("dl", {}, ...checks.flatMap((check) => [el("dt", {}, `${check.label}: ${number(check.value)}`), el("dd", {}, check.about)])));
}

/** What a full bar stands for: the end of the range, or the largest value there is. */
const measuresTops = (all, measures, valueOf) => new Map(measures.map((measure) => [measure.name, measure.range?.[1]
  ?? all.reduce((top, row) => Math.max(top, valueOf(row, measure.name) ?? 0), 0)]));

function measuresHead(app, measures, again) {
  const heads = measures.map((measure) => {
    const sorted = measuresState.sort === measure.name;
    const button = pressable(`sort-${measure.name}`, `${measure.label}${sorted ? (measuresState.falling ? " ↓" : " ↑") : ""}`, () => {
      Object.assign(measuresState, { sort: measure.name, falling: sorted ? !measuresState.falling : true });
      again();
    });
    button.title = measure.about;
    return el("th", { scope: "col", "aria-sort": sorted ? (measuresState.falling ? "descending" : "ascending") : "none" }, button);
  });
  return el("thead", {}, el("tr", {}, el("th", { scope: "col" }, app.t("head")), ...heads));
}

function measuresRow(app, { site, head }, measures, tops, open) {
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
