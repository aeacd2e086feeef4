// The places of digits: what each digit of a number stands for, and a bracket over the digits of one number.
import { svg } from "./elements.js";
import { themed, words } from "./saving.js";
import { speaking } from "./words.js";

const t = speaking({
  place: ["place 10^{0}", "10^{0}의 자리"], short: ["10^{0}", "10^{0}"],
  place_0: ["ones", "일의 자리"], short_0: ["O", "일"],
  place_1: ["tens", "십의 자리"], short_1: ["T", "십"],
  place_2: ["hundreds", "백의 자리"], short_2: ["H", "백"],
  place_3: ["thousands", "천의 자리"], short_3: ["Th", "천"],
});

const TONES = [5, 4, 3, 2]; // those of the first models stay theirs

export const placeName = (place) => place < 4 ? t(`place_${place}`) : t("place", place);

/** What the token `at` stands for as the digit of a place: {tone, short, name, at}. */
export const meaningOf = (place, at) =>
  ({ tone: TONES[place % TONES.length], short: place < 4 ? t(`short_${place}`) : t("short", place), name: placeName(place), at });

const SUM = /^(\d+)[+-](\d+)$/;
/** The meanings of the tokens of a sum that is read, null for those that are no digits; none where it is no sum. */
export function meaningsOfSum(tokens) {
  const match = SUM.exec(tokens.join(""));
  if (!match || tokens.some((token) => token.length > 1)) return [];
  const [left, right] = [match[1].length, match[2].length];
  return tokens.map((_, at) => at === left ? null : meaningOf(at < left ? left - 1 - at : left + right - at, at));
}

/** The meanings of the tokens of an answer in digits. onesFirst: it is written from the ones up. */
export function meaningsOfAnswer(tokens, onesFirst) {
  const digits = tokens.flatMap((token, at) => /^\d$/.test(token) ? [at] : []);
  return tokens.map((_, at) => {
    const index = digits.indexOf(at);
    return index < 0 ? null : meaningOf(onesFirst ? index : digits.length - 1 - index, at);
  });
}

/** Whether a number begins, and ends, at each token: digits that follow each other, as they are shown, are one number. */
export function edgesOf(meanings) {
  const follows = (one, two) => Boolean(one && two) && two.at === one.at + 1;
  return meanings.map((one, index) => one && { start: !follows(meanings[index - 1], one), end: !follows(one, meanings[index + 1]) });
}

export const NUMERALS = 26; // points that brackets and places take beside the labels of a drawing

/** Brackets and places of an axis of a drawing. cell: its points. spot(along, away): the point so far along the axis, so far from the map. */
export function numeralsDrawing(meanings, cell, spot, ink = themed("ink")) {
  const edges = edgesOf(meanings);
  return meanings.flatMap((meaning, index) => {
    if (!meaning) return [];
    const [x, y] = spot((index + 0.5) * cell, 23);
    const letter = words(meaning.short, { x, y: y + 3, "font-size": 12, "text-anchor": "middle", fill: ink });
    if (!edges[index].start) return [letter];
    const last = edges.findIndex((edge, place) => place >= index && edge?.end);
    const corners = [[index * cell + 2, 28], [index * cell + 2, 32], [(last + 1) * cell - 2, 32], [(last + 1) * cell - 2, 28]];
    return [letter, svg("polyline", { points: corners.map(([along, away]) => spot(along, away).join()).join(" "), fill: "none", stroke: ink })];
  });
}
