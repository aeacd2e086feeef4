// The weights of a map: where the largest are, and smaller maps of large ones.

/** The place of a weight among those that its query may look at, 1 the largest, and their number. */
export function rankOf(weights, hidden, columns, query, key) {
  let [rank, count] = [1, 0];
  for (let at = query * columns; at < (query + 1) * columns; at += 1) {
    if (hidden?.[at]) continue;
    count += 1;
    rank += weights[at] > weights[query * columns + key];
  }
  return [rank, count];
}
/** The largest of each square of cells, so that no weight is lost; hidden where all of it is. */
export function maxPool(data, mask, [rows, columns], factor) {
  const [high, wide] = [Math.ceil(rows / factor), Math.ceil(columns / factor)];
  const [small, hidden] = [new Float32Array(high * wide), new Uint8Array(high * wide).fill(1)];
  for (let row = 0; row < rows; row += 1) {
    const base = Math.floor(row / factor) * wide;
    for (let column = 0; column < columns; column += 1) {
      const at = row * columns + column;
      const place = base + Math.floor(column / factor);
      if (mask?.[at]) continue;
      hidden[place] = 0;
      if (data[at] > small[place]) small[place] = data[at];
    }
  }
  return { data: small, hidden, rows: high, columns: wide };
}
export function largestOf(data, hidden) {
  let largest = 0;
  for (let place = 0; place < data.length; place += 1) {
    if (!hidden?.[place]) largest = Math.max(largest, Math.abs(data[place]));
  }
  return largest;
}
const NEAR = 5e-4; // an eighth of a step of the colours; a page computes with weights of 16 bits
/** Whether two maps look the same. */
export const looksSame = (first, second) => first.length === second.length && first.every((value, place) => Math.abs(value - second[place]) < NEAR);
