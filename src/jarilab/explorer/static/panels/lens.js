import { block } from "kit/blocks.js";
import { note, pressable } from "kit/controls.js";
import { adopt, el, refill, svg } from "kit/elements.js";
import { number } from "kit/numbers.js";
import { speaking } from "kit/words.js";
import { hasDetails, hiddenOf, keptPage, nameCell, smallMap, withDetail } from "./kit.js";
import { WORDS } from "../words.js";

const t = speaking({
  title: ["Scale", "스케일"],
  about: ["If the divisor is too small, the largest score takes all the weight and the softmax has almost no gradient. If it is too large, all keys get the same weight. √d keeps the spread of the scores about the same for every head dimension.",
    "너무 작은 수로 나누면 가장 큰 점수가 가중치를 독차지해 소프트맥스가 기울기를 거의 전하지 못하고, 너무 큰 수로 나누면 모든 키의 가중치가 같아져 점수가 의미를 잃습니다. √d로 나누면 헤드의 차원과 상관없이 점수의 퍼짐이 비슷하게 유지됩니다."],
  none: ["Every query here sees one key only, so there is nothing to divide.", "여기서는 쿼리마다 볼 수 있는 키가 하나뿐이라 나눌 것이 없습니다."],
  divisor: ["q·k divided by", "q·k를 나누는 수"],
  own: ["the model's own", "모델 자신의 값"],
  map: ["Weights with q·k divided by {0}", "q·k ÷ {0}의 가중치"],
  cell: ["{0}: {1}; by the model's own divisor {2}", "{0}: {1}, 모델 자신의 값으로는 {2}"],
  curve_entropy: ["entropy / log n", "엔트로피 / log n"],
  curve_largest: ["largest weight", "최대 가중치"],
  curve_trace: ["1 − Σp²", "1 − Σp²"],
  curve_jacobian: ["Jacobian norm |∂p/∂s|", "야코비안 노름 |∂p/∂s|"],
  curve_gradient: ["gradient norm |∂p/∂q|", "기울기 노름 |∂p/∂q|"],
}, WORDS);

adopt(
  ".lens-control { position: relative; max-width: 34rem; padding-bottom: 2.4rem; }",
  ".lens-control label { display: block; font-variant-numeric: tabular-nums; }",
  ".lens-control output { font-weight: 650; }",
  ".lens-control input { width: calc(100% + 16px); margin: .3rem -8px 0; accent-color: var(--accent); }",
  ".lens-ticks { position: relative; height: 0; }",
  ".lens-ticks button { position: absolute; transform: translateX(-50%); padding: 0 .5rem; font-size: var(--t2); }",
  ".lens-ticks .own { font-weight: 700; border-color: var(--ink); }",
  ".lens-curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(10.7rem, 1fr)); gap: .8rem 1.2rem; flex: 1 1 20rem; align-items: end; }",
  ".lens-curve figcaption { font-variant-numeric: tabular-nums; }",
  ".lens-curve strong { color: var(--ink); }",
  ".lens-curve .curve { fill: none; stroke: var(--accent); stroke-width: 2; }",
  ".lens-curve .own { stroke: var(--muted); stroke-dasharray: 3 3; }",
  ".lens-curve .cursor { stroke: var(--ink); }",
  ".lens-curve circle { fill: var(--ink); }",
  ".lens-curve .axis { fill: none; stroke: var(--line); }",
);

const CURVES = ["entropy", "largest", "trace", "jacobian", "gradient"];
const pages = new WeakMap(); // detail -> what was drawn of it

export const panel = {
  id: "lens", title: () => t("title"), there: (app) => hasDetails(app, "lens"),
  draw(root, app) {
    return withDetail(root, app, (detail) => {
      if (detail.lens) keptPage(root, app, pages, detail, () => page(app, detail));
      else refill(root, note(t("none")));
    });
  },
};

/** Softmax of products / divisor + bias in each row; what is hidden gets 0. */
function softmax(products, bias, hidden, [rows, columns], divisor) {
  const weights = new Float32Array(products.length);
  for (let row = 0; row < rows; row += 1) {
    const places = Array.from({ length: columns }, (_, column) => row * columns + column).filter((place) => !hidden?.[place]);
    const scores = places.map((place) => products[place] / divisor + (bias ? bias[place] : 0));
    const top = scores.reduce((one, two) => Math.max(one, two), -Infinity);
    const powers = scores.map((score) => Math.exp(score - top));
    const total = powers.reduce((sum, power) => sum + power, 0);
    places.forEach((place, index) => { weights[place] = powers[index] / total; });
  }
  return weights;
}

