// What was run: the command and all that decides, and every trial.
import { el } from "kit/elements.js";
import { nameNode } from "kit/tokens.js";
import { language, speaking } from "kit/words.js";
import { whole } from "./numbers.js";
import { cell, heading, tableOf } from "./parts.js";
import { payload, shown, trials } from "./study.js";
import { metricTitle, WORDS } from "./words.js";

const t = speaking({
  title: ["What was run", "실행한 것"],
  trials: ["Trials", "시행"],
  note: ["Best: the best value seen during training.", "최고: 학습 중에 나온 가장 좋은 값."],
  commands: ["The command of each trial", "시행마다의 명령"],
  best: ["Best", "최고"], seconds: ["CPU seconds", "CPU 시간(초)"], examples: ["Examples", "예제 수"], run: ["Run", "실행"],
  command: ["command", "명령"], date: ["date", "날짜"], model: ["model", "모델"], processor: ["processor", "프로세서"],
  "threads per trial": ["threads per trial", "시행당 스레드"], precision: ["precision", "정밀도"], "attention kernel": ["attention kernel", "어텐션 커널"],
}, WORDS);

/** Where a setting belongs; its own name is that of an option. */
const SECTIONS = { model: "모델", task: "과제", training: "학습" };
function termNode(term) {
  const words = term.replaceAll("_", " ");
  const [section, option] = words.split(": ");
  if (!option || !Object.hasOwn(SECTIONS, section)) return el("dt", {}, t(words));
  return el("dt", {}, language() === "ko" ? SECTIONS[section] : section, ": ", el("span", { lang: "en" }, option));
}

function facts() {
  const written = (value) => typeof value === "object" ? JSON.stringify(value) : String(value);
  const tagOf = (term) => term === "command" ? "code" : "span";
  const fact = ([term, value]) => [termNode(term), el("dd", { lang: "en" }, el(tagOf(term), { dir: "auto" }, written(value)))];
  return el("dl", { id: "what-ran" }, Object.entries(payload.what_ran ?? {}).map(fact));
}

function trialRow(trial) {
  return el("tr", {}, heading(nameNode(trial.encoding)), cell(String(trial.seed)), cell(shown(trial.value)), cell(shown(trial.best_value)),
    cell(whole(trial.cpu_seconds)), cell(whole(trial.examples)), cell(nameNode(trial.run), "wrap"));
}

/** What makes each figure once more. */
function commands() {
  const repeatable = trials.filter(({ command }) => command);
  const entryOf = ({ encoding, seed, command }) => [el("dt", {}, nameNode(t("seeded", encoding, seed))), el("dd", { lang: "en" }, el("code", { dir: "auto" }, command))];
  return repeatable.length > 0 && el("details", { id: "commands" }, el("summary", { "data-keep": "commands" }, t("commands")), el("dl", {}, repeatable.map(entryOf)));
}

export const run = {
  id: "run", name: () => t("title"),
  draw() {
    const heads = [[t("encoding"), "wrap"], [t("seed")], [metricTitle()], [t("best")], [t("seconds")], [t("examples")], [t("run"), "wrap"]];
    // Folded away: whoever wants to have it once more opens it.
    const details = el("details", { id: "folded", open: location.hash.startsWith("#run") },
      el("summary", { "data-keep": "folded" }, el("h2", { id: "run-title" }, t("title"))),
      facts(), el("h3", {}, t("trials")), el("p", { class: "note" }, t("note")),
      tableOf("trial-table", t("trials"), heads, [trials.map(trialRow)]), commands());
    addEventListener("hashchange", () => { if (location.hash.startsWith("#run")) details.open = true; });
    return el("section", { id: "run", "aria-labelledby": "run-title" }, details);
  },
};
