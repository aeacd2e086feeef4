// What a head looks at on this input: the simplest pattern that holds more of its weight than chance.
import { block } from "kit/blocks.js";
import { hiddenUnder, drawnSite } from "./edits.js";
import { headWeights, siteHidden } from "./sites.js";

const CLEAR = 0.4; // of what chance leaves
const EVEN = 0.97; // of the largest entropy
const INK = 0.15; // of the range of an image, from its ground
export const ROLES = ["same_place", "previous", "next", "self", "duplicate", "induction", "first", "last", "neighbour", "row", "column", "ink", "offset", "even", "none"];

const LARGEST = 2 ** 16; // cells of a map

const cache = new WeakMap(); // block of weights -> roles by head
const tables = new WeakMap(); // site -> its patterns, without edits

/** {role, share, chance} of a head; both are of its weight, or of the largest entropy where it is even. Null where there is no whole map. */
export function roleOf(view, index, site, head) {
  const { weights } = drawnSite(index, site);
  const hidden = hiddenUnder(index, site, head);
  if (site.pooled > 1 || site.shape[0] * site.shape[1] > LARGEST || hidden?.every(Boolean)) return null;
  if (!cache.has(weights)) cache.set(weights, []);
  return cache.get(weights)[head] ??= find(tableOf(view, site, hidden), headWeights({ ...site, weights }, head));
}

/** {keys, patterns}: the cells of each query, and of each role [role, cells of each query that has some, chance]. */
function tableOf(view, site, hidden) {
  const isPlain = hidden === siteHidden(site);
  if (isPlain && tables.has(site)) return tables.get(site);
  const [rows, columns] = site.shape;
  const keys = Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (_, j) => i * columns + j).filter((cell) => !hidden?.[cell]))
    .filter((cells) => cells.length > 1);
  const patterns = patternsOf(view, site).map(([role, is]) => {
    const targets = keys.map((cells) => [cells.filter((cell) => is(Math.floor(cell / columns), cell % columns)), cells.length]).filter(([cells]) => cells.length);
    return [role, targets.map(([cells]) => cells), mean(targets.map(([cells, count]) => cells.length / count))];
  }).filter(([, cells]) => cells.length);
  const table = { keys, patterns };
  if (isPlain) tables.set(site, table);
  return table;
}
const mean = (numbers) => numbers.reduce((sum, value) => sum + value, 0) / numbers.length;
const sumOf = (cells, value) => cells.reduce((sum, cell) => sum + value(cell), 0);

function find({ keys, patterns }, data) {
  let best = { role: "none", share: 0, chance: 0, clear: CLEAR };
  for (const [role, rows, chance] of patterns) {
    const share = mean(rows.map((cells) => sumOf(cells, (cell) => data[cell])));
    const clear = (share - chance) / (1 - chance);
    if (clear > best.clear + 1e-6) best = { role, share, chance, clear };
  }
  if (best.role !== "none" || !keys.length) return best;
  const share = mean(keys.map((cells) => sumOf(cells, (cell) => data[cell] > 0 ? -data[cell] * Math.log(data[cell]) : 0) / Math.log(cells.length)));
  return share > EVEN ? { role: "even", share, chance: 1 } : best;
}

/** [role, whether a query looks at a key by it], the likelier ones first. */
function patternsOf(view, site) {
  const [rows, columns] = site.shape;
  const same = site.queries === site.keys && rows === columns && site.placed !== false;
  const names = ["queries", "keys"].map((side) => view.sides[site[side]]?.tokens ?? []);
  const at = (i, j) => names[0][i] === names[1][j];
  const places = ["queries", "keys"].map((side) => view.lens?.places?.[site[side]] ?? []);
  const place = (one) => one?.place ?? null;
  const patterns = [];
  if (places[1].length) patterns.push(["same_place", (i, j) => place(places[0][i]) !== null && place(places[0][i]) === place(places[1][j]) && !(same && i === j)]);
  const { picture } = view.sides[site.keys] ?? {};
  const image = picture?.seconds || view.with_image && site.keys === "target" ? null : picture; // frames of a sound, and the tokens of a text, follow each other
  if (same && picture && !picture.seconds) patterns.push(...patchPatterns(picture));
  if (same && !image) patterns.push(["previous", (i, j) => j === i - 1], ["next", (i, j) => j === i + 1]);
  if (same) patterns.push(["self", (i, j) => i === j]);
  if (same && !image) {
    patterns.push(["duplicate", (i, j) => i !== j && at(i, j)], ["induction", (i, j) => j > 0 && j - 1 < i && at(i, j - 1)]);
  }
  patterns.push(["first", (i, j) => j === 0]);
  if (!image && columns > 4) patterns.push(["last", (i, j) => j >= columns - 2]);
  if (same && !image) {
    for (let far = 2; far <= Math.min(8, columns / 2); far += 1) patterns.push(["offset", (i, j) => j === i - far], ["offset", (i, j) => j === i + far]);
  }
  return patterns;
}

function patchPatterns(image) {
  const { first, rows, columns } = image;
  const on = (token) => token >= first && token < first + rows * columns;
  const spot = (token) => [Math.floor((token - first) / columns), (token - first) % columns];
  const between = (test) => (i, j) => on(i) && on(j) && i !== j && test(spot(i), spot(j));
  const ink = inkOf(image);
  return [["neighbour", between(([a, b], [c, d]) => Math.max(Math.abs(a - c), Math.abs(b - d)) === 1)], ["row", between(([a], [c]) => a === c)],
    ["column", between(([, b], [, d]) => b === d)], ["ink", (i, j) => on(j) && ink[j - first]]];
}
/** Whether a patch differs from the ground of the image, which is the commonest tone of its border. */
function inkOf({ pixels, rows, columns }) {
  const { data, shape: [height, width, channels] } = block(pixels);
  const tone = (y, x) => data[(y * width + x) * channels] / 255;
  const border = [...Array(width).keys()].flatMap((x) => [tone(0, x), tone(height - 1, x)]).sort((a, b) => a - b);
  const ground = border[Math.floor(border.length / 2)];
  return Array.from({ length: rows * columns }, (_, patch) => {
    const [top, left] = [Math.floor(patch / columns) * height / rows, patch % columns * width / columns];
    let apart = 0;
    let count = 0;
    for (let y = Math.floor(top); y < top + height / rows - 0.5; y += 1) {
      for (let x = Math.floor(left); x < left + width / columns - 0.5; x += 1) {
        apart += Math.abs(tone(y, x) - ground);
        count += 1;
      }
    }
    return apart / count > INK;
  });
}
