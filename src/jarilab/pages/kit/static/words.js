// Which language the page speaks, and the words of its modules: {key: [English, Korean]}.
import { firstPayload } from "./payload.js";
import { el } from "./elements.js";

const nearest = (wanted) => String(wanted).startsWith("ko") ? "ko" : "en";
const usual = nearest(firstPayload.language ?? navigator.language);
let current = nearest(new URLSearchParams(location.hash.slice(1)).get("lang") ?? usual);
export const language = () => current;
/** The language where the reader chose another than the page's, or null. */
export const chosenLanguage = () => current === usual ? null : current;

/**
 * A function from a key to words in the language of the page; the first table that has the key counts.
 * {0}, {1} stand for what is filled in. Its `parts` fills in nodes too, and makes a term of what stands between *stars*.
 */
export function speaking(...tables) {
  const wordsFor = (key) => tables.find((table) => Object.hasOwn(table, key))?.[key][current === "ko" ? 1 : 0] ?? key;
  const t = (key, ...filled) => wordsFor(key).replace(/\{(\d)\}/g, (_, place) => filled[place] ?? "");
  t.parts = (key, ...filled) => partsOf(wordsFor(key), filled);
  return t;
}
function partsOf(words, filled) {
  return words.split(/(\{\d\}|\*[^*]+\*)/).map((part) => {
    if (/^\{\d\}$/.test(part)) return filled[part[1]] ?? "";
    return part.startsWith("*") ? el("dfn", {}, partsOf(part.slice(1, -1), filled)) : part;
  });
}

const NAMES = { en: "English", ko: "한국어" };

/** The button that changes the language: it is named in the other one. */
export function languageButton(change) {
  const other = current === "ko" ? "en" : "ko";
  const press = () => { current = other; change(); };
  return el("button", { type: "button", class: "plain", lang: other, "data-keep": "language", onclick: press }, NAMES[other]);
}
