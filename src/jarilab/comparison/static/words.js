// The words that several sections of the report share: [English, Korean]. {0}, {1} stand for what is filled in.
import { LEGEND_WORDS } from "kit/draw.js";
import { speaking } from "kit/words.js";
import { inLetters, metric } from "./metric.js";

const KOREAN = {
  exact_match: "완전 일치", accuracy: "정확도", loss: "손실", perplexity: "퍼플렉시티", bits_per_character: "글자당 비트", psnr: "PSNR(dB)",
};
/** What a metric is called: [English, Korean]. */
export function metricName({ name, title }) {
  return [title, Object.hasOwn(KOREAN, name) ? KOREAN[name] : title];
}

/** What curves are drawn of. */
export const CURVES = {
  against: ["Drawn against", "가로축"],
  examples: ["training examples seen", "학습한 예제 수"], cpu_seconds: ["CPU seconds", "CPU 시간(초)"],
  lossShort: ["Loss", "손실"],
  logarithmic: [", on a logarithmic scale", ", 로그 눈금"],
  logarithmicLoss: [", on a logarithmic scale: equal distances are equal factors", ", 로그 눈금: 같은 거리는 같은 배수"],
};

export const WORDS = {
  ...LEGEND_WORDS,
  unit: inLetters ? ["character", "글자"] : ["token", "토큰"],
  seeded: ["{0}, seed {1}", "{0}, 시드 {1}"],
  encoding: ["Encoding", "위치 인코딩"],
  run: ["Run", "실행"], step: ["Step", "스텝"], hash: ["Experiment", "실험"], before: ["Before", "이전"],
  seed: ["Seed", "시드"],
  layer: ["Layer", "층"],
  head: ["Head {0}", "헤드 {0}"],
  interval: ["Interval", "구간"],
  higher: ["higher is better", "높을수록 좋음"],
  lower: ["lower is better", "낮을수록 좋음"],
  metric: metricName(metric),
};

export const KINDS = {
  "encoder self-attention": ["encoder self-attention", "인코더 셀프 어텐션"],
  "decoder self-attention": ["decoder self-attention", "디코더 셀프 어텐션"],
  "decoder cross-attention": ["decoder cross-attention", "디코더 크로스 어텐션"],
};

/** The words for a key in the language of the page. */
export const t = speaking(WORDS);

/** The metric's name as a title: a word of small letters begins with a large one. */
export const capital = (words) => words.replace(/^[a-z](?=[a-z ]+$)/, (letter) => letter.toUpperCase());
export const metricTitle = () => capital(t("metric"));
export const better = () => t(metric.higher ? "higher" : "lower");
/** Whose answer or curve it is, for an (i). */
export const factsOf = ({ run, step, seed, experiment, history }) =>
  [[t("run"), run], [t("step"), step], [t("seed"), seed], [t("hash"), experiment], ...(history ? [[t("before"), history]] : [])];
