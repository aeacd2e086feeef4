// The answer of a model that writes token by token, written anew by the rules of its generation: see huggingface/greedy.py.
import { rowOf } from "./scores.js";

/** The place of the largest score; all are allowed but those of `banned`. 0 if none is, as in Python. */
function best(scores, banned) {
  let place = -1;
  scores.forEach((score, number) => {
    if (!banned.has(number) && (place < 0 || score > scores[place])) place = number;
  });
  return Math.max(place, 0);
}

/** The tokens that would make the last `size` tokens ones that came before. */
function repeating(ids, size) {
  const last = String(ids.slice(ids.length - size + 1));
  const starts = size && ids.length >= size ? [...Array(ids.length - size + 1).keys()] : [];
  return starts.filter((at) => String(ids.slice(at, at + size - 1)) === last).map((at) => ids[at + size - 1]);
}

/** The token after `ids`, which begin with the start token. */
function chosen(rules, scores, ids) {
  const place = ids.length - 1;
  const { forced, allowed } = rules;
  if (Object.hasOwn(forced, place)) return forced[place];
  if (Object.hasOwn(allowed, place)) return allowed[place].reduce((one, other) => scores[other] > scores[one] ? other : one);
  return best(scores, new Set([...rules.suppressed, ...(place === rules.begin_index ? rules.begin_suppressed : []), ...(place < rules.min_length ? rules.eos_token_ids : []), ...repeating(ids, rules.no_repeat_ngram_size)]));
}

/**
 * {ids, ended}: the tokens after the start token, and whether they end by themselves or by the model's limit.
 *
 * ids: of the answer before, after the start token. scores: under the edits, of the forward that read them. run: a forward over
 * tokens. longest: tokens that it can read. Each forward settles the tokens up to the first that is not what it was taken for.
 */
export async function rewritten(rules, ids, scores, run, longest) {
  const isChosen = (place) => place >= rules.prompt || Object.hasOwn(rules.allowed, place);
  let [draft, settled, output] = [ids, 1, scores]; // so many tokens of the draft are sure
  for (;;) {
    const [rows] = output.shape;
    for (let agrees = true; agrees && settled <= rows; settled += 1) {
      const place = settled - 1;
      const next = isChosen(place) ? chosen(rules, rowOf(output, place), draft.slice(0, settled)) : draft[settled];
      agrees = next === draft[settled];
      if (!agrees) { // the given tokens stay, also after another language
        const given = draft.slice(settled + 1, rules.prompt + 1);
        draft = [...draft.slice(0, settled), next, ...given, ...likeliestFrom(output, settled + given.length)];
      }
      const ended = place >= rules.prompt && (rules.eos_token_ids.includes(next) || settled === rules.max_length);
      if (ended) return { ids: draft.slice(1, settled + 1), ended };
    }
    if (settled > longest) return { ids: draft.slice(1, settled), ended: false };
    draft = draft.slice(0, longest);
    output = await run(draft);
  }
}
/** The likeliest token after each place from `row` on. */
const likeliestFrom = (output, row) => Array.from({ length: output.shape[0] - row }, (_, place) => best(rowOf(output, row + place), new Set()));
