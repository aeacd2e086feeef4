// What was run: the command and all that decides, and every trial.
import { el } from "web/elements.js";
import { nameNode } from "web/tokens.js";
import { speaking } from "web/words.js";
import { cell, heading, section, tableOf } from "./parts.js";
import { payload, shown, trials, whole } from "./study.js";
import { metricTitle, WORDS } from "./words.js";

const t = speaking({
  title: ["What was run", "실행한 것"],
  trials: ["Trials", "시행"],
  note: ["Best: the best value seen during training.", "최고: 훈련하면서 나온 가장 좋은 값."],
  best: ["Best", "최고"], seconds: ["CPU seconds", "CPU 시간(초)"], examples: ["Examples", "예제 수"], run: ["Run", "실행"],
}, WORDS);

function facts() {
  const written = (value) => typeof value === "object" ? JSON.stringify(value) : String(value);
  const tagOf = (term) => term === "command" ? "code" : "span";
  const fact = ([term, value]) => [el("dt", {}, term.replaceAll("_", " ")),
    el("dd", {}, el(tagOf(term), { dir: "auto" }, written(value)))];
  return el("dl", { id: "what-ran", lang: "en" }, Object.entries(payload.what_ran ?? {}).map(fact));
}

function trialRow(trial) {
  return el("tr", {}, heading(nameNode(trial.encoding)), cell(String(trial.seed)), cell(shown(trial.value)), cell(shown(trial.best_value)),
    cell(whole(trial.cpu_seconds)), cell(whole(trial.examples)), cell(nameNode(trial.run), "wrap"));
}

export const run = {
  id: "run", name: () => t("title"),
  draw() {
    const heads = [[t("encoding"), "wrap"], [t("seed")], [metricTitle()], [t("best")], [t("seconds")], [t("examples")], [t("run"), "wrap"]];
    return section("run", t("title"), facts(), el("h3", {}, t("trials")), el("p", { class: "note" }, t("note")),
      tableOf("trial-table", t("trials"), heads, [trials.map(trialRow)]));
  },
};
