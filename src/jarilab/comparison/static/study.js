// What the comparison found: its parts, how they are ordered, named and written.
import { block } from "kit/blocks.js";
import { known, unique } from "kit/numbers.js";
import { meaningsOfAnswer, meaningsOfSum } from "kit/numerals.js";
import { firstPayload } from "kit/payload.js";
import { exact, metric } from "./metric.js";
import { minus, valueOf } from "./numbers.js";

export const payload = firstPayload;
export const task = payload.task;
export const summary = payload.summary ?? [];
export const trials = payload.trials ?? [];
export const examples = payload.examples ?? [];
export const differences = payload.differences ?? [];
/** Trials without a result: {encoding, seed, reason}. */
export const unfinished = payload.unfinished ?? [];
/** How the pairs were compared: {count, seeds, seen, correction, power}. */
export const pairs = payload.pairs ?? {};
export const ordered = payload.model === "recurrent"; // it knows the order of its input without an encoding

// The ceiling is of models that do not know the order.
export const ceiling = ordered ? {} : task.ceiling ?? {};
export const ceilingSentence = ordered ? null : task.ceiling_sentence;
export const groups = (task.groups ?? []).filter((group) => group !== "all");

// ---------------------------------------------------------------- encodings

const allModels = examples.flatMap((example) => example.models);

const unplaced = summary.some((row) => row.encoding === "none") ? "none" : null;
/** The encoding that tells nothing, or null. */
export const bare = payload.blind ?? unplaced;
export const ranked = [...summary].sort((first, second) => (second.mean - first.mean) * (metric.higher ? 1 : -1));
export const encodings = unique([...summary, ...trials, ...allModels].map((item) => item.encoding));

/** The name of a model among others, of which several may have its encoding. */
export function nameOf(model, models, withSeed) {
  const several = models.filter((other) => other.encoding === model.encoding).length > 1;
  return several ? withSeed(model.encoding, model.seed) : model.encoding;
}

// ---------------------------------------------------------------- numbers

/** A value of the metric that runs are judged by. */
export const shown = (value) => valueOf(metric, value);
export const interval = (low, high) => known(low) && known(high) ? `${shown(low).replace("\u00a0%", "")} – ${shown(high)}` : "–";
/** A difference of two values, shares in percentage points. */
export function points(value) {
  if (!known(value)) return "–";
  const size = metric.share ? (100 * value).toFixed(2) : value.toFixed(metric.digits);
  return `${value > 0 ? "+" : ""}${minus(size)}`;
}

// ---------------------------------------------------------------- sites

const packed = new WeakMap(); // site -> its weights as a block

/** The weights of one head, query after query. */
export function headWeights(site, head) {
  const shape = [site.heads, site.query.length, site.key.length];
  if (!packed.has(site)) packed.set(site, { dtype: "uint16", shape, data: site.weights });
  const size = shape[1] * shape[2];
  return block(packed.get(site)).data.subarray(head * size, (head + 1) * size);
}

const masked = new WeakMap(); // site -> 1 where a query cannot look

/** The cells that a site's mask hides: a decoder's own attention cannot look ahead; null where nothing is hidden. */
export function hiddenIn(site) {
  if (!site.kind.startsWith("decoder self")) return null;
  const columns = site.key.length;
  if (!masked.has(site)) masked.set(site, Uint8Array.from({ length: site.query.length * columns }, (_, at) => at % columns > Math.floor(at / columns)));
  return masked.get(site);
}

/** Places of each digit that occurs more than once, or nothing where that is not the question. */
export function equalDigits(site) {
  if (!site.equal_rows?.some(known)) return [];
  const digits = unique(site.query).filter((text) => /^[0-9]$/.test(text));
  const placesOf = (digit) => [...site.query.keys()].filter((place) => site.query[place] === digit);
  return digits.map(placesOf).filter((places) => places.length > 1);
}
/** The places of the digits at the sides of a map: {rows, columns}; without any where no sum is read. */
export function digitPlaces({ kind, query, key }) {
  const columns = meaningsOfSum(key);
  const rows = kind.startsWith("encoder") ? meaningsOfSum(query) : columns.length ? meaningsOfAnswer(query, task.ones_first) : [];
  return { rows, columns };
}
const hasTwins = (model) => model.sites.some((site) => equalDigits(site).length);
/** The example whose equal digits are looked into. */
export const withDigits = examples.find(({ models }) => models.some(hasTwins));
