// The colour of a model, see kit/tones.py.
import { styled } from "./elements.js";
import { firstPayload } from "./payload.js";

const GREY = 6;
const tones = new Map(Object.entries(firstPayload.tones ?? {}));

/** The number of a model's tone, of 0 to 6. */
export const toneOf = (name) => tones.get(name) ?? GREY;
/** The colour that belongs to a model. */
export const toned = (name, node) => styled(node, { "--tone": `var(--tone-${toneOf(name)})` });

/** Which of those of its tone a model is: 0 for most; others are told apart by more than colour. */
export const variantOf = (name) => [...tones.keys()].filter((other) => toneOf(other) === toneOf(name)).indexOf(name);
