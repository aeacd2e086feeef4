// What proves a map: below each of them, how far what was drawn is from what the model used.
import { el } from "kit/elements.js";
import { known, number } from "kit/numbers.js";
import { t } from "./words.js";

/** Name in the payload, the most that is well, words. */
const CHECKS = [["row_sum_error", 1e-5, "trustRows"], ["masked_weight", 0, "trustMask"],
  ["rebuild_error", 1e-4, "trustRebuild"], ["dropout", 0, "trustDropout"]];

/** What was checked of a site's maps, and what it found. */
export function trustNode(site) {
  const items = CHECKS.map(([name, most, words]) => {
    const value = site.trust?.[name];
    const verdict = verdictOf(value, most);
    const spoken = el("span", { class: "unseen" }, ` ${t(verdict)}: `);
    return el("li", { class: verdict }, el("b", {}, SIGNS[verdict], spoken), ` ${t(words)}: `, el("span", { class: "figure" }, number(value)));
  });
  const keys = site.shape[1] * site.pooled;
  const warn = (words) => items.push(el("li", { class: "warning" }, el("b", { "aria-hidden": "true" }, "!"), ` ${words}`));
  if (keys > site.d_head) warn(t("wideWarning", keys, site.d_head));
  if (site.pooled > 1) warn(t("pooled", site.pooled));
  const verdicts = CHECKS.map(([name, most]) => verdictOf(site.trust?.[name], most));
  const whole = ["faulty", "unknown", "fine"].find((one) => verdicts.includes(one));
  return el("details", { class: `proof ${whole}`, open: whole === "faulty" }, el("summary", {}, el("b", {}, SIGNS[whole]), ` ${t(`proof_${whole}`)}`),
    el("ul", { class: "trust", "aria-label": t("trust") }, items));
}
const SIGNS = { unknown: "?", fine: "✓", faulty: "✗" };
const verdictOf = (value, most) => !known(value) ? "unknown" : value <= most ? "fine" : "faulty";
