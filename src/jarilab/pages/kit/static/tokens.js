// Tokens and names as they can be seen. They come from elsewhere, and reach the page only as text nodes.
import { el } from "./elements.js";

const MARKS = { "": "∅", " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };
const mark = (letter) => MARKS[letter] ?? (letter.codePointAt(0) < 32 ? String.fromCodePoint(0x2400 + letter.codePointAt(0))
  : `‹${letter.codePointAt(0).toString(16).toUpperCase()}›`);

const JOINER = "(?<=[\\p{ExtPict}\\p{EMod}]\\ufe0f?)\\u200d(?=\\p{ExtPict})"; // makes one emoji of two, and is left alone
const UNSEEN = new RegExp(`^ | $|[^\\S ]|(?!${JOINER})[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Cn}]`, "gu");

/** A token as it can be seen: white space, control and direction marks and broken letters get a sign. */
export const token = (text) => text === "" ? "∅" : text.replace(UNSEEN, mark);
/** The visible form of a token, of at most `length` letters. */
export function cutToken(text, length) {
  const letters = [...token(text)];
  return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : letters.join("");
}
/** An element with a token, cut by the style sheet, whole in its title. */
export const tokenNode = (text, attributes = {}) => el("bdi", { class: "token", title: token(text), ...attributes }, token(text));
/** An answer in large letters, of at most so many, whole in its title: its tokens stand elsewhere. */
export const answerNode = (text, length = 120, attributes = {}) => el("bdi", { class: "token big", title: token(text), ...attributes }, cutToken(text, length));
/** Words from elsewhere (a run's name) that must not disturb the direction of their surroundings. */
export const nameNode = (text) => el("bdi", {}, token(String(text)));
