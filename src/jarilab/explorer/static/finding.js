// What the model does, which head does it, and how sure this is; then three bars: the head off, random changes, the layer off.
import { pressable } from "kit/controls.js";
import { el, refill, styled } from "kit/elements.js";
import { known, number, percent } from "kit/numbers.js";
import { answerNode, nameNode, tokenNode } from "kit/tokens.js";
import { language, speaking } from "kit/words.js";
import { drawnSite, headEdit, isInForce } from "./edits.js";
import { effectOf, effectsOf, signed, summaryOf } from "./effects.js";
import { ROLE_WORDS } from "./model_map.js";
import { roleOf } from "./roles.js";
import { answerPlaces } from "./sentence.js";
import { headWeights, NAMED } from "./sites.js";
import { WORDS } from "./words.js";

const t = speaking({
  answers: ["It answers {0} ({1}).", "답은 {0}입니다({1})."], answers_next: ["After this text it expects {0} ({1}).", "이 글 다음에 올 토큰으로 고른 것은 {0}입니다({1})."],
  answers_masked: ["Under the mask it puts {0} ({1}).", "가려진 자리에 넣은 토큰은 {0}입니다({1})."], answers_class: ["The class that it gives is {0} ({1}).", "분류는 {0}입니다({1})."],
  least: ["It answers {0}; its least sure token is {1} ({2}).", "답은 {0}이고, 가장 불확실한 토큰은 {1}입니다({2})."],
  ruled: ["It answers {0}. At {1} of its {2} tokens, a rule of generation chose a less likely token.", "답은 {0}입니다. 토큰 {2}개 중 {1}개에서는 생성 규칙이 확률이 더 낮은 토큰을 골랐습니다."],
  best: ["{0} has the largest effect: it {1}.", "{0}: 효과가 가장 큰 헤드입니다. {1}."], one: ["{0} {1}.", "{0}: {1}."], isOff: ["{0} is off now.", "{0}: 지금은 꺼져 있습니다."],
  share: ["{0} with {1} of its weight on average (spread evenly it would be {2})", "{0}(가중치의 평균 {1}, 고르게 보면 {2})"],
  nats: ["Without it the answer is {0} ({1} nats)", "끄면 답의 확률이 {0}({1} nat)"],
  natsOfMany: ["Without it the tokens of the answer are on average {0} ({1} nats a token)", "끄면 답의 토큰 확률이 평균 {0}(토큰마다 {1} nat)"],
  natsOfText: ["Without it the tokens of the text are on average {0} ({1} nats a token)", "끄면 글의 토큰 확률이 평균 {0}(토큰마다 {1} nat)"],
  less: ["{0} less likely", "{0} 줄어듭니다"], more: ["{0} more likely", "{0} 늘어납니다"], timesLess: ["{0} times less likely", "{0}분의 1로 줄어듭니다"], timesMore: ["{0} times more likely", "{0}배로 늘어납니다"],
  moved: ["Without it the output vectors move by {0} of their length", "끄면 출력 벡터가 길이의 {0}만큼 움직입니다"],
  most: [", most at {0} ({1})", ", 가장 크게는 {0}에서({1})"],
  turns: [", and {0} becomes {1}", ". {0} 대신 다음 토큰이 됩니다: {1}"], stays: [", and the answer stays the same", ". 답은 그대로입니다"],
  above: ["None of {0} random changes of the same size does as much.", "같은 크기의 무작위 변경 {0}개 가운데 이만큼 바꾸는 것은 없습니다."],
  below: ["Random changes of the same size do as much, so this may be chance.", "같은 크기의 무작위 변경도 그만큼 바꾸므로 우연일 수 있습니다."],
  small: ["That is next to nothing.", "거의 아무 효과도 없습니다."],
  count: ["Heads that do more than random changes: {0} of {1}; about {2} would by chance.", "무작위 변경보다 크게 바꾸는 헤드는 {1}개 중 {0}개이고, 우연이면 {2}개쯤입니다."],
  others: ["It is not alone: next come {0} ({1}) and {2} ({3}).", "이 헤드만이 아닙니다. 그다음은 {0}({1}), {2}({3})입니다."],
  open: ["More than each of {0} random changes of the same size so far; {1} will be tried.", "지금까지 해 본 무작위 변경 {0}개보다 큽니다. {1}개까지 해 봅니다."],
  openSaved: ["More than each of {0} random changes of the same size; the page was saved before all {1} were tried.", "같은 크기의 무작위 변경 {0}개보다 큽니다. {1}개를 다 해 보기 전에 페이지를 저장했습니다."],
  beyond: ["Changes of the same size cannot be tried in this model.", "이 모델에서는 같은 크기의 변경을 해 볼 수 없습니다."],
  steady: ["No single head decides this answer: it stays the same without any one of them.", "이 답을 혼자 정하는 헤드는 없습니다. 헤드를 하나만 꺼서는 답이 바뀌지 않습니다."],
  none: ["No single head decides this answer: where one changes it, random changes do, too.", "이 답을 혼자 정하는 헤드는 없습니다. 헤드 하나로 답이 바뀌는 곳에서는 무작위 변경으로도 바뀝니다."],
  decides: ["{0} of {1} heads decides this answer: without it, the model gives another one.", "헤드 {1}개 중 {0}개가 이 답을 정합니다. 그것을 끄면 다른 답이 나옵니다."],
  decide: ["{0} of {1} heads decide this answer: without any one of them, the model gives another one.", "헤드 {1}개 중 {0}개가 이 답을 정합니다. 그중 하나만 꺼도 다른 답이 나옵니다."],
  goBest: ["the head with the largest effect: {0}", "효과가 가장 큰 헤드: {0}"],
  bar_effect: ["this head off", "이 헤드 끔"], bar_largest: ["largest of {0} random", "무작위 {0}번 중 최대"], bar_layer: ["whole layer off", "층 전체 끔"],
  looks_same_place: ["looks at the digits of the same place", "같은 자리의 숫자를 봅니다"], looks_previous: ["looks at the token before", "바로 앞 토큰을 봅니다"],
  looks_next: ["looks at the token after", "바로 다음 토큰을 봅니다"], looks_self: ["looks at its own place", "자기 자리를 봅니다"],
  looks_duplicate: ["looks at the same token elsewhere", "다른 곳의 같은 토큰을 봅니다"], looks_induction: ["looks at what followed the same token before", "같은 토큰 다음에 왔던 것을 봅니다"],
  looks_first: ["looks at the first token", "첫 토큰을 봅니다"], looks_last: ["looks at the last two tokens", "끝의 두 토큰을 봅니다"],
  looks_neighbour: ["looks at the neighbouring patches", "이웃 패치를 봅니다"], looks_row: ["looks along its row of patches", "같은 행의 패치를 봅니다"],
  looks_column: ["looks along its column of patches", "같은 열의 패치를 봅니다"], looks_ink: ["looks at the patches where something is drawn", "무엇인가 그려진 패치를 봅니다"],
  looks_offset: ["looks a fixed distance away", "일정한 거리만큼 떨어진 곳을 봅니다"], looks_even: ["looks everywhere about evenly", "모든 곳을 거의 고르게 봅니다"],
  looks_none: ["follows no simple pattern (see its map)", "단순한 규칙이 없습니다(맵을 보세요)"],
}, ROLE_WORDS, WORDS);

