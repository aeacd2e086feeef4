// What came out, as one sentence of at most twelve words: it says no more than what was measured.
import { known } from "kit/numbers.js";
import { nameNode } from "kit/tokens.js";
import { speaking } from "kit/words.js";
import { exact } from "./metric.js";
import { precisePercent } from "./numbers.js";
import { bare, ceiling, differences, ordered, payload, ranked, shown } from "./study.js";
import { capital, WORDS } from "./words.js";

const LEARNED = 0.9; // from here on it is called learned

const t = speaking({
  learned: ["With positions {0} right. Without: {1}, at most {2} on average.", "위치를 알면 정답률 {0}, 모르면 {1}(평균 상한 {2})."],
  leaked: ["With positions {0} right. Without: {1}, above the computed {2}.", "위치를 알면 정답률 {0}, 모르면 {1}(계산된 상한 {2}보다 높음)."],
  onItsWay: ["{0} is at {1}, past the {2} without positions: train longer.", "{0}: 정답률 {1}, 위치 없는 상한 {2}를 넘음. 더 학습하세요."],
  notYet: ["{0} has not passed {1}: train longer.", "{0}: 아직 {1}를 넘지 못했습니다. 더 학습하세요."],
  neither: ["Neither {0} nor {1} has passed {2}: train longer.", "{0}, {1} 모두 아직 {2}를 넘지 못했습니다. 더 학습하세요."],
  noneOf: ["With positions, none of {0} has passed {1}: train longer.", "위치를 아는 {0}가지 모두 아직 {1}를 넘지 못했습니다. 더 학습하세요."],
  one: ["{0}: {1} {2} on unseen data.", "{0}: 처음 보는 데이터에서 {1} {2}."],
  best: ["{0} is best: {1} {2}; {3} {4}.", "가장 좋음: {0}, {1} {2}. {3} {4}."],
  unranked: ["{1}: {0} {2}, {3} {4}. Not ranked.", "{1}: {0} {2}, {3} {4}. 순위는 매기지 않음."],
  unrankedMany: ["{1}: {0} {2}, {3} {4}, {5} more. The best is unclear.", "{1}: {0} {2}, {3} {4} 외 {5}개. 가장 나은 하나를 정할 수 없음."],
}, WORDS);

/** Whether an encoding is better than every other one, by the verdicts of the table. */
function isBest(encoding) {
  const pairs = differences.filter((row) => [row.first, row.second].includes(encoding));
  return pairs.length > 0 && pairs.every((row) => row.better === encoding);
}

/** With a model that is told nothing, and the most that it can reach. */
function againstCeiling(without, informed, limit) {
  const [top, second] = informed;
  const most = precisePercent(limit);
  if (top.mean <= limit) {
    if (informed.length > 2) return t.parts("noneOf", String(informed.length), most);
    if (informed.length > 1) return t.parts("neither", nameNode(top.encoding), nameNode(second.encoding), most);
    return t.parts("notYet", nameNode(top.encoding), most);
  }
  if (top.mean < LEARNED) return t.parts("onItsWay", nameNode(top.encoding), precisePercent(top.mean), most);
  // One set of held-out examples may be somewhat kinder than the mean that the ceiling is.
  const leaked = (known(without.low) ? without.low : without.mean) > limit;
  return t.parts(leaked ? "leaked" : "learned", precisePercent(top.mean), precisePercent(without.mean), most);
}

/** The sentence, as text and name nodes. */
export function headline() {
  const [best, second] = ranked;
  if (!best) return [payload.title];
  const without = ranked.find((row) => row.encoding === bare);
  const informed = ranked.filter((row) => row !== without);
  if (exact && !ordered && without && informed.length && known(ceiling.all)) return againstCeiling(without, informed, ceiling.all);
  const [name, title] = [nameNode(best.encoding), t("metric")];
  if (!second) return t.parts("one", name, title, shown(best.mean));
  const rest = [shown(best.mean), nameNode(second.encoding), shown(second.mean)];
  if (isBest(best.encoding)) return t.parts("best", name, title, ...rest);
  return t.parts(ranked.length > 2 ? "unrankedMany" : "unranked", name, capital(title), ...rest, String(ranked.length - 2));
}
