// What the digits of a sum stand for: their places, the carries, and how much each head looks at its own place. As Python
// finds it (inspect/digit_places.py, explorer/summaries.py), for inputs that are run in the page.
import { known } from "kit/numbers.js";

const SUM = /^(\d+)([+-])(\d+)$/;
const fallingFrom = (count) => Array.from({ length: count }, (_, place) => count - 1 - place);

/** The lens of a sum and its answer: {kind, onesFirst, places, carries, share}; null for what is none. */
export function digitsOf({ sides, outputs, sites }, onesFirst) {
  const match = SUM.exec(sides.source.tokens.join(""));
  if (!match) return null;
  const [, left, operator, right] = match;
  const operand = (role, digits) => fallingFrom(digits.length).map((place) => ({ role, place }));
  const source = [...operand("left", left), { role: "operator", place: null }, ...operand("right", right)];
  const carried = carriesOf(left, operator, right);
  const written = outputs.map(({ token }) => token).filter((token) => !token.startsWith("<"));
  const digits = written.filter((token) => /^\d$/.test(token)).length;
  const order = onesFirst ? fallingFrom(digits).reverse() : fallingFrom(digits);
  const answer = written.map((token) => {
    if (!/^\d$/.test(token)) return { role: "sign", place: null, carry: null };
    const place = order.shift();
    return { role: "answer", place, carry: Boolean(carried[place]) };
  });
  const rest = Array.from({ length: sides.target.tokens.length - answer.length }, () => ({ role: "other", place: null, carry: null }));
  const target = [...answer, ...rest];
  const places = { source, target };
  const share = Object.fromEntries(sites.filter((site) => site.keys === "source").map((site) => [site.site, shareOf(site, places)]));
  return { kind: "arithmetic", onesFirst, places: { source, target: target.map(({ role, place }) => ({ role, place })) }, carries: target.map(({ carry }) => carry), share };
}

/** For each place, whether something is carried into it, or borrowed; one place more than the longer number has. */
function carriesOf(left, operator, right) {
  const width = Math.max(left.length, right.length);
  let [larger, smaller] = [left.padStart(width, "0"), right.padStart(width, "0")];
  if (operator === "-" && larger < smaller) [larger, smaller] = [smaller, larger];
  const carries = [false];
  for (const place of fallingFrom(width)) {
    const [upper, lower] = [Number(larger[place]), Number(smaller[place]) + carries.at(-1)];
    carries.push(operator === "+" ? upper + lower > 9 : upper < lower);
  }
  return carries;
}

/** The weight that a digit puts on the operands' digits of its own place, itself left out; mean over the digits that may. */
function shareOf(site, places) {
  const [rows, columns] = site.shape;
  const same = site.queries === site.keys;
  const queries = places[site.queries];
  const targets = queries.map((query, row) => places.source.flatMap((key, column) => known(query.place) && query.place === key.place && !(same && row === column) ? [column] : []));
  const looking = targets.flatMap((columnsOfRow, row) => columnsOfRow.length && row < rows ? [row] : []);
  const mean = (numbers) => looking.length ? numbers.reduce((sum, value) => sum + value, 0) / looking.length : null;
  const weight = (head, row) => targets[row].reduce((sum, column) => sum + site.weights.data[(head * rows + row) * columns + column], 0);
  const value = Array.from({ length: site.heads }, (_, head) => mean(looking.map((row) => weight(head, row))));
  return { value, chance: value.map(() => mean(looking.map((row) => targets[row].length / columns))) };
}
