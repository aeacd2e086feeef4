// What the comparison found: its parts, how they are ordered, named, coloured and written.
import { block } from "web/blocks.js";
import { styled } from "web/elements.js";
import { known, unique } from "web/numbers.js";
import { firstPayload } from "web/payload.js";

export const payload = firstPayload;
export const task = payload.task;
export const metric = task.metric;
export const summary = payload.summary ?? [];
export const trials = payload.trials ?? [];
export const examples = payload.examples ?? [];
export const differences = payload.differences ?? [];
export const exact = metric.name === "exact_match";
export const ordered = payload.model === "recurrent"; // it knows the order of its input without an encoding

// The ceiling is of models that do not know the order.
export const ceiling = ordered ? {} : task.ceiling ?? {};
export const ceilingSentence = ordered ? null : task.ceiling_sentence;
export const groups = (task.groups ?? []).filter((group) => group !== "all");

// ---------------------------------------------------------------- encodings

const allModels = examples.flatMap((example) => example.models);

/** A model is blind to positions when equal digits get equal rows in every encoder head. */
function isBlind(model) {
  const values = model.sites.flatMap((site) => site.equal_rows ?? []).filter(known);
  return values.length > 0 && values.every((value) => value === 0);
}
const unplaced = summary.some((row) => row.encoding === "none") ? "none" : null;
/** The encoding that tells nothing, or null. */
export const bare = allModels.find(isBlind)?.encoding ?? unplaced;
export const ranked = [...summary].sort((first, second) => (second.mean - first.mean) * (metric.higher ? 1 : -1));
export const encodings = unique([...summary, ...trials, ...allModels].map((item) => item.encoding));
const others = encodings.filter((encoding) => encoding !== bare);

const GREY = 6;
/** The number of an encoding's colour, of 0 to 5; grey belongs to the one that tells nothing. */
export const toneOf = (encoding) => encoding === bare ? GREY : others.indexOf(encoding) % 6;
/** The colour that belongs to an encoding. */
export const toned = (encoding, node) => styled(node, { "--tone": `var(--tone-${toneOf(encoding)})` });

/** The name of a model among others, of which several may have its encoding. */
export function nameOf(model, models, withSeed) {
  const several = models.filter((other) => other.encoding === model.encoding).length > 1;
  return several ? withSeed(model.encoding, model.seed) : model.encoding;
}

// ---------------------------------------------------------------- numbers

// Spreading long lists overflows the stack.
export const largest = (items) => items.reduce((one, two) => Math.max(one, two), -Infinity);
export const smallest = (items) => items.reduce((one, two) => Math.min(one, two), Infinity);
export const whole = (value) => known(value) ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : "–";
export const compact = (value) => value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });

/** A share in percent, with as many digits as a near miss needs: it is never rounded to 0 % or 100 %. */
export function precisePercent(share) {
  if (!known(share)) return "–";
  const ends = share === 0 || share === 1;
  let digits = ends ? 0 : share > 0.1 && share < 0.99 ? 1 : 2;
  const rounded = () => (100 * share).toFixed(digits);
  while (digits < 6 && !ends && [0, 100].includes(Number(rounded()))) digits += 1;
  return `${rounded()}\u00a0%`;
}

const minus = (text) => text.replace("-", "−");
/** A value of the metric that runs are judged by. */
export function shown(value) {
  if (metric.share) return precisePercent(value);
  return known(value) ? minus(value.toFixed(metric.digits)) : "–";
}
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

/** Places of each digit that occurs more than once, or nothing where that is not the question. */
export function equalDigits(site) {
  if (!site.equal_rows?.some(known)) return [];
  const digits = unique(site.query).filter((text) => /^[0-9]$/.test(text));
  const placesOf = (digit) => [...site.query.keys()].filter((place) => site.query[place] === digit);
  return digits.map(placesOf).filter((places) => places.length > 1);
}
const hasTwins = (model) => model.sites.some((site) => equalDigits(site).length);
/** The example whose equal digits are looked into. */
export const withDigits = examples.find(({ models }) => models.some(hasTwins));
