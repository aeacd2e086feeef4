// How the models learned: the metric and the loss, against what was seen or the time it took.
import { el } from "kit/elements.js";
import { speaking } from "kit/words.js";
import { drawLines, isWide, pointsOf } from "./lines.js";
import { exact, metric } from "./metric.js";
import { compact } from "./numbers.js";
import { figure, pills, section, smoothing } from "./parts.js";
import { ceiling, trials } from "./study.js";
import { CURVES, metricTitle, WORDS } from "./words.js";

const t = speaking({
  link: ["Learning", "학습"],
  title: ["How the models learned", "모델은 어떻게 학습했나"],
  about: ["Each line is one training run (a *trial*; its *seed* fixes the random start). The *loss* is what training minimizes: 0 means full certainty of every right {0}.",
    "선 하나가 학습 한 번(*시행*. *시드*가 무작위 초깃값을 정함)입니다. *손실*은 학습이 줄이려는 값으로, 0이면 정답의 {0}마다 완전히 확신한다는 뜻입니다."],
  heldOut: ["{0} on held-out data", "검증 데이터의 {0}"],
  loss: exact ? ["Loss", "손실"] : ["Loss in training", "학습 손실"],
}, CURVES, WORDS);

let smooth = 0;
const AXES = ["examples", "cpu_seconds"];
let axis = AXES[0];
const [values, losses] = ["match-curve", "loss-curve"].map((id) => el("div", { class: "chart", id }));

const curves = trials.map((trial) => trial.curve);
const logarithmic = { value: !metric.higher && isWide(curves, "value"), loss: isWide(curves, "loss") };

function draw() {
  const written = metric.share ? (value) => `${compact(100 * value)}\u00a0%` : compact;
  const top = metric.share ? 1 : null;
  const of = (field) => trials.map(({ encoding, curve }) => ({ name: encoding, model: encoding, points: pointsOf(curve, field, axis, logarithmic[field]) }));
  drawLines(values, metricTitle(), of("value"), t(axis), { written, top, logarithmic: logarithmic.value, smooth, limit: ceiling.all });
  drawLines(losses, t("lossShort"), of("loss"), t(axis), { written: compact, logarithmic: logarithmic.loss, smooth });
}

export const learning = {
  id: "learning", name: () => t("link"), fit: draw,
  draw() {
    const choose = (index) => { axis = AXES[index]; draw(); };
    const title = exact ? metricTitle() : t("heldOut", metricTitle());
    const names = AXES.map((name) => t(name));
    const valueScale = logarithmic.value && el("span", { id: "match-logarithmic" }, t("logarithmic"));
    const lossScale = logarithmic.loss && el("span", { id: "logarithmic" }, t("logarithmicLoss"));
    return section("learning", t("title"), el("p", {}, t.parts("about", t("unit"))),
      el("div", { class: "controls" }, pills("axis", t("against"), "radio", names, (index) => AXES[index] === axis, choose), smoothing(() => smooth, (part) => { smooth = part; draw(); })),
      el("div", { class: "groups" },
        figure("curve-metric", title, values, [title, valueScale]), figure("curve-loss", t("loss"), losses, [t("loss"), lossScale])));
  },
};
