// Which head decides one answer: the question, every head by total and direct effect, the paths between heads, one head closely.
import { block } from "kit/blocks.js";
import { barNode, note, scrolling, tableOf } from "kit/controls.js";
import { byId, el, refill, styled, svg } from "kit/elements.js";
import { mapDrawing } from "kit/mapdrawing.js";
import { clamp, known, percent } from "kit/numbers.js";
import { firstPayload as page } from "kit/payload.js";
import { token, tokenNode } from "kit/tokens.js";
import { languageButton } from "kit/words.js";
import { shownEdges, drawHeads, marksNode } from "./causesheads.js";
import { drawSection, SECTIONS } from "./causesections.js";
import { nats, saidIn, t, whyOf } from "./causeswords.js";

const BEST_KEYS = 3;
const LABELS = 116; // pixels beside a map
const rows = new Map(page.heads.map((row) => [row.head, row]));
const sites = new Map(page.sites.map((site) => [site.site, site]));
const answerSide = page.tokens.target ? "target" : "source";
const sameSides = String(page.tokens.source) === String(page.tokens.target);
let state = {};

/** What of the page is shown: all of it, or one figure for a lesson. */
const ONLY = ["all", "map", "model", "answer"];
/** What the address says: a head, the head that an edge leads to, a query, and what of the page is shown. */
function stateOfAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  const head = rows.has(address.get("head")) ? address.get("head") : page.conclusion.heads[0] ?? page.conclusion.together[0]?.[0] ?? page.conclusion.strongest;
  const to = page.edges.some((edge) => edge.source === head && edge.target === address.get("to")) ? address.get("to") : null;
  const query = address.get("query");
  const only = ONLY.includes(address.get("only")) ? address.get("only") : "all";
  return { head, to, query: query === null ? null : Number(query), only };
}
const addressOf = (change) => {
  const { head, to, query } = { ...state, to: null, ...change };
  const address = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of Object.entries({ head, to, query })) if (known(value)) address.set(name, value); else address.delete(name);
  return `#${address}`;
};
const go = (change) => { location.hash = addressOf(change); };

// ---------------------------------------------------------------- maps

/** The map of a head {site, data, hidden, rows, columns, query}: the chosen query, or the one that the answer is read at. */
function mapOf(name) {
  const row = rows.get(name);
  const site = sites.get(row.site);
  const { data, shape: [, queries, keys] } = block(site.weights);
  const own = data.subarray(row.index * queries * keys, (row.index + 1) * queries * keys);
  const isAnswer = site.frames[0] === answerSide || (sameSides && site.frames[0] in page.tokens);
  const usual = isAnswer ? page.positions.at(-1) : queries - 1;
  const pooled = Math.ceil((page.tokens[site.frames[0]]?.length ?? queries) / queries);
  const query = clamp(state.query ?? usual, 0, queries * pooled - 1);
  return { site, data: own, hidden: site.hidden && block(site.hidden).data, queries, keys, query, row: Math.floor(query / pooled) };
}
const weightsOf = ({ data, row, keys }) => Array.from(data.subarray(row * keys, (row + 1) * keys));

// ---------------------------------------------------------------- question

function drawText(map) {
  const weights = weightsOf(map);
  const [queries, keys] = map.site.frames;
  const sides = sameSides ? [queries] : Object.keys(page.tokens);
  const sideNode = (side) => el("div", { class: "side", dir: "auto" }, page.tokens[side].map((text, place) => {
    const isKey = side === keys || sameSides;
    const weight = isKey && weights.length === page.tokens[side].length ? weights[place] : 0;
    const title = isKey ? `${token(text)} (${place}): ${percent(weight)}` : `${token(text)} (${place})`;
    const isQuery = side === queries || sameSides;
    const node = isQuery ? el("button", { type: "button", title, "data-keep": `${side} ${place}`, "aria-pressed": String(place === map.query), onclick: () => go({ query: place }) }, tokenNode(text, { title }))
      : el("span", { title }, tokenNode(text, { title }));
    return styled(node, { "--weight": weight });
  }));
  refill(byId("text"), sides.filter((side) => page.tokens[side]).map(sideNode), note(t("textHelp")));
}

function drawBest() {
  if (!known(page.answer)) return refill(byId("best"), note(t("continuation", token(page.continuation), nats(page.score))));
  const table = tableOf(["", "", ""], page.best.map(({ answer, probability }) => [tokenNode(answer), barNode(probability), percent(probability)]));
  table.querySelectorAll("tbody tr").forEach((row, place) => { row.className = page.best[place].answer === page.answer ? "chosen" : ""; });
  table.querySelector("thead").remove();
  const parts = [known(page.probability) ? t.parts("probability", tokenNode(page.answer), percent(page.probability))
    : t.parts("lead", tokenNode(page.answer), tokenNode(page.rival), nats(page.score))];
  return refill(byId("best"), el("p", {}, parts), table);
}

// ---------------------------------------------------------------- one head, or an edge

