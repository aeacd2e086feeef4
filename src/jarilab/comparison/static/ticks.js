// Where the numbers of an axis stand.

/** Round numbers from 0 to at most `high`. */
export function roundTicks(high, count) {
  const power = 10 ** Math.floor(Math.log10(high / count));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= high / count);
  return Array.from({ length: Math.floor(high / step + 1e-9) + 1 }, (_, index) => index * step);
}

/** Powers of ten from 10^low to 10^high, with 2 and 5 between them where there is room. */
export function powerTicks(low, high) {
  const count = Math.ceil(high) - Math.floor(low) + 1;
  const powers = Array.from({ length: count }, (_, index) => 10 ** (Math.floor(low) + index));
  const factors = high - low < 1.6 ? [1, 2, 5] : [1];
  const ticks = powers.flatMap((power) => factors.map((factor) => factor * power));
  return ticks.filter((tick) => Math.log10(tick) >= low && Math.log10(tick) <= high);
}
