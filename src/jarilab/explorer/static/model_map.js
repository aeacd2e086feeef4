// Every head of every model as a disc on a tile: the area is what the answer loses without it, the tile what it looks at.
import { letterOf, pressable } from "kit/controls.js";
import { el, refill, styled, svg } from "kit/elements.js";
import { clamp, known } from "kit/numbers.js";
import { firstPayload } from "kit/payload.js";
import { nameNode } from "kit/tokens.js";
import { toned } from "kit/tones.js";
import { language, speaking } from "kit/words.js";
import { headEdit, isInForce, toggleEdit } from "./edits.js";
import { effectOf, effectsOf, signed, summaryOf } from "./effects.js";
import { ROLES, roleOf } from "./roles.js";
import { kindsOf, wordsOf } from "./sites.js";
import { WORDS } from "./words.js";

export const ROLE_WORDS = {
  same_place: ["same digit place", "같은 자리"], previous: ["previous token", "앞 토큰"], next: ["next token", "다음 토큰"], self: ["itself", "자기 자신"],
  duplicate: ["same token elsewhere", "다른 곳의 같은 토큰"], induction: ["induction", "유도"], first: ["first token", "첫 토큰"], last: ["last two tokens", "끝의 두 토큰"],
  neighbour: ["neighbouring patches", "이웃 패치"], row: ["same row", "같은 행"], column: ["same column", "같은 열"], ink: ["what is drawn", "그려진 부분"],
  offset: ["one fixed distance", "일정한 거리"], even: ["spread evenly", "고르게"], none: ["no simple pattern", "단순한 규칙 없음"],
};
const t = speaking({
  size_nats: ["size: nats that the answer loses without it", "크기: 끄면 답이 잃는 nat"],
  size_natsOfMany: ["size: nats a token that the answer loses without it", "크기: 끄면 답이 토큰마다 잃는 nat"],
  size_moved: ["size: how far the output vectors move without it", "크기: 끄면 출력 벡터가 움직이는 거리"],
  noEffects: ["Tiles say what a head looks at. Its effect was not measured for this input.", "바탕색은 헤드가 보는 것입니다. 이 입력에서 효과는 재지 않았습니다."],
  failed: ["Effects cannot be measured: {0}", "효과를 잴 수 없습니다: {0}"],
  whole: ["layer off", "층 끔"], chance: ["no more than chance", "우연 이하"], open: ["still compared with chance", "우연과 비교 중"], openSaved: ["not fully compared with chance", "우연과 비교하다 멈춤"],
  helps: ["better without it", "없는 편이 나음"], isOff: ["switched off", "꺼짐"],
  off: ["Switch {0} off", "{0} 끄기"], on: ["Switch {0} on again", "{0} 다시 켜기"],
  label: ["{0}: {1}, {2}", "{0}: {1}, {2}"], unknown: ["effect not known", "효과 모름"],
}, ROLE_WORDS, WORDS);

export function drawModelMap(root, app) {
  const { views } = app.payload;
  refill(root, views.map((view, index) => styled(toned(view.name, el("section", { class: "heads-of", "aria-label": view.name },
    views.length > 1 && el("h3", {}, nameNode(view.name)), gridOf(app, view, index), el("div", { class: "disc-key" }))), { "--heads": mostHeads(view) })));
  repaintModelMap(root, app);
}

const mostHeads = (view) => Math.max(...view.sites.map((site) => site.heads));

function gridOf(app, view, index) {
  const heads = mostHeads(view);
  const grid = el("div", { class: "heads", role: "group", "aria-label": `${view.name}: ${t("allHeads")}`, onfocusout: () => app.preview(null) });
  grid.append(el("span"), ...Array.from({ length: heads }, (_, head) => el("span", { "aria-hidden": "true" }, head ? String(head) : "H0")), el("span", { class: "whole", "data-title": "" }));
  for (const [kind, sites] of kindsOf(view)) {
    grid.append(el("p", { class: "kind" }, el("b", {}, t(`kind_${kind}`)), " ", t(wordsOf(view, `sides_${kind}`))));
    for (const site of sites) {
      const cells = Array.from({ length: heads }, (_, head) => head < site.heads ? buttonOf(app, index, site, head) : el("span"));
      grid.append(el("span", { class: "layer", title: site.site }, rowName(site, sites)), ...cells, el("span", { class: "whole", "data-layer": site.site }));
    }
  }
  if (app.computing(index).yes) grid.append(pressable(`switch ${index}`, "", () => flip(app, index), { role: "switch" }));
  return grid;
}