function drawHead(map) {
  const row = rows.get(state.head);
  const edges = page.edges.filter((edge) => edge.source === state.head && edge.target === state.to);
  refill(byId("head-title"), state.to ? `${state.head} → ${state.to === "answer" ? t("answer") : state.to}` : state.head);
  refill(byId("verdict"), ...linked(saidIn(row)));
  refill(byId("why"), whyOf(row));
  const entries = [["total", row.total], ["mean", row.mean], ["direct", row.direct], ["random", row.control],
    ...edges.map((edge) => ["edge", edge.effect, edge.target, edge.input])];
  const largest = Math.max(...entries.map(([, value]) => Math.abs(value ?? 0)), 1e-9);
  const table = tableOf(["", "", ""], entries.map(([name, value, target, part]) => [t(name === "edge" ? `edge_${part ?? "all"}` : `number_${name}`, target === "answer" ? t("answer") : target),
    barNode(Math.abs(value ?? 0) / largest), known(value) ? nats(-value, true) : "–"]));
  table.querySelectorAll("tbody tr").forEach((node, place) => { node.className = entries[place][0]; });
  table.querySelector("thead").remove();
  const target = state.to && state.to !== "answer" ? el("p", {}, link(state.to, t("open", state.to))) : null;
  refill(byId("numbers"), table, note(t("numbersHelp", meansOf())), target);
  const weights = weightsOf(map);
  const order = weights.map((_, place) => place).sort((one, other) => weights[other] - weights[one]).slice(0, BEST_KEYS).filter((place) => weights[place] >= 0.01);
  const keys = map.site.sides[1];
  refill(byId("looks"), t.parts("looks", tokenNode(map.site.sides[0][map.row] ?? ""), order.flatMap((place, rank) => [rank ? ", " : "", tokenNode(keys[place] ?? ""), ` ${percent(weights[place])}`])));
  const { node, width, height } = mapDrawing("", { data: map.data, hidden: map.hidden, shape: [map.queries, map.keys], options: { low: 0, high: 1 } }, ...map.site.sides, [], [], clamp(byId("map").clientWidth - LABELS, 120, 420));
  refill(byId("map"), scrolling(t("map", state.head), svg("svg", { width: width + 4, height, role: "img", "aria-label": t("map", state.head) }, node)), note(t("mapHelp")));
}
const meansOf = () => page.means ? t("meansFile", ...page.means) : t("meansHere");
const link = (head, words = head) => el("a", { href: addressOf({ head }) }, words);
/** A text whose names of heads are links. */
const linked = (text) => text.split(/((?:[\w.]+\.)?(?:L\d+)?H\d+)/).map((part) => rows.has(part) ? link(part) : part);

function drawPaths() {
  const { edges, count } = shownEdges(page, state.head);
  const items = edges.map((edge) => el("li", {}, el("a", { href: addressOf({ head: edge.source, to: edge.target }) },
    `${edge.source} → ${edge.target === "answer" ? t("answer") : edge.target}`), ` ${t(`by_${edge.input ?? "all"}`)} ${nats(-edge.effect, true)}`));
  const pairs = page.pairs.map((pair) => el("li", {}, t.parts("pair", link(pair.head), link(pair.other), nats(-pair.total, true), nats(-rows.get(pair.head).total, true), nats(-rows.get(pair.other).total, true))));
  refill(byId("paths"), items.length ? [el("h3", {}, t("paths")), el("ul", {}, items), items.length < count ? note(t("pathsOf", items.length, count)) : null] : null, pairs.length ? [el("h3", {}, t("pairs")), el("ul", {}, pairs)] : null);
}

function drawTable() {
  const lines = page.heads.map((row) => [link(row.head), ...["total", "mean", "direct"].map((name) => known(row[name]) ? nats(-row[name], true) : "–"),
    known(row.control) ? nats(-row.control, true) : "–", linked(saidIn(row))]);
  refill(byId("table"), scrolling(t("table"), tableOf([t("head"), ...["total", "mean", "direct", "random"].map((name) => t(`number_${name}`)), t("verdict")], lines)));
}

// ---------------------------------------------------------------- the page

function draw() {
  state = stateOfAddress();
  const map = mapOf(state.head);
  document.documentElement.lang = t.language();
  document.documentElement.dataset.only = state.only;
  refill(byId("headline"), t("title"));
  refill(byId("language"), languageButton(draw));
  refill(byId("about"), tokenNode(page.model));
  for (const [id, words] of Object.entries({ "heads-title": "heads", "how-title": "how", "table-title": "table" })) refill(byId(id), t(words));
  drawText(map);
  drawBest();
  refill(byId("finding"), ...linked(saidIn(page)));
  drawHeads(byId("heads"), page, state, { choose: (head) => go({ head, query: null }), addressOf });
  refill(byId("marks"), ...marksNode(page));
  drawPaths();
  drawHead(map);
  refill(byId("how"), ["how1", "how2", "how3", "how4"].map((key) => el("p", {}, t(key, page.conclusion.controls))));
  drawTable();
  for (const name of SECTIONS) {
    refill(byId(`${name}-title`), t(name));
    if (byId(name).open) drawSection(name, byId(`${name}-body`), page, { link, linked, answerSide });
  }
}

for (const name of ["patching", "steering"]) byId(name).open = Boolean(page.sections[name]);
addEventListener("hashchange", draw);
for (const name of SECTIONS) byId(name).addEventListener("toggle", draw); // a closed one has no width
let width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
draw();
document.documentElement.dataset.ready = "";
