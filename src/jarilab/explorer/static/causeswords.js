// The words of the page of `jarilab causes`: [English, Korean].
import { el } from "kit/elements.js";
import { known, number, percent } from "kit/numbers.js";
import { language, speaking } from "kit/words.js";

export const t = speaking({
  title: ["jari: which head does it?", "jari: 어느 헤드가 하는가?"],
  heads: ["Every head", "모든 헤드"], head: ["head", "헤드"], answer: ["answer", "답"], verdict: ["verdict", "판정"], table: ["All numbers", "모든 수치"],
  headsLabel: ["Heads: layers down, heads across. Arrow keys move, Enter chooses.", "헤드: 아래로 층, 옆으로 헤드. 화살표 키로 움직이고 Enter로 고릅니다."],
  headLabel: ["{0}: total {1}, direct {2}", "{0}: 전체 {1}, 직접 {2}"],
  textHelp: ["The stronger a word, the more the chosen head looks at it from the underlined word. Choose another word to look from it.", "낱말이 짙을수록 고른 헤드가 밑줄 친 낱말에서 그쪽을 많이 봅니다. 다른 낱말을 고르면 그 낱말에서 본 것을 보여 줍니다."],
  probability: ["{0} has a probability of {1}.", "{0}의 확률은 {1}입니다."], lead: ["{0} leads {1} by {2}.", "{0}: {1}보다 {2} 앞섭니다."],
  continuation: ["Score: the mean log-probability of “{0}”, {1} a token.", "점수: “{0}”의 토큰당 평균 로그 확률, {1}."], continuationShort: ["continuation", "이어지는 글"],
  mark_total: ["left half: total effect", "왼쪽 반: 전체 효과"], mark_direct: ["right half: direct effect", "오른쪽 반: 직접 효과"], mark_against: ["hollow: the answer is better without it", "빈 원: 그 헤드가 없으면 답이 나아짐"],
  mark_none: ["not more than a random direction", "무작위 방향보다 크지 않음"],
  number_total: ["head off (zero)", "헤드 끔(0)"], number_mean: ["mean in its place", "평균으로 바꿈"], number_direct: ["direct effect", "직접 효과"], number_random: ["largest of random", "무작위의 최댓값"],
  numbersHelp: ["How the score changes, in nats. Means are over {0}.", "점수의 변화(nat). 평균은 {0}에서 냅니다."],
  meansHere: ["the positions of this input", "이 입력의 자리들"], meansFile: ["{0} texts of {1}", "{1}의 글 {0}개"],
  certain: [" Its probability is so high that it hides effects: name a rival answer.", " 확률이 너무 높아 효과가 가려집니다. 견줄 다른 답을 주세요."],
  edge_all: ["path to {0}", "{0}까지의 경로"], edge_q: ["path to {0}, by its queries", "{0}까지의 경로, 쿼리로"], edge_k: ["path to {0}, by its keys", "{0}까지의 경로, 키로"], edge_v: ["path to {0}, by its values", "{0}까지의 경로, 값으로"],
  by_all: ["", ""], by_q: ["by its queries:", "쿼리로:"], by_k: ["by its keys:", "키로:"], by_v: ["by its values:", "값으로:"],
  open: ["Open the map of {0}", "{0}의 맵 열기"], looks: ["From {0} it looks at {1}.", "{0}에서 보는 곳: {1}."],
  map: ["Map of {0}", "{0}의 맵"], mapHelp: ["Rows are queries, columns are keys. A map shows where weights go, not what the answer needs.", "행은 쿼리, 열은 키입니다. 맵은 가중치가 어디로 가는지 보여 줄 뿐, 답에 무엇이 필요한지는 보여 주지 않습니다."],
  paths: ["Paths", "경로"], pairs: ["Heads that stand in for each other", "서로 대신하는 헤드"], pair: ["{0} and {1}: {2} without both; alone {3} and {4}", "{0}, {1}: 둘 다 끄면 {2}, 하나씩 끄면 {3}, {4}"],
  how: ["How this is measured, and what it does not say", "어떻게 재었고, 무엇을 말하지 않는가"],
  how1: ["Total effect: the output of the head before W_O becomes zero, and everything after it is computed again. Direct effect: later heads and MLPs keep their clean outputs, so that only what the head itself writes to the answer is lost.",
    "전체 효과: W_O 앞에서 헤드의 출력을 0으로 바꾸고 그 뒤를 모두 다시 계산합니다. 직접 효과: 뒤의 헤드와 MLP는 원래 출력을 유지하므로, 그 헤드가 답에 직접 쓰는 것만 사라집니다."],
  how2: ["Control: {0} random directions of the norm of the head's output are added to it. A head passes if it costs more than all of them, or helps more; by chance 1 of 20 heads does with 39 directions.",
    "대조: 헤드의 출력과 노름이 같은 무작위 방향 {0}개를 더합니다. 그 모두보다 더 해치거나 더 도우면 통과합니다. 방향이 39개일 때 우연히 통과하는 헤드는 20개 중 1개입니다."],
  how3: ["Where zero and mean ablation differ, the model needs a constant that the head writes, not what it reads: the mean keeps the constant. A large direct and a small total effect mean that others make up for the head.",
    "0과 평균의 효과가 다르면, 모델에는 그 헤드가 읽은 것이 아니라 그 헤드가 늘 쓰는 상수가 필요합니다. 평균에는 그 상수가 남습니다. 직접 효과가 크고 전체 효과가 작으면 다른 헤드가 대신합니다."],
  how4: ["This is one input. Another sentence may need other heads: jarilab heads --importance ablates them over a data set.", "이것은 입력 하나입니다. 다른 문장에는 다른 헤드가 필요할 수 있습니다. jarilab heads --importance는 데이터 전체에서 잽니다."],
  find_heads: ["{0} decides this answer: without it {1}. Verdict: {2}.", "{0} 헤드가 이 답을 정합니다. 끄면 {1}. 판정: {2}."],
  find_several: ["{0} heads are each needed for this answer, by nats lost without them: {1}.", "이 답에는 헤드 {0}개가 각각 필요합니다. 끄면 잃는 nat: {1}."],
  find_pair: ["No single head decides this answer: {0} and {1} stand in for each other, and without both {2}.", "이 답을 혼자 정하는 헤드는 없습니다. {0}, {1} 헤드가 서로 대신합니다. 둘 다 끄면 {2}."],
  find_no_single: ["No single head decides this answer: without the strongest, {0}, {1}.", "이 답을 혼자 정하는 헤드는 없습니다. 가장 강한 {0} 헤드를 끄면 {1}."],
  find_none: ["No head changes this answer more than a random direction does.", "무작위 방향보다 이 답을 더 바꾸는 헤드는 없습니다."],
  chance: [" {0} of {1} heads are larger than each of {2} random directions; about {3} would be by chance.", " 헤드 {1}개 중 {0}개가 무작위 방향 {2}개 모두보다 큽니다. 우연이라면 약 {3}개입니다."],
  falls: ["the probability goes from {0} to {1}", "확률이 {0}에서 {1}로 바뀝니다"], fallsScore: ["the score goes from {0} to {1}", "점수가 {0}에서 {1}로 바뀝니다"],
  against: ["The answer is better without it: ", "이 헤드가 없으면 답이 나아집니다: "],
  v_itself: ["does it itself", "직접 합니다"], v_through: ["works through {0}", "{0} 헤드를 거쳐 작용합니다"], v_later: ["works through later layers, no single head of them", "뒤 층을 거쳐 작용하지만, 헤드 하나로 좁혀지지 않습니다"],
  v_needed: ["is needed; this model does not allow to tell how", "필요합니다. 이 모델에서는 어떻게 작용하는지 알 수 없습니다"], v_backed_up: ["backed up by {0}", "{0} 헤드가 대신할 수 있습니다"],
  v_backup: ["stands in for {0} where that is off", "{0} 헤드가 꺼지면 대신합니다"], v_compensated: ["writes it, and later layers make up for it", "답에 쓰지만, 꺼지면 뒤 층이 메웁니다"],
  v_constant: ["a constant: zero and mean ablation differ", "상수: 0과 평균의 효과가 다릅니다"], v_chance: ["not more than a random direction", "무작위 방향보다 크지 않습니다"],
  why_constant: ["Zero in its place costs {0}, the mean of its output {1}. The mean keeps what the head always writes, so the answer needs that constant, not what the head reads here.",
    "0으로 바꾸면 {0}, 출력의 평균으로 바꾸면 {1}입니다. 평균에는 헤드가 늘 쓰는 것이 남으므로, 답에는 헤드가 여기서 읽는 것이 아니라 그 상수가 필요합니다."],
  why_backed_up: ["Alone it costs {0}, since the other head then writes the answer. With later heads kept as they were it costs {2}.", "혼자 끄면 다른 헤드가 답을 대신 쓰므로 {0}입니다. 뒤의 헤드를 원래대로 두면 {2}입니다."],
  why_through: ["It costs {0}, and only {2} of that is what it writes to the answer itself.", "끄면 {0}이고, 그중 답에 직접 쓰는 것은 {2}뿐입니다."],
  why_chance: ["A random direction added to its output changes the score as much.", "출력에 더한 무작위 방향도 점수를 그만큼 바꿉니다."],
  v_untested: ["small, so not compared with random directions", "작아서 무작위 방향과 비교하지 않았습니다"],
});
t.language = language;

