// Maps as drawings that stand for themselves: one with its labels and its scale, and all heads of a model.
import { drawMap, legendColour, scaleEnds, valueColour, visibleKeys } from "./draw.js";
import { el, svg } from "./elements.js";
import { NUMERALS, numeralsDrawing } from "./numerals.js";
import { themed, words } from "./saving.js";
import { cutToken, token } from "./tokens.js";
import { maxPool } from "./weights.js";

const CELLS = 4000; // a larger map is one image, not a rectangle for each cell
const LARGEST = 96; // cells along a side of a small map

/** The cells of a map in an area {x, y, width, height}. map: {data, hidden, shape, options} as `drawMap` has them. */
function cells({ data, hidden, shape: [rows, columns], options }, area) {
  const [across, down] = [area.width / columns, area.height / rows];
  if (rows * columns > CELLS) {
    const href = drawMap(el("canvas"), data, rows, columns, { ...options, hidden }).toDataURL();
    return svg("image", { ...area, href, "image-rendering": "pixelated", preserveAspectRatio: "none" });
  }
  const keys = visibleKeys({ ...options, hidden }, rows, columns);
  const cell = (_, place) => hidden?.[place] ? null : svg("rect", { x: area.x + place % columns * across,
    y: area.y + Math.floor(place / columns) * down, width: across, height: down, fill: valueColour(data[place], options, keys[Math.floor(place / columns)]) });
  return svg("g", { "shape-rendering": "crispEdges" }, Array.from(data, cell));
}

function scaleBar(options, x, y) {
  const shades = Array.from({ length: 64 }, (_, place) =>
    svg("rect", { x: x + place * 3, y, width: 3.2, height: 9, fill: legendColour(place / 63, options) }));
  const anchors = ["start", "middle", "end"];
  return [shades, scaleEnds(options).map((text, index) => words(text, { x: x + 96 * index, y: y + 23, "font-size": 12, "text-anchor": anchors[index] }))];
}

/** One map with the tokens at its sides: {node, width, height}. rowMeanings, columnMeanings: of digits, see numerals.js.
 * side: pixels of the map, at most. */
export function mapDrawing(title, map, rowTokens, columnTokens, rowMeanings = [], columnMeanings = [], side = 640) {
  const [rows, columns] = map.shape;
  const cell = Math.max(2, Math.min(32, Math.floor(side / Math.max(rows, columns))));
  const longest = (texts) => Math.min(12, Math.max(...texts.map((text) => [...token(text)].length)));
  const tall = longest(columnTokens) > 2; // then column labels stand upright
  const every = Math.ceil(12 / cell);
  const [downwards, across] = [rowMeanings, columnMeanings].map((meanings) => every === 1 && meanings.some(Boolean) ? meanings : []);
  const [left, top] = [14 + 8 * longest(rowTokens) + (downwards.length && NUMERALS), (tall ? 34 + 8 * longest(columnTokens) : 44) + (across.length && NUMERALS)];
  const labels = (texts, placed) => texts.map((text, place) => place % every ? null : words(cutToken(text, 12), placed((place + 0.5) * cell)));
  const area = { x: left, y: top, width: columns * cell, height: rows * cell };
  const node = svg("g", {}, words(title, { x: 0, y: 14, "font-size": 14, "font-weight": 700 }),
    labels(rowTokens, (at) => ({ x: left - 6, y: top + at + 4, "text-anchor": "end" })),
    labels(columnTokens, (at) => tall ? { transform: `translate(${left + at + 4} ${top - 6}) rotate(-90)` }
      : { x: left + at, y: top - 6, "text-anchor": "middle" }),
    numeralsDrawing(downwards, cell, (along, away) => [left - away, top + along]), numeralsDrawing(across, cell, (along, away) => [left + along, top - away]),
    svg("rect", { ...area, fill: themed("hatch-high") }), cells(map, area), scaleBar(map.options, left, top + area.height + 12));
  return { node, width: Math.max(left + area.width, left + 200, 9 * title.length), height: top + area.height + 40 };
}

/** Every head of a model, layers down and heads across: {node, width, height}. rows: [{label, maps}], one a layer. */
export function gridDrawing(title, rows) {
  const size = 84;
  const parts = rows.flatMap(({ label, maps }, layer) => maps.map((map, head) => {
    const factor = Math.ceil(Math.max(...map.shape) / LARGEST);
    const pooled = factor > 1 ? maxPool(map.data, map.hidden, map.shape, factor) : null;
    const small = pooled ? { ...map, options: { ...map.options, pooled: factor }, data: pooled.data, hidden: pooled.hidden, shape: [pooled.rows, pooled.columns] } : map;
    const [high, wide] = small.shape.map((count) => size * count / Math.max(...small.shape));
    return [head ? null : words(label, { x: 0, y: 58 + layer * (size + 6) + size / 2 }),
      cells(small, { x: 24 + head * (size + 6), y: 54 + layer * (size + 6), width: wide, height: high })];
  }));
  const count = Math.max(...rows.map(({ maps }) => maps.length));
  const names = Array.from({ length: count }, (_, head) => words(head, { x: 24 + head * (size + 6) + size / 2, y: 44, "text-anchor": "middle" }));
  const node = svg("g", {}, words(title, { x: 0, y: 14, "font-size": 14, "font-weight": 700 }), names, parts);
  return { node, width: Math.max(24 + count * (size + 6), 9 * title.length), height: 54 + rows.length * (size + 6) };
}
