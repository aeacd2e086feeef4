// How many answers are right: bars, by what an example is like, which pairs differ, and all numbers as a table.
import { note } from "kit/controls.js";
import { el, refill } from "kit/elements.js";
import { known, number } from "kit/numbers.js";
import { nameNode } from "kit/tokens.js";
import { language, speaking } from "kit/words.js";
import { drawBars, drawErrors } from "./bars.js";
import { drawLengths, lengthsFigure } from "./lengths.js";
import { drawLines } from "./lines.js";
import { exact, metric } from "./metric.js";
import { compact, whole } from "./numbers.js";
import { cell, figure, heading, section, tableOf } from "./parts.js";
import { ceiling, ceilingSentence, groups, summary, task } from "./study.js";
import { differences, interval, pairs, points, shown, trials, unfinished } from "./study.js";
import { better, metricTitle, WORDS } from "./words.js";

const t = speaking({
  link: exact ? ["Accuracy", "정확도"] : ["Results", "결과"],
  title: exact ? ["How many answers are right", "정답을 얼마나 맞히는가"] : ["How good the models are", "모델은 얼마나 잘하는가"],
  exact: ["The bars show *exact match*: the share of answers in which every {0} is right.", "막대는 *완전 일치*, 곧 틀린 {0} 없이 맞은 답의 비율입니다."],
  measured: ["The bars show *{0}*: {1}.", "막대는 *{0}*입니다({1})."],
  task: ["The {0} task: {1}. Scored on {2} held-out {3}, set apart from those to train on.", "{0} 과제: {1}. 학습에 쓰지 않고 따로 둔 {3} {2}개로 채점했습니다."],
  sample: exact ? ["problems", "문제"] : ["examples", "예제"],
  key: ["Bar: mean over the trials. Circle: one trial, that is one training run with its own random start.", "막대: 시행들의 평균. 원: 시행 하나, 곧 무작위 초깃값이 저마다 다른 학습 한 번."],
  interval: ["Line with ends, and the small numbers: the *interval* that plausibly contains the true value ({0}).", "끝이 있는 선과 작은 수: 참값이 있을 만한 *구간*({0})."],
  errorsTitle: exact ? ["Wrong answers", "틀린 답"] : ["Error", "오류"],
  errorsNote: ["The same runs by the share that is wrong, on a logarithmic axis: equal distances are equal factors, and less is better. None at all stands at the left end.",
    "같은 실행을 틀린 비율로 본 것, 로그 눈금: 같은 거리는 같은 배수이고, 적을수록 좋습니다. 하나도 틀리지 않은 것은 왼쪽 끝에 있습니다."],
  noInterval: ["No interval was computed.", "구간은 계산하지 않았습니다."],
  overSeeds: ["", "시드 {0}개에 대한 95 %, 스튜던트 t"],
  asWide: ["", "{0}, 시드가 두 무리로 갈리는 인코딩만큼 넓게"],
  overBoth: ["", "시드 {0}개(스튜던트 t)와 예제 {1}개(윌슨)에 대한 95 %"],
  overSample: ["", "예제 {0}개를 뽑은 데 따른 95 %. 시드가 하나라 다른 시드에 대해서는 알 수 없음"],
  pairs: ["Pairs compared: difference of the means, its interval, and the conclusion.", "짝 비교: 평균의 차이, 그 구간, 결론."],
  pairsShare: ["Pairs compared: difference of the means in percentage points, its interval, and the conclusion.", "짝 비교: 평균의 차이(퍼센트포인트), 그 구간, 결론."],
  corrected: ["", "짝 {0}개를 함께 보정했습니다(짝지은 시드 {1}개. 예제마다의 결과가 남아 있지 않아 예제의 잡음은 세지 않음). 결과의 분포가 같은 두 인코딩을 다르다고 한 모의 연구는 많아야 5 %입니다."],
  correctedShare: ["", "짝 {0}개를 함께 보정했습니다(짝지은 시드 {1}개, 서로 독립으로 본 예제 {2}개: 예제마다의 결과가 남아 있지 않음). 결과의 분포가 같은 두 인코딩을 다르다고 한 모의 연구는 많아야 5 %입니다."],
  correctedOutcomes: ["", "짝 {0}개를 함께 보정했습니다(짝지은 시드 {1}개와 짝지은 예제 {2}개). 결과의 분포가 같은 두 인코딩을 다르다고 한 모의 연구는 많아야 5 %입니다."],
  power: ["", "시드 {0}개와 이만한 잡음이라면 실제 차이 {1}만큼은 연구 다섯 번 중 네 번 드러납니다."],
  powerNone: ["", "시드 {0}개와 이만한 잡음이라면 어떤 차이도 연구 다섯 번 중 네 번 드러나지는 않습니다."],
  powerShare: ["", "시드 {0}개와 이만한 잡음이라면 실제 차이 {1}퍼센트포인트는 연구 다섯 번 중 네 번 드러납니다."],
  noPairs: ["No pair is ranked here: each encoding needs several seeds (random starts) to separate a real difference from chance.",
    "여기서는 순위를 매기지 않습니다. 실제 차이를 우연과 구별하려면 위치 인코딩마다 시드(무작위 초깃값)가 여럿 있어야 합니다."],
  oneSeed: ["", "시드가 하나씩이라 순위를 매기지 않음: --seeds 5면 우연과 인코딩의 효과를 구별할 수 있음"],
  oneInCommon: ["", "공통인 시드가 하나뿐이라 순위를 매기지 않음. {0}. 다시 비교하면 빠진 시드를 학습함"],
  lacks: ["", "{0}: 다른 인코딩에 있는 시드 {1}개가 없음"],
  allEqual: ["", "시드들이 전혀 다르지 않아 순위를 매기지 않음"],
  belowNoise: ["", metric.share || pairs.outcomes ? "시드와 예제의 잡음보다 작음. 순위를 매기지 않음" : "시드의 잡음보다 작음. 순위를 매기지 않음"],
  isBetter: ["", "더 좋음: {0}"],
  isAbove: ["", "더 좋음: {0}. 위치 없이 가능한 상한 {1}보다 높음"],
  scattered: ["", "{0}의 시드가 서로 {1}만큼 떨어져 있어 순위를 매기지 않음"],
  scatteredShare: ["", "{0}의 시드가 서로 {1}퍼센트포인트만큼 떨어져 있어 순위를 매기지 않음"],
  maySettle: ["", "{0}: --seeds {1}이면 가려질 수 있음"],
  leftOut: ["Left out, so that these means are over fewer seeds: ", "빠진 시행(아래 평균은 그만큼 적은 시드에 대한 것): "],
  all: ["All numbers of the bars as a table", "막대의 모든 수를 표로 보기"],
  means: ["Means per encoding, of the last and of the best checkpoints. Parameters are the numbers that training adjusts.",
    "위치 인코딩별 평균: 마지막 체크포인트와 학습 중 가장 좋았던 체크포인트. 파라미터는 학습이 조정하는 수입니다."],
  best: ["Best", "최고"],
  pair: ["Pair", "짝"], difference: ["Difference", "차이"], conclusion: ["Conclusion", "결론"], to: ["{0} to {1}", "{0} ~ {1}"],
  range: ["Interval", "구간"], trials: ["Trials", "시행"], parameters: ["Parameters", "파라미터"], seconds: ["Seconds per step", "스텝당 초"], memory: ["Peak memory (MB)", "최대 메모리(MB)"],
  ceiling: ["{0} ceiling: the most without positions, on average", "평균 상한 {0}: 위치 없이 가능한 최대"],
  ceilingShort: ["{0} ceiling without positions", "위치 없는 상한 {0}"],
  ceilingSentence: ["", "위치가 없으면 모델은 입력에 무엇이 들어 있는지만 보고 어디에 있는지는 보지 못합니다. 같은 {0}들로 된 입력에는 같은 답을 내게 되고, 기껏해야 그중 가장 흔한 답을 맞힙니다. 모든 입력에 대해 센 이 비율은 그런 모델이 평균적으로 넘을 수 없는 정답률입니다."],
  only: exact ? ["Only problems with “{0}”", "“{0}” 문제만"] : ["Only “{0}”", "“{0}”만"],
  groupLabel: ["{0} for {1}", "{1}의 {0}"],
  parts: ["{0} by {1}", "{1}별 {0}"],
  partsNote: ["Held-out examples of each, from left to right: {0}. Shaded: the interval of each mean.", "왼쪽부터 검증 예제 수: {0}. 옅은 띠: 평균마다의 구간."],
  "digits of the answer": ["digits of the answer", "답의 자릿수"],
  "carries and borrows": ["carries and borrows", "받아올림·받아내림 횟수"],
  "tokens of the answer": ["tokens of the answer", "답의 토큰 수"],
}, WORDS);

