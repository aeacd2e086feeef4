// The page of the prediction server: a field, the answer, and the same request as a command.
import { byId, el, refill } from "kit/elements.js";
import { known } from "kit/numbers.js";
import { firstPayload } from "kit/payload.js";
import { commandNode } from "kit/proof.js";
import { tokenNode } from "kit/tokens.js";
import { language, languageButton, speaking } from "kit/words.js";

const t = speaking({
  about: ["Task {0}, encoding {1}, step {2}.", "과제 {0}, 위치 인코딩 {1}, 스텝 {2}."],
  input: ["Input", "입력"], run: ["Predict", "예측"], answer: ["Answer", "답"], whole: ["The whole reply", "응답 전체"],
  same: ["The same from a terminal or a program:", "터미널이나 프로그램에서는:"],
  failed: ["The server does not respond. Is it still running?", "서버가 응답하지 않습니다. 아직 실행 중인가요?"],
});
const { task, encoding, step, example } = firstPayload;
let line = example;

/** A word of a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const drawCommand = () => refill(byId("curl"), commandNode(`curl ${location.origin}/predict --json ${quoted(JSON.stringify({ inputs: [line] }))}`, "copy command"));

async function predict(event) {
  event.preventDefault();
  refill(byId("error"));
  try {
    const response = await fetch("/predict", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ inputs: [line] }) });
    const reply = await response.json();
    if (reply.error) return refill(byId("error"), reply.error);
    const answers = reply.predictions.map(({ answer }) => el("p", {}, `${t("answer")} `, known(answer) && tokenNode(String(answer), { class: "token big" })));
    return refill(byId("answers"), answers, el("details", {}, el("summary", {}, t("whole")), el("pre", {}, JSON.stringify(reply, null, 2))));
  } catch {
    return refill(byId("error"), t("failed"));
  }
}
function draw() {
  document.documentElement.lang = language();
  refill(byId("headline"), `jari: ${task}`);
  refill(byId("language"), languageButton(draw));
  refill(byId("about"), t("about", task, encoding ?? "none", step));
  const field = el("input", { id: "input", name: "input", value: line, autocomplete: "off", spellcheck: "false", oninput: ({ target }) => { line = target.value; drawCommand(); } });
  refill(byId("ask"), el("label", { for: "input" }, t("input")), " ", field, " ", el("button", { type: "submit" }, t("run")));
  refill(byId("same"), t("same"));
  drawCommand();
}
byId("ask").addEventListener("submit", predict);
draw();
document.documentElement.dataset.ready = "";
