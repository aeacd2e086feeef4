// What proves a map: below each of them, how far what was drawn is from what the model used.
import { el } from "kit/elements.js";
import { known, number } from "kit/numbers.js";
import { drawnSite, headEdit, isInForce } from "./edits.js";
import { t } from "./words.js";

/** Name in the payload, words. */
const CHECKS = [["row_sum_error", "trustRows"], ["masked_weight", "trustMask"], ["rebuild_error", "trustRebuild"], ["dropout", "trustDropout"]];

/** The proof of a map as it is drawn. isEdited: of the edited forward, where there are edits. */
export function proofNode(app, { index, site }, isEdited) {
  if (isEdited && isInForce(index, headEdit(site.site, app.state.head))) return el("details", { class: "proof off" }, el("summary", {}, `∅ ${t("proof_off")}`));
  const { trust } = isEdited ? drawnSite(index, site) : site;
  return trustNode({ ...site, trust }, app.payload.trust_limits);
}
/** What was checked of a site's maps, and the errors. limits: the largest error of each kind for which a map is verified. */
function trustNode(site, limits) {
  const items = CHECKS.map(([name, words]) => {
    const value = site.trust?.[name];
    const verdict = verdictOf(value, limits[name]);
    const spoken = el("span", { class: "unseen" }, ` ${t(verdict)}: `);
    return el("li", { class: verdict }, el("b", {}, SIGNS[verdict], spoken), ` ${t(words)}: `, el("span", { class: "figure" }, number(value)));
  });
  const keys = site.shape[1] * site.pooled;
  const warn = (words) => items.push(el("li", { class: "warning" }, el("b", { "aria-hidden": "true" }, "!"), ` ${words}`));
  if (site.partial) warn(t("partialReason", site.partial));
  if (site.trust?.rounding) warn(t("trustRounding", number(site.trust.rounding)));
  if (keys > site.d_head) warn(t("wideWarning", keys, site.d_head));
  if (site.pooled > 1) warn(t("pooled", site.pooled));
  const verdicts = CHECKS.map(([name]) => verdictOf(site.trust?.[name], limits[name]));
  const whole = ["faulty", "unknown", "fine"].find((one) => verdicts.includes(one));
  return el("details", { class: `proof ${whole}`, open: whole === "faulty" || !!site.partial }, el("summary", {}, el("b", {}, SIGNS[whole]), ` ${t(`proof_${whole}`)}`),
    el("ul", { class: "trust", "aria-label": t("trust") }, items));
}
const SIGNS = { unknown: "?", fine: "✓", faulty: "✗" };
const verdictOf = (value, most) => !known(value) ? "unknown" : value <= most ? "fine" : "faulty";
