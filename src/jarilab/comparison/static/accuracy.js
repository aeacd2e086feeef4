// How many answers are right: bars, which pairs differ, and all numbers as a table.
import { note } from "web/controls.js";
import { el, refill } from "web/elements.js";
import { known, number, unique } from "web/numbers.js";
import { nameNode } from "web/tokens.js";
import { speaking } from "web/words.js";
import { drawBars } from "./bars.js";
import { cell, heading, section, tableOf } from "./parts.js";
import { ceiling, ceilingSentence, exact, groups, metric, summary, task } from "./study.js";
import { differences, interval, points, shown, trials, whole } from "./study.js";
import { better, metricTitle, WORDS } from "./words.js";

const t = speaking({
  link: exact ? ["Accuracy", "정확도"] : ["Results", "결과"],
  title: exact ? ["How many answers are right", "정답을 얼마나 맞히는가"] : ["How good the models are", "모델은 얼마나 잘하는가"],
  exact: ["The bars show *exact match*: the share of answers in which every character is right.", "막대는 *완전 일치*, 곧 모든 글자가 맞은 답의 비율입니다."],
  measured: ["The bars show *{0}*: {1}.", "막대는 *{0}*입니다({1})."],
  task: ["The {0} task: {1}. Scored on {2} held-out {3}, set apart from those to train on.", "{0} 과제: {1}. 훈련에 쓰지 않고 따로 둔 {3} {2}개로 채점했습니다."],
  sample: exact ? ["problems", "문제"] : ["examples", "예제"],
  key: ["Bar: mean over the trials. Circle: one trial, that is one training run with its own random start.", "막대: 시행들의 평균. 원: 시행 하나, 곧 무작위 시작이 저마다 다른 훈련 한 번."],
  interval: ["Line with ends, and the small numbers: the *interval* in which the true value plausibly lies ({0}).", "끝이 있는 선과 작은 수: 참값이 있을 만한 *구간*({0})."],
  noInterval: ["No interval was computed.", "구간은 계산하지 않았습니다."],
  pairs: ["Pairs compared: difference of the means, its interval, and what may be concluded.", "짝 비교: 평균의 차이, 그 구간, 내릴 수 있는 결론."],
  pairsShare: ["Pairs compared: difference of the means in percentage points, its interval, and what may be concluded.", "짝 비교: 평균의 차이(퍼센트포인트), 그 구간, 내릴 수 있는 결론."],
  noPairs: ["No pair is ranked here: to tell a real difference from the luck of the random start, each encoding needs several seeds (random starts).",
    "여기서는 우열을 가리지 않습니다. 진짜 차이를 무작위 시작의 운과 가리려면 인코딩마다 시드(무작위 시작)가 여럿 있어야 합니다."],
  all: ["All numbers of the bars as a table", "막대의 모든 수를 표로 보기"],
  means: ["Means per encoding. Parameters are the numbers that training adjusts.", "인코딩별 평균. 매개변수는 훈련이 조정하는 수입니다."],
  pair: ["Pair", "짝"], difference: ["Difference", "차이"], conclusion: ["Conclusion", "결론"], to: ["{0} to {1}", "{0} ~ {1}"],
  range: ["Interval", "구간"], trials: ["Trials", "시행"], parameters: ["Parameters", "매개변수"], seconds: ["Seconds per step", "스텝당 초"],
  ceiling: ["{0} ceiling: the most without positions", "상한 {0}: 위치 없이 가능한 최대"],
  ceilingShort: ["{0} ceiling without positions", "위치 없는 상한 {0}"],
  only: exact ? ["Only problems with “{0}”", "“{0}” 문제만"] : ["Only “{0}”", "“{0}”만"],
  groupLabel: ["{0} for {1}", "{1}의 {0}"],
}, WORDS);

const [bars, groupBars] = [el("div", { class: "chart", id: "bars" }), el("div", { class: "groups", id: "group-bars" })];

/** The sentences of a task and of a verdict are made where they are known, in English. */
const english = (text, attributes = {}) => el("span", { lang: "en", ...attributes }, text);

function intervalKey() {
  const kinds = unique(summary.filter((row) => known(row.low)).map((row) => row.interval)).join("; ");
  return kinds ? el("span", { id: "interval" }, t.parts("interval", english(kinds))) : el("span", { id: "no-interval" }, t("noInterval"));
}

function ranking() {
  if (!differences.length) return el("p", { class: "note", id: "no-ranking" }, t("noPairs"));
  const words = t(metric.share ? "pairsShare" : "pairs");
  const range = ({ low, high }) => known(low) ? t("to", points(low), points(high)) : "–";
  const rows = differences.map((row) => el("tr", {},
    heading([nameNode(row.first), " − ", nameNode(row.second)]),
    cell(points(row.difference)), cell(range(row)), cell(english(row.verdict), "wrap")));
  const heads = [[t("pair"), "wrap"], [t("difference")], [t("range")], [t("conclusion"), "wrap"]];
  return el("div", { id: "ranking" }, note(words), tableOf("ranking-table", words, heads, [rows]));
}

function summaryTable() {
  const named = groups.map((group) => [nameNode(group)]);
  const heads = [[t("encoding"), "wrap"], [t("trials")], [metricTitle()], [t("range")], ...named, [t("parameters")], [t("seconds")]];
  const rows = summary.map((row) => el("tr", {},
    heading(nameNode(row.encoding)),
    cell(whole(row.trials)), cell(shown(row.mean)), cell(interval(row.low, row.high)),
    groups.map((group) => cell(shown(row.groups?.[group]))),
    cell(whole(row.parameters)), cell(number(row.seconds_per_step))));
  const table = tableOf("summary-table", t("means"), heads, [rows]);
  return el("details", {}, el("summary", {}, t("all")), note(t("means")), table);
}

function drawAll() {
  const dotsOf = ({ encoding }) => trials.filter((trial) => trial.encoding === encoding && known(trial.value));
  const rows = summary.map((row) => ({ ...row, value: row.mean, dots: dotsOf(row) }));
  drawBars(bars, metricTitle(), rows, ceiling.all, t("ceiling", shown(ceiling.all)));
  const there = groups.filter((group) => summary.some((row) => known(row.groups?.[group])));
  const figures = there.map((group) => el("figure", {}, el("h3", {}, t.parts("only", nameNode(group))), el("div", { class: "chart" })));
  refill(groupBars, figures);
  there.forEach((group, index) => {
    const own = summary.map((row) => ({ encoding: row.encoding, value: row.groups?.[group] }));
    const [label, limit] = [t("groupLabel", metricTitle(), group), ceiling[group]];
    drawBars(figures[index].lastChild, label, own, limit, t("ceilingShort", shown(limit)));
  });
}

export const accuracy = {
  id: "accuracy", name: () => t("link"), fit: drawAll,
  draw: () => section("accuracy", t("title"),
    el("p", {}, exact ? t.parts("exact") : t.parts("measured", t("metric"), better()), " ",
      el("span", { id: "task" }, t.parts("task", task.name, english(task.sentence), whole(task.held_out), t("sample")))),
    el("figure", {}, bars, el("figcaption", {}, t("key"), " ", intervalKey())), groupBars,
    ceilingSentence && el("p", { class: "note", id: "ceiling", lang: "en" }, ceilingSentence), ranking(), summaryTable()),
};