const NEAR = 0.99; // from here on bars look alike
const errors = metric.share && summary.some((row) => row.mean >= NEAR) ? el("div", { class: "chart", id: "errors" }) : null;
const [bars, groupBars, partLines] = [el("div", { class: "chart", id: "bars" }), el("div", { class: "groups", id: "group-bars" }),
  el("div", { class: "groups", id: "parts" })];

/** A sentence that is made where it is known, in English; korean: what a Korean page says instead, where that is known. */
const sentence = (text, korean = null) => language() === "ko" && korean ? el("span", {}, korean) : el("span", { lang: "en" }, text);

const overSeeds = (row) => metric.share ? t("overBoth", row.trials, whole(task.held_out)) : t("overSeeds", row.trials);
const widened = (row) => row.interval?.includes("two groups") ? t("asWide", overSeeds(row)) : overSeeds(row);
const howKnown = (row) => row.trials > 1 ? widened(row) : t("overSample", whole(task.held_out));
function intervalKey() {
  const rows = summary.filter((row) => known(row.low));
  const kinds = new Map(rows.map((row) => [row.interval, sentence(row.interval, howKnown(row))]));
  const shownKinds = [...kinds.values()].flatMap((kind, index) => [index ? "; " : "", kind]);
  return kinds.size ? el("span", { id: "interval" }, t.parts("interval", shownKinds)) : el("span", { id: "no-interval" }, t("noInterval"));
}

