// Every head as two half discs, total effect on the left and direct effect on the right, with the paths between heads.
import { el, refill, svg } from "kit/elements.js";
import { scrolling } from "kit/controls.js";
import { clamp, known, unique } from "kit/numbers.js";
import { token } from "kit/tokens.js";
import { nats, t } from "./causeswords.js";

const CEILINGS = [-3, -2, -1, 0, 1, 2].flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`)));
const NOTHING = 5e-4; // nats; the same as in which_head.py
const TOP = 22;
const layerOf = (head) => head.replace(/\.?H\d+$/, "");
const largestOf = ({ heads }) => Math.max(...heads.flatMap((row) => [Math.abs(row.total), Math.abs(row.direct ?? 0)]));
const ceilingOf = (page) => CEILINGS.find((value) => value >= largestOf(page)) ?? largestOf(page);

/** A half disc of an effect; hollow where the answer is better without the head. */
function half(name, effect, x, y, largest, ceiling) {
  if (!known(effect) || Math.abs(effect) < NOTHING) return null;
  const r = Math.max(2, largest * Math.sqrt(Math.abs(effect) / ceiling));
  const sweep = name === "total" ? 0 : 1;
  return svg("path", { class: `${name}${effect < 0 ? " against" : ""}`, d: `M${x} ${y - r}A${r} ${r} 0 0 ${sweep} ${x} ${y + r}Z` });
}
const nothing = (x, y) => svg("circle", { class: "none", cx: x, cy: y, r: 3 });
const isShown = (row) => row.passes || row.direct_passes || row.verdict === "backup" || row.verdict === "backed_up";

function headNode(row, [x, y], cell, ceiling, { isChosen, choose }) {
  const marks = isShown(row) ? ["total", "direct"].map((name) => half(name, row[name], x, y, cell / 2 - 3, ceiling)).filter(Boolean) : [];
  const label = t("headLabel", row.head, nats(-row.total, true), known(row.direct) ? nats(-row.direct, true) : "–");
  const side = cell - 2;
  return svg("g", { class: "head", role: "button", tabindex: isChosen ? 0 : -1, "aria-pressed": String(isChosen), "aria-label": label, "data-keep": row.head,
    onclick: choose, onkeydown: (event) => moveByKey(event, choose) }, svg("title", {}, label),
  svg("rect", { class: "frame", x: x - side / 2, y: y - side / 2, width: side, height: side, rx: 4 }), marks.length ? marks : nothing(x, y));
}

const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
function moveByKey(event, choose) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const move = MOVES[event.key];
  if (event.key === "Enter" || event.key === " ") choose();
  else if (!move) return;
  event.preventDefault();
  if (!move) return;
  const all = [...event.currentTarget.ownerSVGElement.querySelectorAll(".head")];
  const place = (node) => ["x", "y"].map((name) => Number(node.querySelector(".frame").getAttribute(name)));
  const [x, y] = place(event.currentTarget);
  const beyond = all.filter((node) => { const [a, b] = place(node); return move[0] ? b === y && (a - x) * move[0] > 1 : (b - y) * move[1] > 1; });
  const distance = (node) => { const [a, b] = place(node); return Math.abs(b - y) * 100 + Math.abs(a - x); };
  beyond.sort((one, other) => distance(one) - distance(other))[0]?.focus();
}

/** A dashed line between heads that stand in for each other. */
const pairNode = ([x1, y1], [x2, y2]) => svg("path", { class: "pair", d: `M${x1} ${y1}Q${(x1 + x2) / 2} ${Math.max(y1, y2) + (y1 === y2 ? 16 : 0)} ${x2} ${y2}` });

/** An arrow between heads, or from a head to the answer: a link to its numbers. */
function edgeNode(edge, [x1, y1], [x2, y2], ceiling, isCurrent, href) {
  const width = 1 + 4 * Math.sqrt(Math.abs(edge.effect) / ceiling);
  const bend = (y2 - y1) / 2;
  const d = `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend - 6} ${x2} ${y2 - 6}`;
  const label = `${edge.source} → ${edge.target === "answer" ? t("answer") : edge.target}: ${nats(-edge.effect, true)}`;
  const dashed = edge.effect < 0 ? "5 4" : null;
  return svg("a", { class: "edge", href, "aria-label": label, "aria-current": isCurrent ? "true" : null }, svg("title", {}, label),
    svg("path", { class: "hit", d }), svg("path", { class: "line", d, "stroke-width": width, "stroke-dasharray": dashed }),
    svg("path", { class: "tip", d: `M${x2 - 5} ${y2 - 8}L${x2 + 5} ${y2 - 8}L${x2} ${y2}Z` }));
}

/** Where each head of the model stands in the width of `root`: layers down, heads across. more: columns after the heads. */
export function gridOf(root, { layout: heads }, more = []) {
  const layers = unique(heads.map((row) => layerOf(row.head)));
  const columns = Math.max(...heads.map((row) => row.index)) + 1;
  const left = 12 + 7 * Math.max(...layers.map((name) => name.length));
  const cell = clamp(Math.floor((root.clientWidth - left - 8) / (columns + more.length)), 20, 44);
  const line = cell + (cell < 30 ? 2 : 8);
  const at = (layer, column) => [left + (column + 0.5) * cell, TOP + (layers.indexOf(layer) + 0.5) * line];
  const places = new Map(heads.map((row) => [row.head, at(layerOf(row.head), row.index)]));
  const header = (words, column) => svg("text", { x: at(layers[0], column)[0], y: 14, "text-anchor": "middle" }, words);
  const labels = [Array.from({ length: columns }, (_, index) => index % Math.ceil(18 / cell) ? null : header(index ? String(index) : "H0", index)),
    more.map((words, index) => header(words, columns + index)),
    layers.map((name) => svg("text", { x: left - 8, y: at(name, 0)[1] + 4, "text-anchor": "end" }, name))];
  return { columns, left, cell, line, at, places, labels, right: left + (columns + more.length) * cell, bottom: TOP + layers.length * line };
}

const MAX_EDGES = 24;
/** The paths of heads that pass chance with the largest effects, all of the chosen head, and how many there are. */
export function shownEdges(page, chosen) {
  const verdicts = new Map(page.heads.map((row) => [row.head, row.verdict]));
  const all = page.edges.filter((edge) => edge.target !== "answer" || verdicts.get(edge.source) !== "chance")
    .sort((one, other) => Math.abs(other.effect) - Math.abs(one.effect));
  return { edges: all.filter((edge, rank) => rank < MAX_EDGES || edge.source === chosen), count: all.length };
}

export function drawHeads(root, page, state, { choose, addressOf }) {
  const { columns, left, cell, places, labels, right, bottom: end } = gridOf(root, page);
  const [width, bottom] = [Math.max(right + 8, 200), end + 28];
  const words = known(page.answer) ? token(page.answer) : t("continuationShort");
  const [box, size] = [Math.min(width - 16, 24 + 8 * [...words].length), 24];
  const middle = [clamp(left + columns * cell / 2, box / 2 + 1, width - box / 2 - 1), bottom];
  const ceiling = ceilingOf(page);
  const { edges } = shownEdges(page, state.head);
  const rows = new Map(page.heads.map((row) => [row.head, row]));
  const drawing = svg("svg", { width, height: bottom + size + 4, role: "group", "aria-label": t("headsLabel") }, labels,
    edges.map((edge) => edgeNode(edge, places.get(edge.source), places.get(edge.target) ? places.get(edge.target).map((value, axis) => axis ? value - cell / 2 + 6 : value) : middle, ceiling,
      edge.source === state.head && edge.target === state.to, addressOf({ head: edge.source, to: edge.target }))),
    page.pairs.map((pair) => pairNode(places.get(pair.head), places.get(pair.other))),
    page.layout.filter(({ head }) => !rows.has(head)).map(({ head }) => svg("circle", { class: "unmeasured", cx: places.get(head)[0], cy: places.get(head)[1], r: 1.5 }, svg("title", {}, t("unmeasured", head)))),
    page.heads.map((row) => headNode(row, places.get(row.head), cell, ceiling, { isChosen: row.head === state.head, choose: () => choose(row.head) })),
    svg("rect", { class: "answer", x: middle[0] - box / 2, y: bottom, width: box, height: size, rx: 4 }),
    svg("text", { class: "name", x: middle[0], y: bottom + 16, "text-anchor": "middle" }, words));
  refill(root, scrolling(t("heads"), drawing));
}

/** What the marks mean. */
export function marksNode(page) {
  const ceiling = ceilingOf(page);
  const mark = (...children) => svg("svg", { width: 22, height: 22, "aria-hidden": "true" }, children);
  const whole = (effect) => [half("total", effect, 11, 11, 9, ceiling), half("direct", effect, 11, 11, 9, ceiling)];
  const entries = [
    [[half("total", ceiling, 13, 11, 9, ceiling)], t("mark_total")], [[half("direct", ceiling, 8, 11, 9, ceiling)], t("mark_direct")],
    [whole(-ceiling), t("mark_against")], [[nothing(11, 11)], t("mark_none")], page.layout.length > page.heads.length && [[svg("circle", { class: "unmeasured", cx: 11, cy: 11, r: 1.5 })], t("mark_unmeasured")], [whole(ceiling), `${ceiling} nat`], [whole(ceiling / 10), `${Number((ceiling / 10).toPrecision(1))} nat`],
  ];
  return entries.filter(Boolean).map(([drawn, words]) => el("span", {}, mark(...drawn), words));
}
