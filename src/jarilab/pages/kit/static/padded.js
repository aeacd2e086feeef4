// A program whose target has one length: a shorter one is padded, and outputs after its end are cut off.

/** The first `count` places along some axes of numbers. */
function cut({ shape, data }, axes, count) {
  let numbers = data;
  const sizes = [...shape];
  for (const axis of axes) {
    const inner = sizes.slice(axis + 1).reduce((product, size) => product * size, 1);
    const [run, kept] = [sizes[axis] * inner, count * inner];
    const shorter = new Float32Array(numbers.length / run * kept);
    for (let from = 0, to = 0; from < numbers.length; from += run, to += kept) shorter.set(numbers.subarray(from, from + kept), to);
    numbers = shorter;
    sizes[axis] = count;
  }
  return { shape: sizes, data: numbers };
}

/** As the program, with a target of 1 to so many tokens. What a token is must not depend on those after it. */
export class Padded {
  constructor(program) {
    const { source, sites } = program;
    Object.assign(this, { program, source, sites, lengths: { ...program.lengths, target: [1, source.padded.length] } });
  }

  async run({ target, ...others }) {
    const { length, axes } = this.source.padded;
    const padded = Array.from({ length }, (_, place) => target[place] ?? 0);
    const { scores, weights } = await this.program.run({ target: padded, ...others });
    const shorter = ([site, map]) => [site, cut(map, axes[site], target.length)];
    return { scores: cut(scores, [0], target.length), weights: Object.fromEntries(Object.entries(weights).map(shorter)) };
  }
}