/** What may be concluded of a pair, in Korean. */
function concluded({ low, better: winner, limit, scattered }) {
  if (winner) return known(limit) ? t("isAbove", winner, shown(limit)) : t("isBetter", winner);
  if (scattered) {
    const text = t(metric.share ? "scatteredShare" : "scattered", scattered.encoding, points(scattered.gap).replace("+", ""));
    return scattered.seeds > pairs.seeds ? t("maySettle", text, scattered.seeds) : text;
  }
  if (known(low)) return t("belowNoise");
  if (pairs.seeds > 1) return t("allEqual");
  const lacks = Object.entries(pairs.missing).map(([name, count]) => t("lacks", name, count));
  return lacks.length ? t("oneInCommon", lacks.join(", ")) : t("oneSeed");
}

/** How many pairs were compared, how they were corrected for that, and what would have been seen. */
function howCompared() {
  if (!known(pairs.seen)) return null;
  const share = metric.share ? "Share" : "";
  const corrected = t(`corrected${pairs.outcomes ? "Outcomes" : share}`, pairs.count, pairs.seeds, whole(task.held_out));
  const power = t(metric.share && pairs.seen >= 1 ? "powerNone" : `power${share}`, pairs.seeds, points(pairs.seen).replace("+", ""));
  return el("p", { class: "note", id: "how-compared" }, sentence(pairs.correction, corrected), " ", sentence(pairs.power, power));
}

function ranking() {
  if (!differences.length) return el("p", { class: "note", id: "no-ranking" }, t("noPairs"));
  const words = t(metric.share ? "pairsShare" : "pairs");
  const range = ({ low, high }) => known(low) ? t("to", points(low), points(high)) : "–";
  const rows = differences.map((row) => el("tr", {},
    heading([nameNode(row.first), " − ", nameNode(row.second)]),
    cell(points(row.difference)), cell(range(row)), cell(sentence(row.verdict, concluded(row)), "wrap")));
  const heads = [[t("pair"), "wrap"], [t("difference")], [t("range")], [t("conclusion"), "wrap"]];
  return el("div", { id: "ranking" }, note(words), tableOf("ranking-table", words, heads, [rows]), howCompared());
}

/** The trials that failed or are not trained yet: what is shown flatters an encoding that fails at some seeds. */
function leftOut() {
  if (!unfinished.length) return null;
  const lineOf = ({ encoding, seed, reason }) => el("li", {}, nameNode(t("seeded", encoding, seed)), ": ", sentence(reason));
  return el("div", { class: "note", id: "left-out" }, el("p", {}, t("leftOut")), el("ul", {}, unfinished.map(lineOf)));
}

