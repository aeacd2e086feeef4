// Computes in a saved page what a live page asks its server for, with the models in the file.
import { block } from "kit/blocks.js";
import { known } from "kit/numbers.js";
import { ONNX, OnnxProgram } from "kit/onnx.js";
import { Padded } from "kit/padded.js";
import { FORMAT, likeliest, Program, verified, write } from "kit/program.js";
import { Reader, readSome, written } from "kit/spelling.js";
import { speaking } from "kit/words.js";
import { drawControls } from "./controls.js";
import { digitsOf } from "./digits.js";
import { rewritten } from "./rewriting.js";
import { divergence, logShares, moved, rowOf, topOf } from "./scores.js";

const t = speaking({
  differs: ["the results of this page differ from those of Python", "이 페이지의 결과가 파이썬의 결과와 다릅니다"],
  otherAnswer: ["it answers {0} here, and {1} in Python", "여기서의 답은 {0}, 파이썬의 답은 {1}입니다"],
  unread: ["the input cannot change in this page, because only Python can split it into tokens", "이 페이지에서는 입력을 바꿀 수 없습니다. 토큰은 파이썬이 나눕니다"],
});

/** What is said of an answer that may not be Python's, in both languages. */
const STILL = ["The page does not write the changed answer: {0}.", "이 페이지는 바뀐 답을 쓰지 않습니다. {0}."];
const NOTES = {
  differs: ["The page does not write the changed answer: without an edit, it writes other tokens than Python.", "이 페이지는 바뀐 답을 쓰지 않습니다. 편집이 없을 때도 파이썬과 다른 토큰을 씁니다."],
  spaces: ["Spaces between the tokens may differ from Python's.", "토큰 사이의 띄어쓰기는 파이썬과 다를 수 있습니다."],
};

const CONTROLS = 20;
const LARGEST = 512; // tokens: a map has their square
const NEAR = 1e-4 + 0.5 / 65535; // what float32 in another order, and the 16 bits of a map, may be apart

/** Programs of each format: in this page, or in a file beside it. */
const OPENED = { [FORMAT]: (program) => new Program(program), [ONNX]: (program) => OnnxProgram.open(program) };

/** The model of a view, run here. */
export class Engine {
  /** Throws an Error for people to read if the page cannot compute this view, or not as Python did. */
  static async open(view) {
    const { program } = view.engine;
    const opened = await OPENED[program.format](program);
    const engine = new Engine({ ...view, engine: null }, view.engine.text, program.padded ? new Padded(opened) : opened);
    await engine.check();
    return engine;
  }
  constructor(view, text, program) {
    const { inputs } = program.source.sample;
    this.sample = Object.fromEntries(Object.entries(inputs).map(([name, held]) => [name, Array.isArray(held) ? held : block(held).data]));
    this.reader = text.read && new Reader(text.read, text.tokens.source);
    this.still = text.still && STILL.map((words, place) => words.replace("{0}", () => text.still[place]));
    Object.assign(this, { view, text, program });
  }

  /** Whether it can read inputs other than the file's. */
  get reads() { return Boolean(this.reader); }

  /** Compare with Python: one forward, the maps that are drawn, and the answer. */
  async check() {
    const { holds, scores, weights } = await verified(this.program);
    const { weights: rounding } = this.program.source.rounding;
    this.apart = Math.max(scores, weights);
    const run = await this.before(this.view.input);
    const far = this.view.sites.some((site) => !near(run.forward.weights[site.site], block(site.weights), NEAR + rounding));
    if (!holds || far) throw new Error(t("differs"));
    if (this.text.rewriting && !same((await this.writtenAnew(run.forward, [])).ids, this.text.labels)) this.still = NOTES.differs;
    const names = run.outputIds.map((number, place) => this.nameOf(number, place));
    if (known(run.answer) && !same(names, this.view.outputs.map(({ token }) => token))) throw new Error(t("otherAnswer", run.answer, this.view.answer));
  }
  /** A token as the page names it; a part of a letter has the name that Python gave it in its text. */
  nameOf(number, place) {
    const { labels, tokens } = this.text;
    return labels?.[place] === number ? this.view.outputs[place].token : tokens.target[number];
  }

  /** The program's inputs for a text. Throws an Error for people to read. */
  read(input) {
    if (input === this.view.input) return this.sample;
    const { kind, first, longest } = this.text;
    if (!this.reader) throw new Error(t("unread"));
    const side = kind === "sequence" ? "source" : "target";
    const most = Math.min(longest?.[side] ?? LARGEST, this.program.lengths[side][1] ?? Infinity);
    // A text goes on where it ends, so it may have no token yet.
    if (kind === "continuation") {
      const { ids } = this.reader.readKnown(input, most);
      return { ...this.sample, target: ids.length ? ids : [first] };
    }
    return { ...this.sample, source: readSome(this.reader, input, most).ids };
  }

