// How the models learned: the metric and the loss, against what was seen or the time it took.
import { el } from "web/elements.js";
import { speaking } from "web/words.js";
import { drawCurves } from "./curves.js";
import { pills, section } from "./parts.js";
import { ceiling, compact, exact, largest, metric, smallest, trials } from "./study.js";
import { metricTitle, WORDS } from "./words.js";

const t = speaking({
  link: ["Learning", "학습"],
  title: ["How the models learned", "모델은 어떻게 배웠나"],
  about: ["One line per training run (a *trial*; its *seed* fixes the random start), drawn against how much it had seen. The *loss* is what training makes small: 0 would be full certainty of every right {0}.",
    "선 하나가 훈련 한 번(*시행*. *시드*가 무작위 시작을 정함)이며, 그때까지 본 양에 맞춰 그렸습니다. *손실*은 훈련이 줄이려는 값으로, 0이면 옳은 {0}마다 완전히 확신한다는 뜻입니다."],
  against: ["Drawn against", "가로축"],
  examples: ["training examples seen", "본 훈련 예제 수"], cpu_seconds: ["CPU seconds", "CPU 시간(초)"],
  heldOut: ["{0} on held-out data", "검증 데이터의 {0}"],
  loss: exact ? ["Loss", "손실"] : ["Loss in training", "훈련 손실"], lossShort: ["Loss", "손실"],
  logarithmic: [", on a logarithmic scale", ", 로그 눈금"],
  logarithmicLoss: [", on a logarithmic scale: equal distances are equal factors", ", 로그 눈금: 같은 거리는 같은 배수"],
}, WORDS);

const AXES = ["examples", "cpu_seconds"];
let axis = AXES[0];
const [values, losses] = ["match-curve", "loss-curve"].map((id) => el("div", { class: "chart", id }));

/** Whether a number falls so far that only powers of ten show it. */
function isWide(field) {
  const seen = trials.flatMap((trial) => trial.curve.map((point) => point[field])).filter((value) => value > 0);
  return seen.length > 0 && largest(seen) / smallest(seen) > 30;
}
const logarithmic = { value: !metric.higher && isWide("value"), loss: isWide("loss") };

function draw() {
  const written = metric.share ? (value) => `${compact(100 * value)}\u00a0%` : compact;
  const across = { field: axis, words: t(axis) };
  const top = metric.share ? 1 : null;
  drawCurves(values, metricTitle(), "value", across, { written, top, logarithmic: logarithmic.value, limit: ceiling.all });
  drawCurves(losses, t("lossShort"), "loss", across, { written: compact, top: null, logarithmic: logarithmic.loss, limit: null });
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
      el("div", { class: "controls" }, pills("axis", t("against"), "radio", names, (index) => AXES[index] === axis, choose)),
      el("div", { class: "groups" },
        el("figure", {}, el("figcaption", {}, title, valueScale), values),
        el("figure", {}, el("figcaption", {}, t("loss"), lossScale), losses)));
  },
};