const LONGEST = 60; // letters of an answer

export function drawFinding(root, app) {
  const view = app.view();
  const summary = summaryOf(view);
  const sentences = [view.purpose?.[language() === "ko" ? 1 : 0], answering(view), looking(app, summary), mattering(app), ...sure(app, summary)];
  refill(root, sentences.filter(Boolean).map((words) => [words, " "]), summary && bestButton(app, summary));
}

/** The answer, and how sure the model is of it. */
function answering(view) {
  const places = answerPlaces(view).filter(({ top }) => top?.length);
  const ruled = places.filter(({ token, top }) => top[0][0] !== token).length;
  if (!known(view.answer) || !places.length || (ruled && view.says !== "written")) return null;
  const answer = el("b", {}, answerNode(view.answer, LONGEST));
  if (ruled) return t.parts("ruled", answer, ruled, places.length);
  const least = places.reduce((one, other) => other.top[0][1] < one.top[0][1] ? other : one);
  const share = percent(least.top[0][1]);
  return places.length > 1 ? t.parts("least", answer, tokenNode(least.token), share) : t.parts(NAMED.includes(view.says) ? `answers_${view.says}` : "answers", answer, share);
}

const isBest = ({ best }, { site, head }) => best.site === site && best.head === head;

function looking(app, summary) {
  const { views } = app.payload;
  const { site, head, view } = app.state;
  const name = el("b", {}, t("headName", site, head), views.length > 1 && [" (", nameNode(app.view().name), ")"]);
  if (isInForce(view, headEdit(site, head))) return t.parts("isOff", name); // it looks at nothing
  const found = roleOf(app.view(), view, app.site(), head);
  const looks = !found ? t("looks_none") : ["even", "none"].includes(found.role) ? t(`looks_${found.role}`) : t("share", t(`looks_${found.role}`), percent(found.share), percent(found.chance));
  return t.parts(summary?.measured && isBest(summary, app.state) && effectOf(app.view(), site, head).passes ? "best" : "one", name, looks);
}