/** The layer; where several sites have it, such as windows, what their names say behind the kind: 0.1·15. */
function rowName(site, sites) {
  const several = sites.some((other) => other !== site && other.layer === site.layer);
  return several ? site.site.replace(/^\D+/, "").replace(/ \D+/, "·") : `${site === sites[0] ? "L" : ""}${site.layer}`;
}

/** Whether the pointer moved, and not the page below it. */
const hasMoved = ({ clientX, clientY }) => clientX !== pointer.clientX || clientY !== pointer.clientY;
let pointer = {}; // where it was before
addEventListener("pointermove", (event) => { pointer = event; });

function buttonOf(app, view, site, head) {
  const spot = { view, site: site.site, head };
  return el("button", { type: "button", tabindex: -1, "data-view": view, "data-site": site.site, "data-head": head, "data-keep": `${view} ${site.site} ${head}`,
    onclick: () => app.set(spot), ondblclick: () => flip(app, view, site.site, head),
    onpointermove: (event) => { if (event.pointerType !== "touch" && hasMoved(event)) app.preview(spot); },
    onpointerleave: () => app.preview(null),
    onfocus: ({ target }) => { if (target.matches(":focus-visible")) app.preview(spot); }, onkeydown: (event) => move(event, app, spot) });
}
function flip(app, view, site = app.state.site, head = app.state.head) {
  if (app.computing(view).yes) toggleEdit(app, view, headEdit(site, head));
}

const ARROWS = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], Home: [0, -99], End: [0, 99] };
function move(event, app, { view, site, head }) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (letterOf(event) === "x") return flip(app, view, site, head);
  const [down, across] = ARROWS[event.key] ?? [0, 0];
  if (!down && !across) return;
  event.preventDefault();
  const { sites } = app.view(view);
  const next = sites[sites.findIndex((one) => one.site === site) + down];
  if (!next) return;
  const grid = event.currentTarget.parentElement;
  const button = grid.querySelector(`[data-site="${CSS.escape(next.site)}"][data-head="${clamp(head + across, 0, next.heads - 1)}"]`);
  stopAt(grid, button);
  button.focus();
}
const stopAt = (grid, chosen) => { for (const button of grid.querySelectorAll("[data-site]")) button.tabIndex = button === chosen ? 0 : -1; };

/** The same grid under other effects and edits. */
export function repaintModelMap(root, app) {
  app.payload.views.forEach((view, index) => {
    const section = root.children[index];
    const [summary, unit] = [summaryOf(view), effectsOf(view)?.unit];
    const shown = new Set();
    for (const button of section.querySelectorAll("button[data-site]")) {
      const { site: name, head } = button.dataset;
      const site = view.sites.find((one) => one.site === name);
      const spot = stateOf(view, index, site, Number(head));
      shown.add(spot.mark);
      if (!ROLES.slice(-2).includes(spot.role) || spot.mark !== "chance") shown.add(spot.role);
      const state = JSON.stringify([spot, summary?.full]);
      if (button.dataset.state === state) continue;
      button.dataset.state = state;
      button.replaceChildren(discOf(spot, summary?.full));
      const words = t("label", t("headName", name, head), t(spot.role ?? "none"), spot.mark === "isOff" ? t("isOff") : known(spot.effect) ? signed(spot.effect, unit) : t("unknown"));
      button.setAttribute("aria-label", words);
      button.title = words;
    }
    section.querySelector("[data-title]").replaceChildren(summary ? t("whole") : "");
    for (const cell of section.querySelectorAll("[data-layer]")) {
      const layer = effectsOf(view)?.sites[cell.dataset.layer]?.layer;
      cell.replaceChildren(known(layer) ? signed(layer, unit) : "");
    }
    section.lastChild.replaceChildren(...keyOf(view, shown, summary));
  });
  markModelMap(root, app);
}

