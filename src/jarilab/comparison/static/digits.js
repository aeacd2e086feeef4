// Can the model tell equal digits apart? The largest difference between the rows of equal digits, for each layer and head.
import { el } from "kit/elements.js";
import { known, number } from "kit/numbers.js";
import { nameNode, tokenNode } from "kit/tokens.js";
import { speaking } from "kit/words.js";
import { cell, heading, section, tableOf } from "./parts.js";
import { nameOf, withDigits } from "./study.js";
import { WORDS } from "./words.js";

const t = speaking({
  link: ["Equal digits", "같은 숫자"],
  title: ["Can the model tell equal digits apart?", "모델은 같은 숫자를 구별하는가?"],
  about: ["The table shows the largest difference between the attention rows of equal digits, for each layer and head. Where it is exactly 0, the two digits look the same to the model, so it cannot know which of them is the ones, the tens or the hundreds.",
    "표는 같은 숫자끼리 어텐션 행이 가장 크게 다른 정도를 층과 헤드마다 보여 줍니다. 정확히 0이면 모델에게 두 숫자가 똑같아 보이므로, 어느 것이 일, 십, 백의 자리인지 알 수 없습니다."],
  input: ["Input {0}. Marked: exactly 0.", "입력 {0}. 표시된 칸: 정확히 0."],
}, WORDS);

function rowsOf(model, models) {
  const sites = model.sites.filter((site) => site.equal_rows?.some(known));
  const name = nameNode(nameOf(model, models, (encoding, seed) => t("seeded", encoding, seed)));
  const title = el("th", { scope: "rowgroup", rowspan: sites.length }, name);
  const values = (site) => site.equal_rows.map((value) => cell(number(value), value === 0 ? "number zero" : "number"));
  return sites.map((site, layer) => el("tr", {}, layer ? null : title, heading(String(layer), { class: "number" }), values(site)));
}

export const digits = {
  id: "rows", name: () => t("link"),
  draw() {
    if (!withDigits) return null;
    const { models, input } = withDigits;
    const count = Math.max(...models.flatMap((model) => model.sites.map((site) => site.heads)));
    const heads = [[t("encoding"), "wrap"], [t("layer")], ...Array.from({ length: count }, (_, head) => [t("head", head)])];
    return section("rows", t("title"), el("p", {}, t("about")), el("p", { class: "note" }, t.parts("input", tokenNode(input))),
      tableOf("rows-table", t("title"), heads, models.map((model) => rowsOf(model, models))));
  },
};