/** What the answer loses without the head. */
function mattering(app) {
  const { site, head } = app.state;
  const [effects, one] = [effectsOf(app.view()), effectOf(app.view(), site, head)];
  if (!one) return app.view().effects && !app.view().effects.why ? t(app.live ? "measuring" : "notMeasured") : null;
  const many = effects.tokens.length > 1;
  const hasAnswer = known(app.view().answer) || app.view().says === "labels";
  const words = effects.unit === "moved" ? "moved" : `nats${!hasAnswer ? "OfText" : many ? "OfMany" : ""}`;
  const size = el("b", {}, signed(one.effect, effects.unit));
  const [place, change, turns] = one.hit;
  const nodeAt = (at) => tokenNode(effects.tokens[at] ?? "");
  const most = many ? t.parts("most", nodeAt(place), signed(change)) : null;
  const answer = effects.unit === "moved" ? null : turns ? t.parts("turns", nodeAt(turns[0]), el("b", {}, tokenNode(turns[1]))) : hasAnswer && t("stays");
  return [words === "moved" ? t.parts(words, size) : t.parts(words, likelier(one.effect), size), most, answer, "."];
}
/** How much likelier something is whose log-probability changed. */
function likelier(change) {
  const factor = Math.exp(Math.abs(change));
  if (factor < 2) return t(change < 0 ? "less" : "more", percent(change < 0 ? 1 - 1 / factor : factor - 1));
  return t(change < 0 ? "timesLess" : "timesMore", factor < 9.95 ? factor.toFixed(1) : number(Math.round(factor)));
}

/** How this compares with chance, and what no head decides. */
function sure(app, summary) {
  const { site, head } = app.state;
  const one = effectOf(app.view(), site, head);
  if (!one) return [];
  const { controls, smallest, done, unit } = effectsOf(app.view());
  const { passing, all, chance, measured, steady, deciding, others } = summary;
  const words = one.passes ? t("above", controls) : one.open ? t(app.live ? "open" : "openSaved", one.draws, controls) : one.beyond ? t("beyond")
    : Math.abs(one.effect) < smallest ? t("small") : t("below");
  const whole = measured && done && unit === "nats" && !summary.best.beyond && known(app.view().answer);
  const verdict = done && unit === "moved" && isBest(summary, app.state) && others.length > 1 ? t("others", ...others.flatMap((other) => [t("headName", other.site, other.head), signed(other.effect, unit)])) : whole && (deciding ? t(deciding > 1 ? "decide" : "decides", deciding, all) : t(steady ? "steady" : "none"));
  return [el("span", { class: "sure" }, words, done && !one.beyond && ` ${t("count", passing, all, chance)}`), verdict && el("b", {}, verdict)];
}

function bestButton(app, summary) {
  const { best } = summary;
  if (isBest(summary, app.state)) return null;
  return pressable("best", t("goBest", t("headName", best.site, best.head)), () => app.set({ site: best.site, head: best.head }));
}

/** Three bars of one scale: this head off, the largest of the random changes, the whole layer off. */
export function drawBars(root, app) {
  const { site, head } = app.state;
  const one = effectOf(app.view(), site, head);
  root.hidden = !one;
  if (!one) return;
  const { unit } = effectsOf(app.view());
  const rows = [["effect", one.effect], ["largest", one.draws ? one.largest : null], ["layer", one.layer]].filter(([, value]) => known(value));
  const most = Math.max(...rows.map(([, value]) => Math.abs(value)), 1e-9);
  refill(root, rows.map(([name, value]) => [el("span", {}, t(`bar_${name}`, one.draws)), el("span", { class: `bar ${name}` }, styled(el("i"), { "--share": Math.abs(value) / most })),
    el("span", {}, name === "largest" && unit === "nats" ? `±${signed(value).slice(1)}` : signed(value, unit))]));
}

/** The heads that look most from the chosen query to the chosen key. */
export function drawMost(root, app) {
  const { view, query, key, site, head } = app.state;
  const { sites } = app.view();
  const [{ queries, keys, shape }] = [app.site()];
  const like = sites.filter((one) => one.queries === queries && one.keys === keys && String(one.shape) === String(shape));
  const heads = like.flatMap((one) => {
    const drawn = drawnSite(view, one);
    return Array.from({ length: one.heads }, (_, number) => ({ site: one.site, head: number, weight: headWeights(drawn, number)[query * shape[1] + key] }));
  }).sort((one, other) => other.weight - one.weight).slice(0, 5);
  const button = (one) => pressable(`most ${one.site} ${one.head}`, [t("headName", one.site, one.head), " · ", percent(one.weight)], () => app.set({ site: one.site, head: one.head }),
    { "aria-pressed": String(one.site === site && one.head === head) });
  refill(root, t("lookMost"), " ", heads.filter(({ weight }) => weight > 0).map(button));
}
