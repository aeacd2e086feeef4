// The words that several sections of the report share: [English, Korean]. {0}, {1} stand for what is filled in.
import { speaking } from "web/words.js";
import { exact, metric } from "./study.js";

export const WORDS = {
  unit: exact ? ["character", "글자"] : ["token", "토큰"],
  seeded: ["{0}, seed {1}", "{0}, 시드 {1}"],
  encoding: ["Encoding", "인코딩"],
  seed: ["Seed", "시드"],
  layer: ["Layer", "층"],
  head: ["Head {0}", "헤드 {0}"],
  interval: ["Interval", "구간"],
  higher: ["higher is better", "높을수록 좋음"],
  lower: ["lower is better", "낮을수록 좋음"],
  metric: [metric.title, {
    exact_match: "완전 일치", accuracy: "정확도", loss: "손실", perplexity: "퍼플렉시티", bits_per_character: "글자당 비트", psnr: "PSNR(dB)",
  }[metric.name] ?? metric.title],
};

/** The words for a key in the language of the page. */
export const t = speaking(WORDS);

/** The metric's name as a title: a word of small letters begins with a large one. */
export const metricTitle = () => t("metric").replace(/^[a-z](?=[a-z ]+$)/, (letter) => letter.toUpperCase());
export const better = () => t(metric.higher ? "higher" : "lower");
