// The page of `jarilab report`: what runs are, and their curves.
import { note } from "kit/controls.js";
import { byId, el, refill } from "kit/elements.js";
import { known, unique } from "kit/numbers.js";
import { firstPayload } from "kit/payload.js";
import { commandNode, infoNote } from "kit/proof.js";
import { nameNode } from "kit/tokens.js";
import { toned } from "kit/tones.js";
import { language, languageButton, speaking } from "kit/words.js";
import { drawLines, isWide, pointsOf } from "./lines.js";
import { compact, valueOf, whole } from "./numbers.js";
import { cell, figure, heading, listed, pills, smoothing, tableOf } from "./parts.js";
import { capital, CURVES, factsOf, metricName, WORDS } from "./words.js";

const t = speaking({
  title: ["Learning curves", "학습 곡선"],
  one: ["{0}: loss {1} after {2} steps.", "{0}: {2}스텝 뒤 손실 {1}."],
  oneMeasured: ["{0}: {3} {4}, loss {1} after {2} steps.", "{0}: {2}스텝 뒤 {3} {4}, 손실 {1}."],
  several: ["Curves of {0} runs: {1}.", "실행 {0}개의 곡선: {1}."],
  runs: ["Runs", "실행"], task: ["Task", "과제"], model: ["Model", "모델"], loss: ["Loss", "손실"], value: ["Held out", "검증"],
  lossTitle: ["Loss in training", "학습 손실"], heldOut: ["{0} on held-out data", "검증 데이터의 {0}"],
  of: ["{0} of {1}", "{1} 중 {0}"],
  confusion: ["Answers of {0} to each class", "{0}의 답(열)과 실제 클래스(행)"],
  unfinished: ["Not finished: training stopped or is still running.", "아직 끝나지 않음: 학습이 멈추었거나 진행 중입니다."],
  vocabularies: ["These runs have different vocabularies. Loss and perplexity are means per token, so they are not compared.",
    "이 실행들은 어휘가 서로 다릅니다. 손실과 퍼플렉시티는 토큰당 평균이므로 비교하지 않습니다."],
  inside: ["To see what these runs attend to, run this where they were trained:", "이 실행들의 어텐션을 보려면 학습한 곳에서 다음 명령을 실행하세요."],
}, CURVES, WORDS);

const { runs } = firstPayload;
// Folders may share their last name; then the whole path tells them apart.
const nameOf = (run) => runs.filter(({ name }) => name === run.name).length > 1 ? run.run : run.name;

const AXES = ["examples", "cpu_seconds"].filter((axis) => runs.some(({ curve }) => curve.some((point) => known(point[axis]))));
let axis = AXES[0];
let smooth = 0;

const words = (metric) => metricName(metric)[language() === "ko" ? 1 : 0];

/** One chart: of the loss, or of a metric, which is that of some runs only. */
function chartOf(field, own, metric) {
  const logarithmic = field === "loss" || !metric.higher ? isWide(own.map(({ curve }) => curve), field) : false;
  const title = metric ? t("heldOut", capital(words(metric))) : t("lossTitle");
  const box = el("div", { class: "chart", id: metric ? `of-${metric.name}` : "of-loss" });
  const written = metric?.share ? (value) => `${compact(100 * value)}\u00a0%` : compact;
  const fit = () => {
    const series = own.map((run) => ({ name: nameOf(run), model: run.run, points: pointsOf(run.curve, field, axis, logarithmic) }));
    drawLines(box, metric ? capital(words(metric)) : t("lossShort"), series, t(axis), { written, top: metric?.share ? 1 : null, logarithmic, smooth });
  };
  const scale = logarithmic && t("logarithmicLoss");
  return { fit, node: figure(metric ? `curve-${metric.name}` : "curve-loss", title, box, [title, scale]) };
}

function chartsOf() {
  const metrics = unique(runs.filter(({ value }) => known(value)).map(({ metric }) => metric.name));
  const measured = metrics.map((name) => {
    const measuredRuns = runs.filter(({ metric }) => metric.name === name);
    return chartOf("value", measuredRuns, measuredRuns[0].metric);
  });
  return [...measured, chartOf("loss", runs, null)];
}

const progress = ({ step, steps }) => known(steps) ? t("of", whole(step), whole(steps)) : whole(step);
const isDone = ({ step, steps }) => !known(steps) || step >= steps;

function tableOfRuns() {
  const heads = [...["run", "encoding", "task", "model"].map((key) => [t(key), "name"]),
    ...["seed", "step", "loss", "value"].map((key) => [t(key)])];
  const rows = runs.map((run) => el("tr", {}, toned(run.run, heading([el("i", { class: "swatch" }), nameNode(nameOf(run)), " ",
    infoNote(`info ${run.run}`, factsOf(run))])),
    [run.encoding, run.task, run.model].map((text) => cell(nameNode(text), "name")),
    cell(String(run.seed)), cell(progress(run)), cell(run.loss.toFixed(4)),
    cell(known(run.value) ? `${words(run.metric)} ${valueOf(run.metric, run.value)}` : "–")));
  return tableOf("runs", t("runs"), heads, [rows]);
}

/** The answers to each class, of a run that classifies. */
const confusionsOf = () => runs.filter(({ confusion }) => confusion.length > 1).map((run, index) => {
  const [heads, ...rows] = run.confusion;
  const title = t("confusion", nameOf(run));
  const bodies = rows.map(([name, ...counts]) => el("tr", {}, heading(nameNode(name)), counts.map((count) => cell(nameNode(count)))));
  return [el("h2", {}, title), tableOf(`confusion-${index}`, title, heads.map((name, column) => [nameNode(name), column ? "number" : "name"]), [bodies])];
});

function headline() {
  const [run] = runs;
  if (runs.length > 1) return t.parts("several", String(runs.length), listed(unique(runs.map(({ encoding }) => encoding))));
  const figures = [nameNode(run.encoding), run.loss.toFixed(4), whole(run.step)];
  return known(run.value) ? t.parts("oneMeasured", ...figures, words(run.metric), valueOf(run.metric, run.value)) : t.parts("one", ...figures);
}

let charts = [];
const fit = () => charts.forEach((chart) => chart.fit());

function draw() {
  document.documentElement.lang = language();
  charts = chartsOf();
  refill(byId("title"), t("title"));
  refill(byId("language"), languageButton(draw));
  refill(byId("headline"), headline());
  const choose = (index) => { axis = AXES[index]; fit(); };
  const names = AXES.map((name) => t(name));
  refill(byId("main"), runs.every(isDone) ? null : note(t("unfinished")), firstPayload.notes.length > 0 && note(t("vocabularies")),
    el("div", { class: "controls" }, AXES.length > 1 && pills("axis", t("against"), "radio", names, (index) => AXES[index] === axis, choose),
      smoothing(() => smooth, (part) => { smooth = part; fit(); })),
    el("div", { class: "groups" }, charts.map(({ node }) => node)), tableOfRuns(), confusionsOf(), note(t("inside")), commandNode(firstPayload.explore, "copy command"));
  fit();
}

draw();
let width = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === width) return; // drawing changes the height, never the width
  width = document.body.clientWidth;
  fit();
}).observe(document.body);