  /** The answer: {inputs, outputIds, answer, forward}. inputs: what the forward read. answer: its text, null where there is none. */
  async answered({ source, ...sample }, input, edits = []) {
    const { kind, first, end, longest } = this.text;
    if (kind !== "sequence") return this.outcome(sample, await this.program.run({ ...sample, edits }));
    const { ids, ...forward } = await write(this.program, source, { first, end, longest: longest.target, edits });
    return { inputs: { source, target: [first, ...ids.slice(0, -1)] }, forward, outputIds: ids, answer: this.textOf(ids, input, forward) };
  }
  /** The same of a model that is asked for no text of its own: its class, what stands at the places of a fixed input, or the text itself. */
  outcome(inputs, forward) {
    const { kind, labels, given, tokens } = this.text;
    const best = (place) => likeliest(forward.scores, place);
    const outputIds = kind === "vectors" ? [] : kind === "classes" ? [best(0)] : kind === "fixed" ? labels.map((number, place) => place < given ? number : best(place)) : inputs.target.slice(1);
    const written = kind === "classes" ? outputIds : kind === "fixed" && given < labels.length && known(this.view.answer) ? outputIds.slice(given) : null;
    return { inputs, forward, outputIds, answer: written && written.map((number) => tokens.target[number]).join(" ") };
  }

  /** The answer without edits. The last input is cached. */
  before(input) {
    if (this.last?.input !== input) {
      const inputs = this.read(input);
      this.last = { input, run: this.answered(inputs, input) };
    }
    return this.last.run;
  }

  /** The answer without edits: as Python wrote it, where it did. */
  async textBefore(input) { return input === this.view.input ? this.view.answer : (await this.before(input)).answer; }

  /** An answer as a person reads it; its tokens, where only Python can join them. An unknown one is copied from the source. */
  textOf(ids, input, { weights }) {
    const { end, padding, write: rules, tokens } = this.text;
    const last = ids.findIndex((number) => number === end || number === padding);
    const plain = ids.slice(0, last < 0 ? ids.length : last);
    if (!rules) return plain.map((number) => tokens.target[number]).join(" ");
    const across = this.view.sites.filter((site) => site.kind === "cross").at(-1);
    const copied = (place) => this.reader.read(input, LARGEST).originals[mostAttended(weights[across.site], place)] ?? "";
    return written(plain, rules, tokens.target, copied);
  }

  /** A view of another input, as the server gives it, with what can be known here. */
  async look(asked) {
    const input = this.text.kind === "continuation" ? asked : asked.trim();
    if (input === this.view.input) return this.view;
    const run = await this.before(input);
    const view = this.viewOf({ input, answer: run.answer, expected: null, rollout: null, checks: [], effects: null }, run);
    const { lens } = this.view;
    return { ...view, lens: lens?.kind === "arithmetic" ? digitsOf(view, lens.onesFirst) : null };
  }
  viewOf(patch, { inputs, outputIds, forward }) {
    const { tokens } = this.text;
    const names = (numbers, side) => numbers.map((number) => tokens[side][number]);
    const tokenAt = (number, place) => place < outputIds.length ? this.nameOf(number, place) : tokens.target[number];
    const sides = this.reader ? Object.fromEntries(Object.entries(inputs).map(([side, ids]) => [side, { tokens: names(ids, side) }])) : this.view.sides;
    // After the last token of a text comes what is likeliest there.
    const next = this.text.kind === "continuation" ? [likeliest(forward.scores, outputIds.length)] : [];
    const outputs = [...outputIds, ...next].map((number, place) => ({ token: tokenAt(number, place), top: this.topAt(forward, place) }));
    const sites = this.view.sites.map((site) => siteOf(site, forward.weights[site.site]));
    return { ...this.view, ...patch, sides, outputs, sites };
  }

  /** The likeliest at a place, [token, share] each. */
  topAt({ scores }, place) { return topOf(rowOf(scores, place)).map(([number, share]) => [this.text.tokens.target[number], share]); }

  /** The answer of a model that writes it token by token: {outputIds, answer, note}; null for others. note: [English, Korean], or null. */
  async anew(forward, edits) {
    const { rewriting: rules, tokens } = this.text;
    if (this.still) return { outputIds: [], answer: null, note: this.still };
    if (!rules) return null;
    const key = JSON.stringify(edits);
    if (this.lastAnew?.key !== key) this.lastAnew = { key, made: this.writtenAnew(forward, edits) };
    const { ids, ended } = await this.lastAnew.made;
    const text = written([this.sample.target[0], ...ids], rules.write, tokens.target);
    return { outputIds: ids, answer: ended ? text : `${text} …`, note: rules.exact || same(ids, this.text.labels) ? null : NOTES.spaces };
  }
  writtenAnew({ scores }, edits) {
    const { rewriting: rules, labels } = this.text;
    const run = async (target) => (await this.program.run({ ...this.sample, target, edits })).scores;
    return rewritten(rules, [this.sample.target[0], ...labels], scores, run, this.program.lengths.target[1]);
  }

