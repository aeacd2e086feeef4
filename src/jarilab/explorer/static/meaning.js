// What a token stands for beside what it is: the place of a digit.
import { known } from "kit/numbers.js";
import { meaningOf } from "kit/numerals.js";

/** Of each token of a side: what it stands for, or null for one that stands for itself alone. */
export function meaningsOf(view, side) {
  const places = view.lens?.places?.[side];
  const ahead = side === "target" ? 1 : 0; // places are of what is written after each token of the target
  return view.sides[side].tokens.map((_, at) => {
    const place = places?.[at - ahead]?.place;
    return known(place) ? meaningOf(place, at) : null;
  });
}
