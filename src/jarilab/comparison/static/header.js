// What the report says first: one sentence, what two models answer, what was compared, and where to read on.
import { byId, el, refill } from "kit/elements.js";
import { known } from "kit/numbers.js";
import { nameNode, tokenNode } from "kit/tokens.js";
import { languageButton, speaking } from "kit/words.js";
import { drawHero } from "./hero.js";
import { exact } from "./metric.js";
import { whole } from "./numbers.js";
import { headline } from "./outcome.js";
import { listed } from "./parts.js";
import { bare, encodings, examples, ordered, payload, ranked, shown, task } from "./study.js";
import { better, metricTitle, WORDS } from "./words.js";

const t = speaking({
  skip: ["Skip to the results", "결과로 건너뛰기"],
  sections: ["Sections", "차례"],
  others: [", and {0} more below", " 외 {0}개(아래)"],
  measured: ["{0} on {1} unseen examples ({2}): {3}.", "처음 보는 예제 {1}개의 {0}({2}): {3}."],
  transformer: ["A Transformer, a small neural network,", "작은 신경망인 트랜스포머가"],
  network: ["A small neural network", "작은 신경망이"],
  recurrentExact: ["A recurrent network, a small neural network,", "작은 신경망인 순환 신경망이"],
  recurrent: ["A recurrent network", "순환 신경망이"],
  reads: ["{0} reads {1}.", "{0} 읽는 입력: {1}."],
  writes: ["{0} reads {1} and should write {2}.", "{0} 읽는 입력: {1}. 써야 할 답: {2}."],
  looks: ["{0} looks at the held-out image {1}.", "{0} 보는 검증 이미지: {1}."],
  says: ["{0} looks at the held-out image {1} and should say {2}.", "{0} 보는 검증 이미지: {1}. 맞는 답: {2}."],
  attentionIts: ["Its attention", "이 모델의 어텐션은"],
  attention: ["Attention", "어텐션은"],
  knows_encoder_decoder: ["{0} does not know the order of the {1}s by itself: a *positional encoding* has to provide it.",
    "{0} {1}의 순서를 스스로 알지 못합니다. *위치 인코딩*이 알려 주어야 합니다."],
  knows_decoder: ["Attention does not know the order of the {1}s by itself. Each one sees only those before it, from which a model can guess a little: a *positional encoding* provides the order.",
    "어텐션은 {1}의 순서를 스스로 알지 못합니다. 저마다 앞에 온 것만 보므로 모델이 조금은 짐작할 수 있고, *위치 인코딩*이 순서를 알려 줍니다."],
  knows_recurrent: ["A recurrent network reads one {1} after the other, so it knows their order by itself. A *positional encoding* also gives their positions to its attention.",
    "순환 신경망은 {1}마다 차례로 읽으므로 순서를 스스로 압니다. *위치 인코딩*은 그 자리를 어텐션에 한 번 더 알려 줍니다."],
  compared: ["Compared here: {0}.", "여기서 비교하는 것: {0}."],
  comparedBare: ["Compared here: {0} ({1} provides no positions).", "여기서 비교하는 것: {0}(위치를 알려 주지 않는 것: {1})."],
}, WORDS);

/** The means of all encodings, the best first; of many, how many more there are. */
function several(rows) {
  const few = rows.slice(0, rows.length > 4 ? 3 : 4);
  const named = few.flatMap((row, index) => [index ? ", " : "", nameNode(row.encoding), ` ${shown(row.mean)}`]);
  return rows.length > 4 ? [...named, t("others", rows.length - 3)] : named;
}
const figures = () => ranked.length ? t.parts("measured", metricTitle(), whole(task.held_out), better(), several(ranked)) : [];

/** What the first example asks. */
function asked() {
  const example = examples[payload.opening?.example ?? 0];
  if (!example) return "";
  const kind = ordered ? (exact ? "recurrentExact" : "recurrent") : exact ? "transformer" : "network";
  const judged = known(example.expected);
  const words = payload.model === "vit" ? (judged ? "says" : "looks") : judged ? "writes" : "reads";
  return [t.parts(words, t(kind), tokenNode(example.input), tokenNode(example.expected ?? "")), " "];
}

const KINDS = ["encoder_decoder", "decoder", "recurrent"];
/** What a model of this kind knows of order. */
function orderKnown() {
  const { model } = payload;
  if (!KINDS.includes(model)) return "";
  const who = t(examples.length ? "attentionIts" : "attention");
  return [el("span", { "data-model": model }, t.parts(`knows_${model}`, who, t("unit"))), " "];
}

function compared() {
  return bare === null ? t.parts("compared", listed(encodings)) : t.parts("comparedBare", listed(encodings), nameNode(bare));
}

/** links: [id of a section, its name]. */
export function drawHeader(links, change) {
  byId("skip").replaceChildren(t("skip"));
  refill(byId("language"), languageButton(change));
  refill(byId("title"), nameNode(payload.title));
  refill(byId("headline"), headline());
  refill(byId("figures"), figures());
  refill(byId("opening"), drawHero());
  refill(byId("lede"), asked(), orderKnown(), compared());
  byId("sections").setAttribute("aria-label", t("sections"));
  refill(byId("sections"), links.map(([id, name]) => el("a", { href: `#${id}`, "data-keep": id }, name)));
}
