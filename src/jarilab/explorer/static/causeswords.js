// The words of the page of `jarilab causes`: [English, Korean].
import { number } from "kit/numbers.js";
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
  edge_all: ["path to {0}", "{0}까지의 경로"], edge_q: ["path to {0}, by its queries", "{0}까지의 경로, 쿼리로"], edge_k: ["path to {0}, by its keys", "{0}까지의 경로, 키로"], edge_v: ["path to {0}, by its values", "{0}까지의 경로, 값으로"],
  by_all: ["", ""], by_q: ["by its queries:", "쿼리로:"], by_k: ["by its keys:", "키로:"], by_v: ["by its values:", "값으로:"],
  open: ["Open the map of {0}", "{0}의 맵 열기"], looks: ["From {0} it looks at {1}.", "{0}에서 보는 곳: {1}."],
  map: ["Map of {0}", "{0}의 맵"], mapHelp: ["Rows are queries, columns are keys. A map shows where weights go, not what the answer needs.", "행은 쿼리, 열은 키입니다. 맵은 가중치가 어디로 가는지 보여 줄 뿐, 답에 무엇이 필요한지는 보여 주지 않습니다."],
  paths: ["Paths", "경로"], pathsOf: ["{0} of {1} paths: those with the largest effects, and all of the chosen head.", "경로 {1}개 가운데 효과가 큰 것과 고른 헤드의 것, 모두 {0}개입니다."], pairs: ["Heads that stand in for each other", "서로 대신하는 헤드"], pair: ["{0} and {1}: {2} without both; alone {3} and {4}", "{0}, {1}: 둘 다 끄면 {2}, 하나씩 끄면 {3}, {4}"],
  how: ["How this is measured, and what it does not say", "어떻게 재었고, 무엇을 말하지 않는가"],
  how1: ["Total effect: the output of the head before W_O becomes zero, and everything after it is computed again. Direct effect: later heads and MLPs keep their clean outputs, so that only what the head itself writes to the answer is lost.",
    "전체 효과: W_O 앞에서 헤드의 출력을 0으로 바꾸고 그 뒤를 모두 다시 계산합니다. 직접 효과: 뒤의 헤드와 MLP는 원래 출력을 유지하므로, 그 헤드가 답에 직접 쓰는 것만 사라집니다."],
  how2: ["Control: {0} random directions of the norm of the head's output are added to it. A head passes if it costs more than all of them, or helps more; by chance 1 of 20 heads does with 39 directions.",
    "대조: 헤드의 출력과 노름이 같은 무작위 방향 {0}개를 더합니다. 그 모두보다 더 해치거나 더 도우면 통과합니다. 방향이 39개일 때 우연히 통과하는 헤드는 20개 중 1개입니다."],
  how3: ["Where zero and mean ablation differ, the model needs a constant that the head writes, not what it reads: the mean keeps the constant. A large direct and a small total effect mean that others make up for the head.",
    "0과 평균의 효과가 다르면, 모델에는 그 헤드가 읽은 것이 아니라 그 헤드가 늘 쓰는 상수가 필요합니다. 평균에는 그 상수가 남습니다. 직접 효과가 크고 전체 효과가 작으면 다른 헤드가 대신합니다."],
  how4: ["This is one input. Another sentence may need other heads: jarilab heads --importance ablates them over a data set.", "이것은 입력 하나입니다. 다른 문장에는 다른 헤드가 필요할 수 있습니다. jarilab heads --importance는 데이터 전체에서 잽니다."],
  why_constant: ["Zero in its place changes the score by {0}, the mean of its output by {1}. The mean keeps what the head always writes, so the answer needs that constant, not what the head reads here.",
    "0으로 바꾸면 {0}, 출력의 평균으로 바꾸면 {1}입니다. 평균에는 헤드가 늘 쓰는 것이 남으므로, 답에는 헤드가 여기서 읽는 것이 아니라 그 상수가 필요합니다."],
  why_backed_up: ["Off alone, it changes the score by {0}, since the other head then writes the answer. With later heads kept as they were, it changes it by {2}.", "혼자 끄면 다른 헤드가 답을 대신 쓰므로 {0}입니다. 뒤의 헤드를 원래대로 두면 {2}입니다."],
  why_through: ["Off, it changes the score by {0}. Only {2} of that is what it writes to the answer itself.", "끄면 {0}이고, 그중 답에 직접 쓰는 것은 {2}뿐입니다."],
  why_chance: ["A random direction added to its output changes the score as much.", "출력에 더한 무작위 방향도 점수를 그만큼 바꿉니다."],
  contributions: ["What each part writes itself", "각 부분이 답에 직접 쓰는 것"], lens: ["The answer after each layer (logit lens)", "층마다 읽은 답(로짓 렌즈)"],
  composition: ["Which head can read which (composition)", "어느 헤드가 어느 헤드를 읽을 수 있는가(합성)"], relevance: ["Which input tokens count (relevance)", "어느 입력 토큰이 중요한가(관련도)"],
  patching: ["What carries the difference to another input or model (patching)", "다른 입력이나 모델과의 차이를 무엇이 나르는가(패칭)"], steering: ["The answer with a direction added (steering)", "방향을 더했을 때의 답(조종)"],
  screening: ["How well a gradient finds the heads (screening)", "기울기가 헤드를 얼마나 잘 찾는가(거르기)"],
  ask_patching: ["Pass --corrupt TEXT, a second input of as many tokens, or --against FOLDER, a second model of the same shape.", "--corrupt로 토큰 수가 같은 둘째 입력을 주거나, --against로 모양이 같은 둘째 모델의 폴더를 주세요."],
  ask_steering: ["Pass --corrupt TEXT, whose difference to this input is the direction, or --steer FILE with a vector.", "--corrupt로 둘째 입력을 주면 이 입력과의 차이가 방향이 됩니다. --steer로 벡터 파일을 줄 수도 있습니다."],
  patchBar: ["{0}: {1}, {2} of the difference", "{0}: {1}, 차이의 {2}"], part: ["part", "부분"], patchedHere: ["the other's output here", "여기에 다른 쪽 출력"], patchedThere: ["this output there", "다른 쪽에 이쪽 출력"], share: ["of the difference", "차이의 몫"],
  all_heads: ["all heads", "모든 헤드"], all_MLPs: ["all MLPs", "모든 MLP"],
  patchingHelp: ["A bar is how far the score moves with the other's output in that part: upwards towards the other's score, hollow and downwards away from it. The tallest bar of a head is {0} nat, that of an MLP {1} nat. Effects of parts do not add up. Random directions have the length of what was changed.",
    "막대는 그 부분에 다른 쪽 출력을 넣었을 때 점수가 움직인 양입니다. 위는 다른 쪽 점수에 가까워지는 쪽, 아래의 빈 막대는 멀어지는 쪽입니다. 가장 긴 막대는 헤드에서 {0} nat, MLP에서 {1} nat입니다. 효과는 더해지지 않습니다. 무작위 방향의 길이는 바뀐 양과 같습니다."],
  streams: ["Residual stream", "잔차 흐름"], streamsHelp: ["A cell is the share of the difference that the residual stream carries at that token.", "칸은 그 토큰의 잔차 흐름이 나르는 차이의 몫입니다."],
  steerCell: ["{0} {1}; score {2}, random at most {3}; the answer {4}", "{0} {1}, 점수 {2}, 무작위는 많아야 {3}, 답 {4}"], steerLength: ["length", "길이"],
  steeringHelp: ["A cell has the most likely answer with the direction added there, times the number above, and the change of the score. Bold is another answer than {0}. Pale cells change the score no more than {1} random directions of the same length. Length: of the direction by that of the stream.",
    "칸에는 그 층에서 방향에 위의 수를 곱해 더했을 때 가장 그럴듯한 답과 점수의 변화가 있습니다. 굵은 글씨는 {0} 아닌 답입니다. 흐린 칸은 길이가 같은 무작위 방향 {1}개보다 점수를 더 바꾸지 않습니다. 길이: 방향의 길이를 흐름의 길이로 나눈 값."],
  screenDot: ["{0}: estimate {1}, measured {2}", "{0}: 추정 {1}, 실제 {2}"], estimated: ["estimate", "추정"], measuredEffect: ["measured", "실제"], chosenBy: ["chosen", "고른 방법"], checked_top: ["largest", "추정이 큼"], checked_random: ["at random", "무작위"],
  screenHelp: ["Each dot is a head: its estimate across, its measured effect upwards. On the line they agree.", "점은 헤드입니다. 가로는 추정, 세로는 실제 효과이고, 선 위에서는 둘이 같습니다."],
  mark_unmeasured: ["not ablated (--screen)", "재지 않음(--screen)"], unmeasured: ["{0}: not ablated (--screen)", "{0}: 재지 않음(--screen)"],
  refused: ["Not possible on this model:", "이 모델에서는 할 수 없습니다:"], notJudged: ["Not judged:", "판정하지 않았습니다:"], others: ["Other parts:", "다른 부분:"],
  bar: ["{0}: {1}; with the norm's scale recomputed {2}", "{0}: {1}, 노름의 크기를 다시 계산하면 {2}"],
  contributionsHelp: ["A bar is what the part itself writes to the score: upwards for the answer, hollow and downwards against it. Effects through later parts do not count. The tallest bar of a head is {0} nat, that of an MLP {1} nat.",
    "막대는 그 부분이 점수에 직접 쓰는 것입니다. 위는 답에 유리하고, 아래의 빈 막대는 불리합니다. 뒤의 부분을 거친 효과는 들어가지 않습니다. 가장 긴 막대는 헤드에서 {0} nat, MLP에서 {1} nat입니다."],
  unembedding: ["The model changes its logits afterwards, as by a soft cap. The score is read before that, at {0}.", "모델이 그 뒤에 로짓을 바꿉니다(소프트 캡 등). 점수는 그 앞, {0}에서 읽습니다."],
  lensHelp: ["A cell has the most likely token at that place if the model ended after this layer, and its probability; the norm is computed anew. The frame marks where the answer is read; bold is the answer.",
    "칸에는 모델이 그 층에서 끝난다면 그 자리에서 가장 그럴듯한 토큰과 그 확률이 있습니다. 노름은 다시 계산합니다. 테두리는 답을 읽는 자리, 굵은 글씨는 답입니다."],
  lensBefore: ["before the layers", "첫 층 앞"], lensAfter: ["after {0}", "{0} 뒤"], lensCell: ["{0}: {1}. The answer: {2}", "{0}: {1}. 답: {2}"], lensAnswer: ["answer here", "답의 확률"],
  compositionHelp: ["A score says that a head could read what an earlier one writes. It does not say that it does on this input: the paths above are measured. At most 12 links of each kind are drawn.",
    "점수는 앞 헤드가 쓰는 것을 뒤 헤드가 읽을 수 있다는 뜻입니다. 이 입력에서 정말 읽는지는 말하지 않습니다. 그것은 위의 경로가 잰 것입니다. 종류마다 많아야 12개를 그립니다."],
  input_q: ["queries", "쿼리"], input_k: ["keys", "키"], input_v: ["values", "값"], link: ["link", "연결"], byInput: ["read by", "읽는 곳"], timesChance: ["times chance", "우연의 배수"],
  timesMean: ["times the mean of all", "모든 연결 평균의 배수"], measured: ["measured path", "잰 경로"],
  relevanceHelp: ["The stronger the colour of a token, the more relevant it is by this method, compared with its most relevant token; dashed is negative.",
    "짙을수록 그 방법에서 관련도가 높습니다. 그 방법의 최댓값과 견줍니다. 점선은 음수입니다."],
  gainHelp: ["Gain: by how much removing the named tokens first is better than a random order, with its 95 % interval.", "이득: 가리킨 토큰부터 지우는 것이 무작위 순서보다 얼마나 나은지와 95 % 구간입니다."],
  gain_mask: ["gain, token hidden: {0}", "이득, 토큰을 가림: {0}"], gain_replace: ["gain, token replaced: {0}", "이득, 토큰을 바꿈: {0}"],
});
t.language = language;

/** A number of nats; signed: with its sign in front. */
export function nats(value, signed = false) {
  const size = Math.abs(value);
  const text = size < 5e-5 ? "0" : size < 0.001 ? value.toFixed(4) : size < 999.5 ? value.toPrecision(3) : number(value);
  return `${signed && value > 5e-5 ? "+" : ""}${text.replace("-", "−")} nat`;
}

/** A sentence that came with the data, in the language of the page. */
export const saidIn = ({ sentence, words, korean }) => language() === "ko" ? korean : sentence ?? words;

/** Why a head has its verdict, by its numbers; nothing where the verdict says it. */
export function whyOf(row) {
  const key = `why_${row.verdict}`;
  const words = t(key, nats(-row.total, true), nats(-row.mean, true), nats(-row.direct, true));
  return words === key ? "" : words;
}
