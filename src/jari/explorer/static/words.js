// The words of the page: [English, Korean]. {0}, {1} stand for what is filled in.
import { firstPayload } from "./data.js";
import { panelWords } from "./panelwords.js";

const WORDS = {
  title: ["Where the model looks", "모델은 어디를 보는가"],
  skip: ["Skip to the maps", "지도로 건너뛰기"],
  language: ["한국어", "English"],
  lede: ["For each token, attention deals out a weight of 1 over the tokens it may look at. A row of a map is one such deal: the query looks, the keys are looked at. Layers and heads are counted from 0.",
    "어텐션은 토큰마다 합이 1인 가중치를 볼 수 있는 토큰들에 나눠 줍니다. 지도의 한 행이 그 한 번의 나눔입니다. 질의가 보고, 키가 보입니다. 층과 헤드는 0부터 셉니다."],
  input: ["Input", "입력"], run: ["Run", "실행"],
  inputLive: ["Enter runs the models on it.", "Enter를 누르면 모델이 다시 계산합니다."],
  inputSaved: ["This file holds one input. For others: jari explore {0} --input …", "이 파일에는 입력 하나만 들어 있습니다. 다른 입력은: jari explore {0} --input …"],
  answer: ["answer", "답"], expected: ["expected", "정답"], right: ["right", "맞음"], wrong: ["wrong", "틀림"],
  task: ["task", "과제"], encoding: ["encoding", "위치 인코딩"], seed: ["seed", "시드"], step: ["step", "스텝"], runName: ["run", "실행"], experiment: ["experiment", "실험"],
  written: ["Written token by token: point at one for the likeliest.", "토큰별 출력: 가리키면 가능성이 큰 후보가 보입니다."],
  kind_encoder: ["Encoder", "인코더"], kind_decoder: ["Decoder", "디코더"], kind_cross: ["Cross", "교차"],
  sides_encoder: ["input → input", "입력 → 입력"], sides_decoder: ["written → written", "출력 → 출력"], sides_cross: ["written → input", "출력 → 입력"],
  about_encoder: ["Rows and columns: the input.", "행과 열: 입력."],
  about_decoder: ["Rows and columns: what is written; a token cannot look at what comes after it.", "행과 열: 출력. 토큰은 뒤에 오는 것을 볼 수 없습니다."],
  about_cross: ["Rows: what is written, each the step before its next token. Columns: the input.", "행: 출력(다음 토큰을 쓰기 직전). 열: 입력."],
  allHeads: ["Every head", "모든 헤드"],
  headName: ["{0}, head {1}", "{0}, 헤드 {1}"], head: ["head", "헤드"], query: ["query", "질의"], key: ["key", "키"],
  thumbsFull: ["Each from 0 to 1. Layers down, heads across.", "색은 0에서 1까지. 아래로 층, 옆으로 헤드."],
  thumbsFit: ["Each from 0 to its own largest weight. Layers down, heads across.", "색은 0에서 각자의 최댓값까지. 아래로 층, 옆으로 헤드."],
  thumbsLocked: ["Each from 0 to {0}. Layers down, heads across.", "색은 0에서 {0}까지. 아래로 층, 옆으로 헤드."],
  display: ["View", "보기"], maps: ["map", "지도"], lines: ["lines", "선"],
  colours: ["Colours", "색"], linear: ["linear", "선형"], sqrt: ["square root", "제곱근"], log: ["logarithmic", "로그"],
  range: ["Range", "범위"], full: ["0 to 1", "0–1"], fit: ["0 to largest shown", "0–최댓값"], flag_lock: ["lock", "고정"],
  zoom: ["Cells", "칸"], fitCells: ["fit", "맞춤"], largeCells: ["large", "크게"],
  topKeys: ["Keys per query", "질의당 키"], flag_every: ["every query", "모든 질의"], flag_heads: ["every head", "모든 헤드"],
  save: ["Save what is shown", "보이는 것 저장"], difference: ["Difference", "차이"], minus: ["minus", "빼기"],
  drawn: ["What is drawn", "그릴 값"], drawn_weights: ["weight", "가중치"], drawn_valued: ["weight × value", "가중치 × 값"], drawn_rollout: ["rollout", "롤아웃"],
  about_weights: ["", ""],
  about_valued: ["Drawn: the norm of weight × value × W_O, how much of a key arrives at the query (Kobayashi 2020). Norms do not add up to 1.",
    "그린 값: 가중치 × 값 × W_O의 노름, 키에서 질의로 실제 전해지는 양(Kobayashi 2020). 합이 1이 아닙니다."],
  about_rollout: ["Drawn: rollout, for encoders only, all layers and heads at once: what each place of the encoder's output is made of (Abnar 2020).",
    "그린 값: 롤아웃(인코더 전용, 모든 층과 헤드): 인코더 출력의 각 자리가 무엇으로 이루어졌는지(Abnar 2020)."],
  noRollout: ["Rollout is there for encoders only, up to 512 tokens.", "롤아웃은 인코더에만, 512토큰까지 있습니다."],
  noValued: ["The values of this head are not known here.", "이 헤드의 값은 여기서 알 수 없습니다."],
  nothingShown: ["Nothing is drawn that could be saved.", "저장할 그림이 없습니다."],
  hiddenKey: ["hidden: may not be looked at", "가려짐: 볼 수 없는 칸"], differenceLegend: ["difference", "차이"],
  map: ["attention map", "어텐션 지도"], axes: ["query ↓ key →", "질의 ↓ 키 →"],
  mapLabel: ["{0}: {1}, {2} queries down, {3} keys across", "{0}: {1}, 질의 {2}개(아래로), 키 {3}개(옆으로)"],
  help: ["Arrows move the cell, Home and End go to the ends of the row, Page Up and Down ten rows, [ ] the head, { } the layer, Enter pins the cell for the panels below.",
    "화살표: 칸 이동, Home/End: 행의 끝, Page Up/Down: 열 행씩, [ ]: 헤드, { }: 층, Enter: 아래 패널에서 볼 칸 고정."],
  pointAtMap: ["Point at a map to read a weight.", "지도를 가리키면 가중치가 보입니다."],
  sayCell: ["query {0} at {1}, key {2} at {3}", "질의 {0}, 위치 {1}, 키 {2}, 위치 {3}"],
  pinned: ["pinned", "고정됨"], rank: ["rank {0} of {1}", "{1}개 중 {0}위"],
  hiddenCell: ["hidden: this query may not look at this key", "가려짐: 이 질의는 이 키를 볼 수 없음"], hiddenShort: ["hidden", "가려짐"],
  rowDivergence: ["rows apart by {0}", "행 거리 {0}"], atStep: ["step {0}", "스텝 {0}"],
  stripTitle: ["Jensen-Shannon divergence of each row, 0 to ln 2", "행별 옌센-섀넌 발산, 0에서 ln 2까지"],
  divergence: ["The rows lie {0} nats apart on average (Jensen-Shannon, at most ln 2 = 0.693; the strip shows each row).", "행들은 평균 {0} nat 떨어져 있습니다(옌센-섀넌, 최대 ln 2 = 0.693, 띠는 행별 값)."],
  noDivergence: ["Rows do not add up to 1 here, so no distance between them is given.", "여기서는 행의 합이 1이 아니므로 거리를 계산하지 않습니다."],
  noise: ["Two seeds of the same encoding: {0}.", "같은 인코딩의 두 시드 사이: {0}."], noNoise: ["How far two seeds of one encoding lie apart is not known here.", "같은 인코딩의 시드 간 거리는 여기서 알 수 없습니다."],
  aboveNoise: ["Larger than this noise.", "이 잡음보다 큽니다."], belowNoise: ["Not larger than this noise.", "이 잡음보다 크지 않습니다."],
  sameModel: ["Choose two different models.", "서로 다른 두 모델을 고르세요."],
  noHead: ["This model has no {0}, head {1}; it has {2}. Choose it at the top to see its heads.", "이 모델에는 {0}, 헤드 {1}이(가) 없고 {2}이(가) 있습니다. 위에서 이 모델을 고르면 보입니다."],
  notBoth: ["No difference: it takes this map of both models.", "두 모델 모두에 이 지도가 있어야 차이를 그립니다."],
  other_rowTokens: ["No difference: the models do not have the same query tokens here.", "질의 토큰이 서로 달라 차이를 그릴 수 없습니다."],
  other_columnTokens: ["No difference: the models do not have the same key tokens here.", "키 토큰이 서로 달라 차이를 그릴 수 없습니다."],
  otherVocabulary: ["No difference: the models cut text into other tokens (their vocabularies differ).", "두 모델의 어휘가 달라 토큰이 다르므로 차이를 그릴 수 없습니다."],
  otherShape: ["No difference: the maps do not have the same shape.", "지도의 크기가 서로 달라 차이를 그릴 수 없습니다."],
  trust: ["What proves this map", "이 지도의 증거"], fine: ["ok", "정상"], faulty: ["not ok", "이상"], unknown: ["not checked", "확인 안 됨"],
  trustRows: ["rows add up to 1, error", "행의 합이 1, 오차"], trustMask: ["weight on hidden cells", "가려진 칸의 가중치"],
  trustRebuild: ["weights × values give the model's output, error", "가중치×값이 모델 출력과 일치, 오차"], trustDropout: ["dropout", "드롭아웃"],
  wideWarning: ["{0} keys, but a head is only {1} wide: other weights could give the same output (Brunner 2020).", "키 {0}개, 헤드 폭 {1}: 다른 가중치도 같은 출력을 낼 수 있습니다(Brunner 2020)."],
  pooled: ["Pooled by {0}: a cell is the largest of {0} × {0} weights.", "{0}배 묶음: 한 칸은 {0} × {0} 가중치의 최댓값입니다."],
  asTable: ["As a table", "표로 보기"], tableCut: ["Only the pinned query, its largest 40.", "고정한 질의의 상위 40개만."],
  linesOf: ["lines from queries to keys", "질의에서 키로의 선"], linesLabel: ["{0}: up and down arrows choose the query", "{0}: 위아래 화살표로 질의 선택"],
  linesHelp: ["Choose a query on the left: click it, or arrow keys.", "왼쪽의 질의를 클릭하거나 화살표 키로 고르세요."],
  strongest: ["Strongest:", "가장 강한 선:"], linesLeft: ["{0} weaker lines are not drawn.", "더 약한 선 {0}개는 그리지 않았습니다."],
  training: ["Over training", "훈련 과정"], ofSteps: ["step {0} of {1}", "스텝 {0} / {1}"], nextStep: ["Next", "다음"],
  noCurve: ["No curve was recorded.", "기록된 곡선이 없습니다."], curveWords: ["Training loss, on a logarithmic scale; at the end: {0}.", "훈련 손실(로그 눈금), 마지막 값: {0}."], heldOut: ["{0} on held-out data {1} at step {2}.", "검증 데이터의 {0} {1}, 스텝 {2}."],
  panels: ["A closer look", "더 자세히"], ofCell: ["query {0} → key {1}, in {2}", "질의 {0} → 키 {1}, {2}"],
  notLive: ["This page is a file: jari explore RUN --input … computes it.", "이 페이지는 파일입니다. jari explore RUN --input … 으로 계산하세요."],
  noServer: ["The program that serves this page does not answer. Is it still running?", "이 페이지를 보내 준 프로그램이 응답하지 않습니다. 아직 실행 중인가요?"],
  notInFile: ["The details of this head are not in this file: jari explore RUN --input … computes them.", "이 헤드의 세부는 이 파일에 없습니다. jari explore RUN --input … 으로 계산하세요."],
  failed: ["This could not be drawn: {0}", "그릴 수 없었습니다: {0}"],
};

const wordsKnown = (wanted) => String(wanted).startsWith("ko") ? "ko" : "en";
const wordsDefault = wordsKnown(firstPayload.language ?? navigator.language);
let wordsLanguage = wordsKnown(new URLSearchParams(location.hash.slice(1)).get("lang") ?? wordsDefault);
export const language = () => wordsLanguage;
/** The language where the reader chose another than the page's, or null. */
export const chosenLanguage = () => wordsLanguage === wordsDefault ? null : wordsLanguage;
export const setLanguage = (wanted) => { wordsLanguage = wanted; };

/** The words for a key in the language of the page. */
export function t(key, ...filled) {
  const words = WORDS[key]?.[wordsLanguage === "ko" ? 1 : 0] ?? panelWords[wordsLanguage][key] ?? key;
  return words.replace(/\{(\d)\}/g, (_, place) => filled[place] ?? "");
}
