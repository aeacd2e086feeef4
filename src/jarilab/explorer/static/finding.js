// What the model does, in the words of its task; then the open head, by what was measured: how much it matters,
// and what it looks at, beside chance.
import { el, refill } from "kit/elements.js";
import { known, number, percent } from "kit/numbers.js";
import { nameNode, tokenNode } from "kit/tokens.js";
import { language, speaking } from "kit/words.js";
import { WORDS } from "./words.js";

const t = speaking({
  same_place: ["A digit looks at the digits of the same place", "숫자가 같은 자리의 숫자를 봅니다"],
  previous: ["Each token looks at the one just before it", "각 토큰이 바로 앞 토큰을 봅니다"],
  duplicate: ["A token looks at other places with the same token", "토큰이 같은 토큰이 있는 다른 자리를 봅니다"],
  induction: ["A token looks at what followed it the last time", "토큰이 지난번에 자기 뒤에 온 것을 봅니다"],
  sink: ["Every token looks at the first one", "모든 토큰이 첫 토큰을 봅니다"],
  self: ["Each token looks at itself", "각 토큰이 자기 자신을 봅니다"],
  confidence: ["It follows no simple pattern. Largest weight of a token, on average", "단순한 규칙을 따르지 않습니다. 토큰마다 가장 큰 가중치의 평균"],
  share: ["{0}: {1} ({2} by chance).", "{0}: {1}(우연이면 {2})."],
  of: ["{0} of {1}", "{1}의 {0}"],
  most: ["it matters most of all {0} heads here (the loss is {2} nats higher without it).", "여기서는 헤드 {0}개 가운데 가장 중요합니다(끄면 손실이 {2} nat 커집니다)."],
  rank: ["number {1} of {0} heads by how much they matter here (the loss is {2} nats higher without it).", "여기서 중요한 순서로 헤드 {0}개 중 {1}위입니다(끄면 손실이 {2} nat 커집니다)."],
  needless: ["nothing is lost here without it.", "여기서는 꺼도 잃는 것이 없습니다."],
  changes: ["Without it the answer is {0} instead of {1}.", "끄면 답이 바뀝니다: {1} → {0}."],
  stays: ["Without it the answer stays the same.", "꺼도 답은 그대로입니다."],
  allStay: ["Without it the answer stays the same, as it does without any other single head.", "꺼도 답은 그대로입니다. 다른 어느 헤드를 하나만 꺼도 마찬가지입니다."],
}, WORDS);

export function drawFinding(root, app) {
  const { views } = app.payload;
  const head = el("b", {}, t("headName", app.state.site, app.state.head));
  const whose = views.length > 1 ? t.parts("of", head, nameNode(app.view().name)) : head;
  const sentences = [mattering(app), without(app), doing(app)].filter((words) => words.length);
  refill(root, purpose(app), sentences.length ? [" ", whose, ":"] : null, sentences.map((words) => [" ", words]));
}

/** What the model does: the task's own sentence, where it has one. */
const purpose = (app) => app.view().purpose?.[language() === "ko" ? 1 : 0] ?? "";

const GENERAL = "confidence"; // says how sharp a head is, and not what it looks at
const CLEAR = 0.2; // above chance

/** What the head does, by the measure that is farthest above chance; one that says what it looks at, where it is clear. */
function doing(app) {
  const { site, head } = app.state;
  const measures = app.site()?.measures ?? {};
  const scored = [["same_place", app.view().lens?.share?.[site]], ...app.payload.salient_measures.map((name) => [name, measures[name]])];
  const there = scored.filter(([, one]) => known(one?.value[head]) && known(one.chance?.[head]));
  if (!there.length) return "";
  const above = ([, one]) => one.value[head] - one.chance[head];
  const telling = there.filter((one) => one[0] !== GENERAL && above(one) >= CLEAR);
  const [name, best] = (telling.length ? telling : there).reduce((top, one) => above(one) > above(top) ? one : top);
  return t("share", t(name), percent(best.value[head]), percent(best.chance[head]));
}

const risesOf = (sites) => sites.flatMap((site) => site.measures?.ablation?.value ?? []).filter(known);

/** How much this head matters for what is said, among all heads of the model. */
function mattering(app) {
  const rises = risesOf(app.view().sites);
  const rise = app.site()?.measures?.ablation?.value[app.state.head];
  if (!known(rise)) return "";
  const before = rises.filter((other) => other > rise).length;
  return rise > 0 ? t(before ? "rank" : "most", rises.length, before + 1, number(rise)) : t("needless");
}

/** The answer without the head that the page opened at. */
function without(app) {
  const { payload, state } = app;
  const { answer } = app.view();
  const opened = state.view === payload.view && state.site === payload.site && state.head === payload.head;
  if (!opened || !known(payload.without) || !known(answer)) return "";
  if (payload.without === answer) return t(noneDecides(app.view()) ? "allStay" : "stays");
  return t.parts("changes", tokenNode(payload.without, { class: "token big" }), tokenNode(answer));
}

/** Whether no head alone can change a token of the answer: where all losses add up to less than ln 2, each token keeps more
 *  than half of the probability. What was measured of a head is how much the mean of the losses rises. */
function noneDecides({ outputs, sides, sites }) {
  const rises = risesOf(sites);
  const all = sites.reduce((sum, site) => sum + site.heads, 0);
  if (rises.length < all || sides.target?.boxes) return false; // boxes move without any token
  const losses = outputs.map(({ token, top: [[likeliest, share]] }) => likeliest === token ? -Math.log(share) : Infinity);
  return losses.reduce((sum, loss) => sum + loss, outputs.length * Math.max(...rises)) < Math.LN2;
}