/** {role, effect, mark}: what is drawn of a head. */
function stateOf(view, index, site, head) {
  const role = roleOf(view, index, site, head)?.role ?? null;
  const one = effectOf(view, site.site, head);
  const mark = isInForce(index, headEdit(site.site, head)) ? "isOff" : !one ? "unknown" : one.passes || one.beyond ? (one.effect > 0 && effectsOf(view).unit === "nats" ? "helps" : "passes") : one.open ? "open" : "chance";
  return { role, effect: one?.effect ?? null, mark };
}

/** Frame the head that is open; each grid keeps one tab stop. */
export function markModelMap(root, app) {
  const { view, site, head } = app.state;
  app.payload.views.forEach((_, index) => {
    root.children[index].classList.toggle("chosen", index === view);
    const grid = root.children[index].querySelector(".heads");
    const buttons = [...grid.querySelectorAll("[data-site]")];
    const open = buttons.find((button) => index === view && button.dataset.site === site && Number(button.dataset.head) === head);
    for (const button of buttons) button.setAttribute("aria-pressed", button === open);
    stopAt(grid, open ?? buttons[0]);
    const switcher = grid.querySelector("[role=switch]");
    if (!switcher) return;
    switcher.hidden = index !== view;
    const off = isInForce(index, headEdit(site, head));
    switcher.setAttribute("aria-checked", !off);
    switcher.replaceChildren(t(off ? "on" : "off", t("headName", site, head)), " ", el("kbd", {}, "x"));
  });
}

// ---------------------------------------------------------------- discs

const RADIUS = 15;
/** A disc of a head. full: the effect of a full disc. */
function discOf({ role, effect, mark }, full) {
  const tone = role ?? "none";
  const r = Math.max(2.2, RADIUS * Math.sqrt(Math.min(1, Math.abs(effect ?? 0) / (full || 1))));
  const shape = { passes: { r }, helps: { r: Math.max(r - 1.5, 2) }, open: { r }, chance: { r: 2.2 }, isOff: { r: Math.max(r, 8) }, unknown: null }[mark];
  const node = svg("svg", { viewBox: "-16 -16 32 32", class: `disc ${tone} ${mark}`, "aria-hidden": "true" },
    role && !ROLES.slice(-2).includes(role) && svg("rect", { x: -15, y: -15, width: 30, height: 30, rx: 4 }), shape && svg("circle", shape));
  return node;
}
function keyOf(view, shown, summary) {
  const effects = effectsOf(view);
  if (!summary) return [el("p", {}, view.effects?.why ? t("failed", view.effects.why[language() === "ko" ? 1 : 0]) : t(!view.effects ? "noEffects" : firstPayload.live ? "measuring" : "notMeasured")), ...roleKeys(shown, view)];
  const marks = ["chance", "open", "helps", "isOff"].filter((mark) => shown.has(mark));
  const size = (part) => {
    const disc = discOf({ role: null, effect: part * summary.full, mark: "passes" }, summary.full);
    const value = Number((part * summary.full).toPrecision(1));
    return el("span", { class: "size" }, disc, effects.unit === "moved" ? `${100 * value} %` : `${value} nat`);
  };
  return [el("p", {}, t(`size_${effects.unit}${effects.tokens.length > 1 ? "OfMany" : ""}`)), size(1), size(0.1), ...marks.map((mark) => el("span", {}, discOf({ role: null, effect: summary.full / 4, mark }, summary.full), t(mark === "open" && !firstPayload.live ? "openSaved" : mark))), ...roleKeys(shown)];
}
const roleKeys = (shown) => ROLES.filter((role) => shown.has(role)).map((role) => el("span", {}, discOf({ role, effect: 0.4, mark: "passes" }, 1), t(role)));