function summaryTable() {
  const named = groups.map((group) => [nameNode(group)]);
  const heads = [[t("encoding"), "wrap"], [t("trials")], [metricTitle()], [t("range")], [t("best")], ...named, [t("parameters")], [t("seconds")], [t("memory")]];
  const rows = summary.map((row) => el("tr", {},
    heading(nameNode(row.encoding)),
    cell(whole(row.trials)), cell(shown(row.mean)), cell(interval(row.low, row.high)), cell(shown(row.best_mean)),
    groups.map((group) => cell(shown(row.groups?.[group]))),
    cell(whole(row.parameters)), cell(number(row.seconds_per_step)),
    cell(whole(row.peak_memory / 2 ** 20 || null))));
  const table = tableOf("summary-table", t("means"), heads, [rows]);
  return el("details", { id: "all-numbers" }, el("summary", {}, t("all")), note(t("means")), table);
}

// ---------------------------------------------------------------- by what an example is like

const partNames = Object.keys(summary[0]?.parts ?? {});

function partFigure(by, index) {
  const counts = Object.values(summary[0].parts[by]).map((part) => whole(part.examples));
  const box = el("div", { class: "chart", "data-part": by });
  const title = t("parts", metricTitle(), t(by));
  return figure(`by-${index + 1}`, title, box, [el("h3", {}, title), t("partsNote", counts.join(", "))]);
}

function drawParts() {
  const written = metric.share ? (value) => `${compact(100 * value)}\u00a0%` : compact;
  for (const box of partLines.querySelectorAll(".chart")) {
    const by = box.dataset.part;
    const names = Object.keys(summary[0].parts[by]);
    const series = summary.filter((row) => row.parts?.[by]).map(({ encoding, parts }) => ({ name: encoding, model: encoding,
      points: names.map((name, at) => [at, parts[by][name]?.value]).filter(([, value]) => known(value)),
      ends: names.map((name, at) => [at, parts[by][name]?.low, parts[by][name]?.high]).filter(([, low, high]) => known(low) && known(high)) }));
    const every = Math.ceil(names.length / 12);
    const ticks = names.map((name, at) => [at, at % every ? "" : name]);
    drawLines(box, metricTitle(), series, t(by), { written, top: metric.share ? 1 : null, ticks });
  }
}

// ---------------------------------------------------------------- the section

function drawAll() {
  const dotsOf = ({ encoding }) => trials.filter((trial) => trial.encoding === encoding && known(trial.value));
  const rows = summary.map((row) => ({ ...row, value: row.mean, dots: dotsOf(row) }));
  drawBars(bars, metricTitle(), rows, ceiling.all, t(bars.clientWidth < 500 ? "ceilingShort" : "ceiling", shown(ceiling.all)));
  if (errors) drawErrors(errors, t("errorsTitle"), rows);
  for (const box of groupBars.querySelectorAll(".chart")) {
    const { group } = box.dataset;
    const groupRows = summary.map((row) => {
      const [low, high] = row.group_intervals?.[group] ?? [];
      return { encoding: row.encoding, value: row.groups?.[group], low, high };
    });
    const [label, limit] = [t("groupLabel", metricTitle(), group), ceiling[group]];
    drawBars(box, label, groupRows, limit, t("ceilingShort", shown(limit)));
  }
  drawParts();
  drawLengths();
}

function groupFigure(group, index) {
  const box = el("div", { class: "chart", "data-group": group });
  const title = t("groupLabel", metricTitle(), group);
  return figure(`group-${index + 1}`, title, box, el("h3", {}, t.parts("only", nameNode(group))));
}

export const accuracy = {
  id: "accuracy", name: () => t("link"), fit: drawAll,
  draw() {
    const there = groups.filter((group) => summary.some((row) => known(row.groups?.[group])));
    refill(groupBars, there.map(groupFigure));
    refill(partLines, partNames.map(partFigure));
    return section("accuracy", t("title"),
      el("p", {}, exact ? t.parts("exact", t("unit")) : t.parts("measured", t("metric"), better()), " ",
        el("span", { id: "task" }, t.parts("task", task.name, sentence(task.sentence), whole(task.held_out), t("sample")))),
      figure("accuracy", metricTitle(), bars, [t("key"), " ", intervalKey()]),
      errors && figure("errors", t("errorsTitle"), errors, [el("h3", {}, t("errorsTitle")), t("errorsNote")]), leftOut(), groupBars,
      partNames.length > 0 && partLines, lengthsFigure(),
      ceilingSentence && el("p", { class: "note", id: "ceiling" }, sentence(ceilingSentence, t("ceilingSentence", t("unit")))),
      ranking(), summaryTable());
  },
};
