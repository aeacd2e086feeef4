// Edits of a forward: heads switched off, links forced or erased, tokens that nobody sees or that are at other places.
import { known } from "kit/numbers.js";
import { sizeOf } from "./tensors.js";

/** Who may look at whom at a site, 1 or 0 by head, query and key. A link whose query, and a token that, is not there changes nothing. */
export function linksOf(site, shape, edits) {
  const links = new Uint8Array(sizeOf(shape)).fill(1);
  const [heads, queries, keys] = shape;
  for (const edit of edits) {
    if (edit.kind === "token" && edit.sites.includes(site)) takeColumn(links, keys, edit.key);
    if (edit.site !== site) continue;
    if (known(edit.head) && !(edit.head >= 0 && edit.head < heads)) throw new Error(`${site} has the heads 0 to ${heads - 1}, got ${edit.head}`);
    for (const head of known(edit.head) ? [edit.head] : Array(heads).keys()) {
      const first = head * queries * keys;
      if (edit.kind === "head") links.fill(0, first, first + queries * keys);
      else if (edit.query < queries) takeLinks(links.subarray(first + edit.query * keys, first + (edit.query + 1) * keys), edit);
    }
  }
  return links;
}

/** Of all queries of all heads: erase a key. */
function takeColumn(links, keys, key) {
  if (key < keys) for (let at = key; at < links.length; at += keys) links[at] = 0;
}
/** Of one query: erase a key, or all others. */
function takeLinks(row, { key, how }) {
  if (!(key >= 0 && key < row.length)) throw new Error(`expected a key from 0 to ${row.length - 1}, got ${key}`);
  for (let other = 0; other < row.length; other += 1) if ((other === key) === (how === "erase")) row[other] = 0;
}

/** Where so many tokens of a side, `source` or `target`, are. */
export function placesOf(side, count, edits) {
  const ways = edits.filter((edit) => edit.kind === "place" && [side, "both"].includes(edit.side ?? "both"));
  if (ways.length > 1) throw new Error(`the places of the ${side} are moved twice; take one of the two away`);
  const move = ways.length ? mover(ways[0]) : (place) => place;
  return Float64Array.from({ length: count }, (_, place) => move(place));
}

function mover({ how, amount = 1 }) {
  if (how === "off") return () => 0;
  if (!Number.isInteger(amount)) throw new Error(`a program has whole places, got an amount of ${amount}`);
  if (how === "shift") return (place) => place + amount;
  if (how === "stretch") return (place) => place * amount;
  throw new Error(`places cannot be moved by ${how} in a saved page`);
}
