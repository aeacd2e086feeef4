// Examples that are images: each with the class it has and those it was given, and what a row of a map looks at on it.
import { pressable } from "kit/controls.js";
import { el, styled } from "kit/elements.js";
import { known } from "kit/numbers.js";
import { framePatch, layOver, patchField, pixelsOf } from "kit/patches.js";
import { nameNode, tokenNode } from "kit/tokens.js";
import { speaking } from "kit/words.js";
import { examples } from "./study.js";
import { WORDS } from "./words.js";

const t = speaking({
  examples: ["The examples: choose one for its maps", "예제: 고르면 그 맵이 열립니다"],
  expected: ["expected {0}", "정답 {0}"],
  right: ["right", "맞음"], wrong: ["wrong", "틀림"],
  image: ["image {0}", "이미지 {0}"],
  over: ["image {0} in {1} rows of {2} patches; over it, what the query of the framed row looks at", "이미지 {0}, 패치 {1}행 {2}열. 그 위에, 테두리 행의 쿼리가 보는 것"],
}, WORDS);

/** Whether an example is an image. */
export const isImage = (example) => known(example?.image);

const BESIDE = 200; // points
/** What the image of a map takes of the width of its pane; where that is narrow, it stands below. */
export const roomOfImage = (example, width) => isImage(example) && width > 2 * BESIDE ? BESIDE : 0;

/** The image of an example, small; null for one that is text. */
export const thumbnail = (example) => isImage(example)
  ? pixelsOf(example.image, { class: "thumbnail", role: "img", "aria-hidden": false, "aria-label": t("image", example.input) }) : null;

/** What is right, beside an answer to an image that is not. */
export const expectedNode = (example, correct) => isImage(example) && correct === false
  ? el("small", { class: "expected" }, " · ", t.parts("expected", nameNode(example.expected))) : null;

/** {node, follow(query, key)}: the image of a map, with the patches of a cell framed and the weights of its row over it. */
export function fieldOf(example, site, weights) {
  if (!isImage(example)) return null;
  const { image } = example;
  const columns = site.key.length;
  const field = patchField(image, { role: "img", "aria-label": t("over", example.input, image.rows, image.columns) });
  const follow = (query, key) => {
    const from = query * columns + image.first;
    const values = weights.subarray(from, from + image.rows * image.columns);
    layOver(field, { values, high: Math.max(...values) || 1 });
    framePatch(field, "query", site.kind.startsWith("encoder") ? query - image.first : -1);
    framePatch(field, "key", key - image.first);
  };
  return { node: field.node, follow };
}

/** All examples as images; null where they are text. */
export function gallery(chosen, choose) {
  if (!examples.every(isImage)) return null;
  return el("div", { class: "gallery", role: "group", "aria-label": t("examples") }, examples.map((example, index) =>
    pressable(`image ${index}`, cardOf(example), () => choose(example), { "aria-pressed": String(example === chosen) })));
}
function cardOf(example) {
  const answers = example.models.map(({ encoding, answer, correct }) => el("span", {}, nameNode(encoding), " ",
    tokenNode(answer ?? ""), known(correct) && el("b", { class: correct ? "right" : "wrong" }, correct ? " ✓" : " ✗", el("span", { class: "unseen" }, ` ${t(correct ? "right" : "wrong")}`))));
  return [styled(thumbnail(example), { "--side": "4.5rem" }), el("span", {}, el("b", {}, nameNode(example.input)), known(example.expected) && [" · ", t.parts("expected", nameNode(example.expected))], answers)];
}