  /** A change as the program knows it: a token is hidden at every site whose keys are of its side. */
  editOf(change) {
    if (change.kind !== "token") return change;
    const sites = this.view.sites.filter(({ keys }) => keys === change.side);
    return { ...change, sites: sites.map(({ site }) => site) };
  }

  /** The answer and the maps under edits, and how far they are from what they were; as the server's `operate`. */
  async operate(input, changes, withControls) {
    const edits = changes.map((change) => this.editOf(change));
    const before = await this.before(input);
    const forward = await this.program.run({ ...before.inputs, edits });
    const { kind } = this.text;
    const after = kind === "sequence" ? await this.answered({ ...this.sample, ...before.inputs }, input, edits) : await this.anew(forward, edits) ?? this.outcome(before.inputs, forward);
    const first = kind === "fixed" ? this.text.first : 0; // place of the answer
    const places = before.outputIds.map((_, place) => place).slice(first);
    const logs = [before.forward, forward].map(({ scores }) => places.map((place) => logShares(rowOf(scores, place))[before.outputIds[place]]));
    const rows = kind === "classes" ? 1 : before.forward.scores.shape[0];
    const apart = (other) => kind === "vectors" ? moved(before.forward.scores, other.scores) : divergence(before.forward.scores, other.scores, first, rows);
    const sites = this.view.sites.map((site) => ({ ...siteOf(site, before.forward.weights[site.site]), weights: forward.weights[site.site] }));
    const others = withControls ? drawControls(edits, sites, CONTROLS) : [];
    const controls = [];
    for (const other of others) controls.push({ what: other.what, divergence: apart(await this.program.run({ ...before.inputs, edits: other.edits })) });
    const sum = (numbers) => numbers.reduce((total, value) => total + value, 0);
    return { view: this.viewOf({ input, answer: before.answer }, { ...before, forward }), effect: {
      answer: same(after.outputIds, before.outputIds) ? await this.textBefore(input) : after.answer, note: after.note, divergence: apart(forward), controls,
      log_probability: kind === "vectors" ? null : { before: sum(logs[0]), after: sum(logs[1]) },
      ...(places.length === 1 && { likeliest: { before: this.topAt(before.forward, places[0]), after: this.topAt(forward, places[0]) } }),
      tokens: places.map((place, index) => ({ token: this.nameOf(before.outputIds[place], place), before: Math.exp(logs[0][index]), after: Math.exp(logs[1][index]) })) } };
  }
}

// Numbers -------------------------------------------------------------------------------------------------------------

const same = (one, other) => one.length === other.length && one.every((number, place) => number === other[place]);
function near(actual, expected, most) {
  return String(actual.shape) === String(expected.shape) && actual.data.every((value, place) => Math.abs(value - expected.data[place]) <= most);
}
/** The place that a query looks at most, on the mean of all heads. */
function mostAttended({ shape: [heads, rows, columns], data }, row) {
  const mean = new Float32Array(columns);
  for (let head = 0; head < heads; head += 1) {
    for (let column = 0; column < columns; column += 1) mean[column] += data[(head * rows + row) * columns + column] / heads;
  }
  return mean.indexOf(Math.max(...mean));
}
/** A site with other weights: what was measured, and its details, are of the input in the file. */
function siteOf(site, weights) {
  const [heads, rows, columns] = weights.shape;
  const other = () => site.hidden && causal(site) ? { shape: [rows, columns], data: causalMask(rows, columns) } : null;
  const hidden = String(site.shape) === String([rows, columns]) ? site.hidden : other(); // of the input in the file, or of another
  let worst = 0;
  for (let row = 0; row < heads * rows; row += 1) {
    const sum = rowOf(weights, row).reduce((total, weight) => total + weight, 0);
    worst = Math.max(worst, sum === 0 ? 0 : Math.abs(1 - sum)); // a softmax over any key is above 0
  }
  return { ...site, shape: [rows, columns], weights, hidden, measures: {}, details: {}, trust: { row_sum_error: worst } };
}
const causalMask = (rows, columns) => Uint8Array.from({ length: rows * columns }, (_, place) => place % columns > Math.floor(place / columns) ? 1 : 0);
/** Whether what is hidden in the file is just what comes later. */
function causal({ hidden, shape }) {
  const { data } = block(hidden);
  return causalMask(...shape).every((value, place) => value === data[place]);
}
