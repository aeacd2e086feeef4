// The colour of an encoding: the same on every page, see kit/tones.py.
import { styled } from "./elements.js";
import { firstPayload } from "./payload.js";

const GREY = 6;
const tones = new Map(Object.entries(firstPayload.tones ?? {}));

/** The number of an encoding's tone, of 0 to 6. */
export const toneOf = (encoding) => tones.get(encoding) ?? GREY;
/** The colour that belongs to an encoding. */
export const toned = (encoding, node) => styled(node, { "--tone": `var(--tone-${toneOf(encoding)})` });

/**
 * Which of those of its tone something is: 0 for most; others are told apart by more than colour. items: {name, encoding},
 * all that stand on the page.
 */
export function variantOf(item, items) {
  const alike = items.filter(({ encoding }) => toneOf(encoding) === toneOf(item.encoding));
  return [...new Set(alike.map(({ name }) => name))].sort().indexOf(item.name);
}
