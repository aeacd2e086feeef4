// Scores and vectors, a row for each place of an output, and how far two of them are apart: see output_comparison.py.

const LIKELIEST = 5;

/** The numbers of a row. */
export const rowOf = ({ shape, data }, row) => data.subarray(row * shape.at(-1), (row + 1) * shape.at(-1));

/** The logarithms of the softmax of scores. */
export function logShares(scores) {
  const top = scores.reduce((most, score) => Math.max(most, score), -Infinity);
  const total = scores.reduce((sum, score) => sum + Math.exp(score - top), 0);
  return Float64Array.from(scores, (score) => score - top - Math.log(total));
}
/** The likeliest, [number, share] each. */
export function topOf(scores) {
  const logs = logShares(scores);
  return [...logs.keys()].sort((one, two) => logs[two] - logs[one]).slice(0, LIKELIEST).map((number) => [number, Math.exp(logs[number])]);
}
/** Jensen-Shannon, in nats, between the distributions of the next token; the mean over the places. */
export function divergence(before, after, first, end) {
  let total = 0;
  for (let place = first; place < end; place += 1) {
    const [one, two] = [logShares(rowOf(before, place)), logShares(rowOf(after, place))];
    one.forEach((log, number) => {
      const [p, q] = [Math.exp(log), Math.exp(two[number])];
      const mean = Math.log((p + q) / 2);
      if (p > 0) total += p * (log - mean) / 2;
      if (q > 0) total += q * (two[number] - mean) / 2;
    });
  }
  return Math.max(0, total / (end - first));
}

/** How far vectors moved, as a share of their length; the mean over the places. */
export function moved(before, after) {
  const [places] = before.shape;
  const norm = (vector) => Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  const shareOf = (place) => {
    const [one, two] = [rowOf(before, place), rowOf(after, place)];
    return norm(two.map((value, axis) => value - one[axis])) / Math.max(norm(one), 1e-12);
  };
  return Array.from({ length: places }, (_, place) => shareOf(place)).reduce((sum, share) => sum + share, 0) / places;
}
