// A model as the program that torch.export made of it, run here: what differs between models and encodings is in the program.
import { block } from "./blocks.js";
import { constant } from "./program/constants.js";
import { linksOf, placesOf } from "./program/edits.js";
import { OPERATORS } from "./program/operators.js";
import { reshaped, tensor } from "./program/tensors.js";

export const FORMAT = "jari program 1";

/** Whether an argument is the value of an input, a constant or a node, by number. */
const isValue = (argument) => argument !== null && typeof argument === "object" && "value" in argument;

/** An argument with the values put in. */
function filled(argument, values) {
  if (Array.isArray(argument)) return argument.map((part) => filled(part, values));
  if (isValue(argument)) return values[argument.value];
  return argument !== null && typeof argument === "object" ? Number(argument.number) : argument; // Infinity is no JSON
}

/** The numbers of all values that an argument holds. */
const valuesIn = (argument) => Array.isArray(argument) ? argument.flatMap(valuesIn) : isValue(argument) ? [argument.value] : [];

/**
 * A program. Throws an Error that names an operator which is not known here.
 *
 * lengths: {source: [least, most]}, of what it reads; most is null where there is no end.
 */
export class Program {
  constructor(source) {
    if (source.format !== FORMAT) throw new Error(`expected a ${FORMAT}, got ${source.format}`);
    Object.assign(this, { source, lengths: source.lengths, sites: Object.keys(source.outputs.weights) });
    const before = source.inputs.length + source.constants.length;
    this.held = [...source.inputs.map(() => null), ...source.constants.map(constant)];
    this.steps = source.nodes.map(([operator, argumentsOfNode, dtype], number) => {
      if (!Object.hasOwn(OPERATORS, operator)) throw new Error(`the operator ${operator} is not known here`);
      return { place: before + number, operator, compute: OPERATORS[operator], operands: argumentsOfNode, uses: valuesIn(argumentsOfNode), dtype };
    });
    this.prepare();
  }

  /** What follows from constants alone is computed once. */
  prepare() {
    const fixed = new Set(this.source.constants.map((_, number) => this.source.inputs.length + number));
    const follows = (step) => step.uses.every((value) => fixed.has(value));
    this.steps = this.steps.filter((step) => {
      if (!follows(step)) return true;
      fixed.add(step.place);
      this.held[step.place] = computed(step, this.held);
      return false;
    });
  }

  /**
   * One forward: {scores: (L, V), weights: {site: (H, Q, K)}}, each {shape, data}.
   *
   * source, target: token numbers; image: numbers of pixels. edits: as the page describes them, {kind: "head" | "link" |
   * "place", ...}, and {kind: "token", sites, key}. Throws an Error for what the model cannot read.
   */
  run({ edits = [], ...inputs }) {
    const values = [...inputsOf(this, inputs, edits), ...this.held.slice(this.source.inputs.length)];
    const before = this.values; // of the last forward: what follows from the same inputs is the same, such as an encoder's output
    const changed = new Set([...this.source.inputs.keys()].filter((place) => !before || !alike(values[place], before[place])));
    for (const step of this.steps) {
      const again = step.uses.some((value) => changed.has(value));
      values[step.place] = again ? computed(step, values) : before[step.place];
      if (again) changed.add(step.place);
    }
    this.values = values;
    const outputOf = ({ value }) => {
      const batch = values[value];
      return reshaped(batch, batch.shape.slice(1)); // a batch of one
    };
    const { scores, weights } = this.source.outputs;
    return { scores: outputOf(scores), weights: Object.fromEntries(Object.entries(weights).map(([site, value]) => [site, outputOf(value)])) };
  }

}

const alike = (one, other) => String(one.shape) === String(other.shape) && one.data.every((value, place) => value === other.data[place]);

/** What a program reads, as tensors. What is read says how large the symbols are, and comes first. */
export function inputsOf({ source, lengths }, inputs, edits) {
  const sizes = {}; // of symbols, such as the number of source tokens
  return source.inputs.map(({ name, kind, of, dtype, shape }) => {
    const sizeOfAxis = (size) => typeof size === "number" ? size : sizes[size];
    if (kind === "links") return tensor(dtype, shape.map(sizeOfAxis), linksOf(of, shape.map(sizeOfAxis), edits));
    if (kind === "places") return tensor(dtype, shape.map(sizeOfAxis), placesOf(of, sizeOfAxis(shape[0]), edits));
    const numbers = inputs[name];
    if (!numbers) throw new Error(`this program reads ${name}, which is missing`);
    if (kind === "pixels") return tensor(dtype, shape, Float32Array.from(numbers));
    const [least, most] = lengths[name];
    const end = most ?? Infinity;
    if (!(numbers.length >= least && numbers.length <= end)) {
      throw new Error(`${name}: expected ${least} to ${end} tokens, got ${numbers.length}`);
    }
    if (typeof shape[1] === "string") sizes[shape[1]] = numbers.length;
    return tensor(dtype, [1, numbers.length], Float64Array.from(numbers));
  });
}

function computed({ operator, compute, operands, dtype }, values) {
  try {
    return compute(dtype, ...operands.map((argument) => filled(argument, values)));
  } catch (error) {
    throw new Error(`${operator}: ${error.message}`, { cause: error });
  }
}

// What is done with it ------------------------------------------------------------------------------------------------

/** The place of the largest number of a row of scores. */
export function likeliest({ shape, data }, row) {
  const width = shape.at(-1);
  const numbers = data.subarray(row * width, (row + 1) * width);
  return numbers.indexOf(numbers.reduce((best, value) => value > best ? value : best, -Infinity));
}

/**
 * The likeliest token each time: {ids, scores, weights}, of the last forward, which read all of `ids` but the last.
 *
 * source: token numbers, or null for a language model. first: what is read before the first token, a number or several.
 * end: the token after which nothing comes. longest: tokens at most.
 */
export async function write(program, source, { first, end, longest, edits = [] }) {
  const [ids, begun] = [[], [first].flat()];
  let forward = null;
  while (ids.length < longest && ids.at(-1) !== end) {
    const target = [...begun, ...ids];
    forward = await program.run({ ...(source === null ? {} : { source }), target, edits });
    ids.push(likeliest(forward.scores, target.length - 1));
  }
  return { ids, ...forward };
}

// Held against Python -------------------------------------------------------------------------------------------------

const NEAR = 1e-4;

const largest = (numbers) => numbers.reduce((most, value) => Math.max(most, Math.abs(value)), 0);

/** The largest difference; Infinity for other shapes, and for what is no number. */
function difference(actual, expected) {
  if (String(actual.shape) !== String(expected.shape)) return Infinity;
  const most = largest(actual.data.map((value, place) => value - expected.data[place]));
  return Number.isNaN(most) ? Infinity : most;
}

/**
 * The forward that Python ran with the same weights, run here: {scores, weights, size, holds}. scores, weights: the largest
 * difference; size: the largest score. holds: neither is more than float32 and another order of sums allow.
 */
export async function verified(program) {
  const { inputs, scores, weights } = program.source.sample;
  const sample = Object.fromEntries(Object.entries(inputs).map(([name, held]) => [name, Array.isArray(held) ? held : block(held).data]));
  const actual = await program.run(sample);
  const expected = block(scores);
  const size = largest(expected.data);
  const ofScores = difference(actual.scores, expected);
  const ofWeights = Math.max(0, ...Object.entries(weights).map(([site, held]) => difference(actual.weights[site], block(held))));
  return { scores: ofScores, weights: ofWeights, size, holds: ofScores <= NEAR * Math.max(1, size) && ofWeights <= NEAR };
}
