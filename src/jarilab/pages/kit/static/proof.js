// What stands behind what is shown, folded away: one word that a map was checked, and whose map it is.
import { el } from "./elements.js";
import { known, number } from "./numbers.js";
import { nameNode } from "./tokens.js";
import { speaking } from "./words.js";

const t = speaking({
  verified: ["verified", "검증됨"], failed: ["not verified", "검증 안 됨"],
  rowSum: ["Each row adds up to 1; largest error {0}.", "행의 합은 1입니다. 최대 오차 {0}."],
  masked: ["Weight on hidden places: {0}.", "가려진 자리의 가중치: {0}."],
  rebuilt: ["Weights times values give the recorded output; largest error {0}.", "가중치 × 값이 기록된 출력과 같습니다. 최대 오차 {0}."],
  about: ["About this run", "이 실행에 대하여"],
  copy: ["Copy", "복사"], copied: ["Copied", "복사함"],
});

/** A chip that opens: whether a map is the one that was used, and by what. trust: {holds, row_sum_error, masked_weight, rebuild_error}. */
export function proofChip(trust, keep) {
  const checks = [["rowSum", trust.row_sum_error], ["masked", trust.masked_weight], ["rebuilt", trust.rebuild_error]]
    .filter(([, value]) => known(value));
  if (!checks.length) return null;
  const { holds } = trust;
  return el("details", { class: `chip ${holds ? "fine" : "faulty"}` },
    el("summary", { "data-keep": keep }, el("b", {}, holds ? "✓ " : "✗ ", t(holds ? "verified" : "failed"))),
    el("ul", {}, checks.map(([words, value]) => el("li", {}, t(words, number(value))))));
}

/** An (i) that opens. facts: [what, its value]; those that are not known are left out. */
export function infoNote(keep, facts) {
  const there = facts.filter(([, value]) => known(value));
  if (!there.length) return null;
  return el("details", { class: "info" }, el("summary", { "aria-label": t("about"), title: t("about"), "data-keep": keep }, "i"),
    el("dl", {}, there.map(([what, value]) => [el("dt", {}, what), el("dd", {}, nameNode(value))])));
}

/** A command line to be copied. */
export function commandNode(command, keep) {
  const code = el("code", { dir: "ltr", tabindex: 0 }, command); // a long one is scrolled, by key too
  const copy = async ({ currentTarget: button }) => {
    try {
      await navigator.clipboard.writeText(command);
      button.replaceChildren(t("copied"));
    } catch { getSelection().selectAllChildren(code); } // no clipboard here: it is selected, to be copied by key
  };
  return el("p", { class: "command" }, code, el("button", { type: "button", "data-keep": keep, onclick: copy }, t("copy")));
}
