// What each head does for the answer, beside random changes of the same size, as Python measured it; a live page asks for
// more until all is measured.
import { known } from "kit/numbers.js";

const LADDER = [0.01, 0.03, 0.1, 0.3, 1, 3, 10];

/** An effect with its sign, in the unit of its view. */
export function signed(value, unit = "nats") {
  const size = Math.abs(unit === "moved" ? 100 * value : value);
  if (size < 5e-5) return unit === "moved" ? "0 %" : "0";
  const text = size >= 0.095 ? size.toFixed(2) : size.toFixed(size >= 0.00095 ? 3 : 4);
  return unit === "moved" ? `${size.toFixed(size < 9.95 ? 1 : 0)} %` : `${value < 0 ? "−" : "+"}${text}`;
}

/** The effects of a view's heads, {sites, tokens, unit, controls, smallest, done}; null where none are known. */
export const effectsOf = ({ effects }) => effects?.sites && Object.keys(effects.sites).length ? effects : null;

/**
 * Of one head: {effect, largest, draws, hit, layer} and what follows from it, or null. passes: it changes the answer more than
 * each random change. open: this is not known yet. beyond: nothing of the same size could be tried.
 */
export function effectOf(view, site, head) {
  const effects = effectsOf(view);
  const of = effects?.sites[site];
  if (!known(of?.effect[head])) return null;
  const [effect, largest, draws, hit] = ["effect", "largest", "draws", "hit"].map((name) => of[name][head]);
  const above = Math.abs(effect) > largest && Math.abs(effect) >= effects.smallest;
  return { effect, largest, draws, hit, layer: of.layer, passes: above && draws >= effects.controls,
    open: above && draws < effects.controls && !effects.done, beyond: above && !draws && effects.done };
}

/**
 * Of all heads: {best: {site, head}, others, passing, deciding, all, chance, full, steady, measured}; null where none is known. others: the two after the best. chance: how many
 * would pass by chance. deciding: how many pass without which another token wins. full: the effect of a full disc. steady: without any
 * single head, each token of the answer stays the likeliest.
 */
export function summaryOf(view) {
  const heads = headsOf(view).map((one) => ({ ...one, ...effectOf(view, one.site, one.head) })).filter((one) => known(one.effect));
  const effects = effectsOf(view);
  if (!heads.length) return null;
  const all = headsOf(view).length;
  const larger = (one, other) => Math.abs(other.effect) > Math.abs(one.effect) ? other : one;
  const standing = heads.filter((one) => one.passes || one.open || one.beyond);
  const best = (standing.length ? standing : heads).reduce(larger);
  const largest = Math.abs(heads.reduce(larger).effect);
  const others = standing.filter((one) => one !== best).sort((one, other) => Math.abs(other.effect) - Math.abs(one.effect)).slice(0, 2);
  return { best, others, all, measured: heads.length === all, passing: heads.filter((one) => one.passes).length,
    deciding: heads.filter((one) => one.passes && one.hit[2]).length, chance: Number((all / (effects.controls + 1)).toFixed(all > effects.controls ? 0 : 1)),
    full: LADDER.find((step) => step >= largest * 0.98) ?? largest, steady: heads.length === all && heads.every(({ hit }) => !hit[2]) };
}
const headsOf = ({ sites }) => sites.flatMap(({ site, heads }) => Array.from({ length: heads }, (_, head) => ({ site, head })));

/** Ask for what is not measured yet, view after view; pages that are no longer shown are left. */
export async function followEffects(app) {
  if (!app.live) return;
  for (const [index, view] of app.payload.views.entries()) {
    while (view.effects && !view.effects.done && !view.effects.why && app.view(index) === view) {
      try {
        view.effects = await app.post("/api/effects", { input: view.input, view: index, step: view.step });
      } catch (error) {
        view.effects = { why: [error.message, error.message] };
      }
      if (app.view(index) === view) app.onchange(new Set(["effects"]));
    }
  }
}
