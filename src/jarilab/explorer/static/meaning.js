// What a token stands for beside what it is: the place of a digit.
import { known } from "web/numbers.js";
import { speaking } from "web/words.js";

const t = speaking({
  place: ["place 10^{0}", "10^{0}의 자리"],
  place_0: ["ones", "일의 자리"],
  place_1: ["tens", "십의 자리"],
  place_2: ["hundreds", "백의 자리"],
  place_3: ["thousands", "천의 자리"],
});

const TONES = [5, 4, 3, 2]; // those of the first models stay theirs

export const placeName = (place) => place < 4 ? t(`place_${place}`) : t("place", place);

/** Of each token of a side: {tone, short, name}, or null for one that stands for itself alone. */
export function meaningsOf(view, side) {
  const places = view.lens?.places?.[side];
  return view.sides[side].tokens.map((_, at) => {
    const place = places?.[at]?.place;
    return known(place) ? { tone: TONES[place % TONES.length], short: String(10 ** place), name: placeName(place) } : null;
  });
}