/** A number of nats; signed: with its sign in front. */
export function nats(value, signed = false) {
  const size = Math.abs(value);
  const text = size < 5e-5 ? "0" : size < 0.001 ? value.toFixed(4) : size < 1000 ? value.toPrecision(3) : number(value);
  return `${signed && value > 5e-5 ? "+" : ""}${text.replace("-", "−")} nat`;
}

const joined = (nodes) => nodes.flatMap((node, place) => place ? [", ", node] : [node]);
/** The verdict of a head; link(head) makes the heads that it names links. */
export const verdictOf = (row, link) => [row.passes && row.total < 0 ? t("against") : "", t.parts(`v_${row.verdict}`, joined(row.via.map((head) => link(head))))];

/** Why a head has its verdict, by its numbers; nothing where the verdict says it. */
export function whyOf(row) {
  const key = `why_${row.verdict}`;
  const words = t(key, nats(-row.total, true), nats(-row.mean, true), nats(-row.direct, true));
  return words === key ? "" : words;
}

function falls(page, effect) {
  if (!known(page.probability)) return t("fallsScore", nats(page.score), nats(page.score - effect));
  return t("falls", percent(page.probability), percent(page.probability * Math.exp(-effect)));
}
/** What was found, in a sentence or two. */
export function findingOf(page, rows, link) {
  const { verdict, heads, together, strongest, effect, passing, all, controls, by_chance: chance } = page.conclusion;
  const hides = page.probability > 0.999 && ["no_head", "no_single"].includes(verdict);
  const counted = (hides ? t("certain") : "") + t("chance", passing, all, controls, Number(chance.toFixed(1)));
  if (verdict === "heads" && heads.length === 1) return [t.parts("find_heads", link(heads[0]), falls(page, rows.get(heads[0]).total), verdictOf(rows.get(heads[0]), link)), counted];
  if (verdict === "heads") return [t.parts("find_several", String(heads.length), joined(heads.map((head) => el("span", {}, link(head), ` (${number(rows.get(head).total)})`)))), counted];
  if (verdict === "pair") {
    const [one, other] = together[0];
    const pair = page.pairs.find((each) => each.head === one && each.other === other);
    return [t.parts("find_pair", link(one), link(other), falls(page, pair.total)), counted];
  }
  return verdict === "no_head" ? [t("find_none"), counted] : [t.parts("find_no_single", link(strongest), falls(page, effect)), counted];
}
