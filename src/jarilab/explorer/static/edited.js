// The edits in force at a model and what they did to its answer, in words.
import { pressable } from "kit/controls.js";
import { el } from "kit/elements.js";
import { known, percent } from "kit/numbers.js";
import { answerNode, token, tokenNode } from "kit/tokens.js";
import { language, speaking } from "kit/words.js";
import { editsOf, setEdits, toggleEdit } from "./edits.js";
import { signed } from "./effects.js";
import { answerOf } from "./sites.js";
import { WORDS } from "./words.js";

const t = speaking({
  headOff: ["{0} head {1} off", "{0} 헤드 {1} 끔"],
  place: ["{0}: {1}", "{0}: {1}"],
  places_source: ["positions of the source", "입력의 위치"],
  places_target: ["positions of the target", "출력의 위치"],
  places_both: ["positions", "위치"],
  how_off: ["all 0", "모두 0"],
  how_shift: ["moved by {0}", "{0} 이동"],
  how_stretch: ["stretched by {0}", "{0}배 늘임"],
  how_shuffle: ["shuffled", "뒤섞음"],
  tokenOff: ["no query sees {0} ({1})", "모든 쿼리에게 숨긴 키: {0} ({1})"],
  how_erase: ["{0}: query {1} no longer sees key {2}", "{0}: 쿼리 {1} → 키 {2}, 끊음"],
  how_force: ["{0}: query {1} sees only key {2}", "{0}: 쿼리 {1} → 키 {2}, 이 키만 봄"],
  allHeads: ["{0}, all heads", "{0}, 모든 헤드"],
  becomes: ["instead of {0}", "원래는 {0}"],
  same: ["as before", "그대로"],
  likelihood: ["Log-probability of the answer before: {0}.", "처음 답의 로그 확률: {0}."],
  likelihood_words: ["Log-probability of the words of the text: {0}.", "글에 있는 낱말들의 로그 확률: {0}."],
  likelihood_labels: ["Log-probability of the classes before: {0}.", "처음 분류들의 로그 확률: {0}."],
  ofOne: ["{0} nats", "{0} nat"], ofMany: ["{0} nats a token, most at {1} ({2})", "토큰마다 {0} nat, 가장 크게는 {1}에서({2})"],
  beside: ["A larger effect than {0} of {1} edits of the same kind at random other places.", "무작위로 고른 다른 자리의 같은 편집 {1}개 가운데 {0}개보다 효과가 큽니다."],
  remove: ["Undo: {0}", "되돌리기: {0}"],
  restore: ["Undo all", "모두 되돌리기"],
}, WORDS);

/** An edit in words. */
function wordsOfEdit(edit, { sides }) {
  if (edit.kind === "place") return t("place", t(`places_${edit.side}`), t(`how_${edit.how}`, edit.amount ?? ""));
  if (edit.kind === "head") return t("headOff", edit.site, edit.head);
  if (edit.kind === "token") return t("tokenOff", token(sides[edit.side]?.tokens[edit.key] ?? ""), edit.key);
  const where = known(edit.head) ? t("headName", edit.site, edit.head) : t("allHeads", edit.site);
  return t(`how_${edit.how}`, where, edit.query, edit.key);
}

/** What is in force at a view and what it did to the answer, for its card; null where there is nothing. */
export function editedNode(app, index, where = "card") {
  const { edits, result, error, busy } = editsOf(index);
  if (!edits.length) return null;
  const chips = edits.map((edit, place) => {
    const button = pressable(`undo ${where} ${index} ${place}`, "×", () => toggleEdit(app, index, edit));
    const words = wordsOfEdit(edit, app.view(index));
    button.setAttribute("aria-label", t("remove", words));
    return el("span", { class: "edit" }, `✂ ${words} `, button);
  });
  const all = edits.length > 1 ? pressable(`undo ${where} ${index}`, t("restore"), () => setEdits(app, index, [])) : null;
  return el("div", { class: "edited", role: "status" }, el("p", {}, chips, all), error && el("p", { class: "error" }, error), result ? whatItDid(app, index, result, busy) : busy && el("p", {}, t("wait")));
}

/** What edits changed in the log-probability of the answer before: the mean of its tokens, and the token that changed most. */
export function likelihoodNode({ says }, { log_probability: log, tokens }) {
  const size = signed((log.after - log.before) / tokens.length);
  const each = tokens.map(({ token: text, before, after }) => [text, Math.log(after) - Math.log(before)]).filter(([, change]) => Number.isFinite(change));
  const [text, change] = each.reduce((one, other) => Math.abs(other[1]) > Math.abs(one[1]) ? other : one, ["", 0]);
  return t.parts(["words", "labels"].includes(says) ? `likelihood_${says}` : "likelihood", tokens.length > 1 ? t.parts("ofMany", size, tokenNode(text), signed(change)) : t("ofOne", size));
}

function whatItDid(app, index, { effect }, busy) {
  const before = app.view(index).answer;
  const { answer, controls, divergence } = effect;
  const changed = known(answer) && answer !== before;
  const now = !known(answer) ? busy && known(before) && el("p", {}, t("wait")) : el("p", { class: "answer" }, `${t(answerOf(app.view(index)))} `, answerNode(answer, 120, { class: `token big ${changed ? "changed" : ""}` }), " ",
    changed ? t.parts("becomes", tokenNode(before)) : t("same"));
  const change = el("span", {}, effect.log_probability ? likelihoodNode(app.view(index), effect) : t("vectorsMoved", percent(divergence)), " ");
  const smaller = controls?.filter((control) => control.divergence < divergence).length;
  return [now, known(effect.note) && el("p", { class: "note" }, effect.note[language() === "ko" ? 1 : 0]), el("p", { class: "note" }, change, controls?.length ? t("beside", smaller, controls.length) : "")];
}
