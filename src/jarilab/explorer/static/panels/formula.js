// Formulas, as MathML.
import { number } from "kit/numbers.js";

/** MathML from nested arrays, as ["mfrac", 1, ["msqrt", "d"]]: numbers, names and signs find their own elements. */
export function math(...parts) {
  const space = new DOMParser().parseFromString("<math></math>", "text/html").querySelector("math").namespaceURI;
  const build = (part) => {
    const text = typeof part === "number" ? number(part) : part;
    const tag = Array.isArray(part) ? part[0] : typeof part === "number" || /^\d+$/.test(part) ? "mn" : /^\p{L}/u.test(part) ? "mi" : "mo";
    const node = document.createElementNS(space, tag);
    node.append(...(Array.isArray(part) ? part.slice(1).map(build) : [text]));
    return node;
  };
  return build(["math", ["mrow", ...parts]]);
}

/** A factor: negative numbers in brackets. */
export const factor = (value) => value < 0 ? ["mrow", "(", value, ")"] : value;