function page(app, detail) {
  const { lens } = detail;
  const products = block(detail.products);
  const [bias, hidden] = [detail.bias ? block(detail.bias).data : null, hiddenOf(app, products.shape)];
  let [map, weights, cell] = [null, null, [0, 0]];
  const weightsBy = (divisor) => softmax(products.data, bias, hidden, products.shape, divisor);
  const modelWeights = weightsBy(lens.divisors[lens.own]);
  const width = app.site().d_head;
  const at = (divisor) => lens.divisors.findIndex((value) => Math.abs(value / divisor - 1) < 1e-6);
  const marks = [["1", at(1)], [`√${width}`, at(width ** 0.5)], [String(width), at(width)]].filter(([, index]) => index >= 0);
  const nameOf = (index) => `${marks.find(([, mark]) => mark === index)?.[0] ?? number(lens.divisors[index])}${index === lens.own ? `, ${t("own")}` : ""}`;
  const output = el("output", {});
  const slider = el("input", { type: "range", id: "lens-divisor", min: "0", max: String(lens.divisors.length - 1), step: "1", "data-keep": "lens",
    oninput: (event) => move(Number(event.target.value)) });
  const [figure, words] = [el("figure", {}), el("figcaption", {})];
  const curves = CURVES.map((name) => curveOf(app, lens, name));
  const move = (index) => {
    slider.value = String(index);
    slider.setAttribute("aria-valuetext", nameOf(index));
    output.textContent = nameOf(index);
    weights = weightsBy(lens.divisors[index]);
    map = smallMap(weights, products.shape, { low: 0, high: 1, hidden }, t("map", nameOf(index)), 300);
    figure.replaceChildren(map.node, words);
    for (const curve of curves) curve.move(index);
    follow(cell);
  };
  const follow = (chosen) => {
    cell = chosen;
    map.mark(...cell);
    const at = cell[0] * products.shape[1] + cell[1];
    words.textContent = t("cell", nameCell(app, cell), number(weights[at]), number(modelWeights[at]));
  };
  const ticks = el("div", { class: "lens-ticks" }, ...marks.map(([words, index]) => {
    const tick = pressable(`lens-${index}`, words, () => move(index));
    if (index === lens.own) tick.title = t("own");
    tick.style.setProperty("left", `${100 * index / (lens.divisors.length - 1)}%`);
    tick.classList.toggle("own", index === lens.own);
    return tick;
  }));
  const node = el("div", {}, el("p", {}, t("about")),
    el("div", { class: "lens-control" }, el("label", { for: "lens-divisor" }, `${t("divisor")} `, output), slider, ticks),
    el("div", { class: "panel-beside" }, figure, el("div", { class: "lens-curves" }, ...curves.map((curve) => curve.node))));
  move(lens.own);
  return { node, follow };
}

/** One number against the divisor (logarithmic), with a cursor. */
function curveOf(app, lens, name) {
  const [width, height] = [170, 84];
  const values = lens[name];
  const top = name === "jacobian" || name === "gradient" ? Math.max(...values.map((value) => value ?? 0)) || 1 : 1;
  const x = (index) => 4 + (width - 8) * index / (lens.divisors.length - 1);
  const y = (value) => height - 4 - (height - 8) * value / top;
  const points = values.map((value, index) => value === null ? null : `${x(index).toFixed(1)} ${y(value).toFixed(1)}`).filter(Boolean);
  const line = svg("line", { class: "cursor", y1: 0, y2: height });
  const dot = svg("circle", { r: 4 });
  const words = el("figcaption", {});
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
    svg("path", { class: "axis", d: `M4 4V${height - 4}H${width - 4}` }),
    svg("path", { class: "own", d: `M${x(lens.own)} 0V${height}` }),
    svg("path", { class: "curve", d: `M${points.join("L")}` }), line, dot);
  const move = (index) => {
    line.setAttribute("x1", x(index));
    line.setAttribute("x2", x(index));
    dot.setAttribute("cx", x(index));
    dot.setAttribute("cy", y(values[index] ?? 0));
    words.replaceChildren(`${t(`curve_${name}`)} `, el("strong", {}, number(values[index])));
  };
  return { node: el("figure", { class: "lens-curve" }, words, image), move };
}
