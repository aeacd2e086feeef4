// What runs are judged by.
import { firstPayload } from "kit/payload.js";

export const metric = firstPayload.task?.metric ?? { name: "", title: "" };
export const exact = metric.name === "exact_match";

// What has marks of its own (<bos>) is no letter of an input.
const isLetter = (token) => [...token].length === 1 || /^<.+>$/.test(token);
const sites = (firstPayload.examples ?? []).flatMap(({ models }) => models.flatMap((model) => model.sites));
/** Whether answers are judged letter by letter: each token is one. */
export const inLetters = exact && sites.every(({ query, key }) => [...query, ...key].every(isLetter));
