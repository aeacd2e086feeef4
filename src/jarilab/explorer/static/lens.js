import { block, el, number, svg } from "./data.js";
import { hiddenOf, keptPage, nameCell, panelNote, pressable, refill, smallMap, withDetail } from "./panelkit.js";

const lensCurves = ["entropy", "largest", "trace", "jacobian", "gradient"];
const lensPages = new WeakMap(); // detail -> what was drawn of it

export const lensPanel = {
  id: "lens", title: "lensTitle",
  draw(root, app) {
    return withDetail(root, app, (detail) => {
      if (detail.lens) keptPage(root, app, lensPages, detail, () => lensPage(app, detail));
      else refill(root, panelNote(app.t("lensNone")));
    });
  },
};

/** Softmax of products / divisor + bias in each row; what is hidden gets 0. */
function lensWeights(products, bias, hidden, [rows, columns], divisor) {
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

function lensPage(app, detail) {
  const { lens } = detail;
  const products = block(detail.products);
  const [bias, hidden] = [detail.bias ? block(detail.bias).data : null, hiddenOf(app, products.shape)];
  let [map, weights, cell] = [null, null, [0, 0]];
  const weightsBy = (divisor) => lensWeights(products.data, bias, hidden, products.shape, divisor);
  const own = weightsBy(lens.divisors[lens.own]);
  const width = app.site().head_width;
  const at = (divisor) => lens.divisors.findIndex((value) => Math.abs(value / divisor - 1) < 1e-6);
  const marks = [["1", at(1)], [`√${width}`, at(width ** 0.5)], [String(width), at(width)]].filter(([, index]) => index >= 0);
  const nameOf = (index) => `${marks.find(([, mark]) => mark === index)?.[0] ?? number(lens.divisors[index])}${index === lens.own ? `, ${app.t("lensOwn")}` : ""}`;
  const output = el("output", {});
  const slider = el("input", { type: "range", id: "lens-divisor", min: "0", max: String(lens.divisors.length - 1), step: "1", "data-keep": "lens",
    oninput: (event) => move(Number(event.target.value)) });
  const [figure, words] = [el("figure", {}), el("figcaption", {})];
  const curves = lensCurves.map((name) => lensCurve(app, lens, name));
  const move = (index) => {
    slider.value = String(index);
    slider.setAttribute("aria-valuetext", nameOf(index));
    output.textContent = nameOf(index);
    weights = weightsBy(lens.divisors[index]);
    map = smallMap(weights, products.shape, { low: 0, high: 1, hidden }, app.t("lensMap", nameOf(index)), 300);
    figure.replaceChildren(map.node, words);
    for (const curve of curves) curve.move(index);
    follow(cell);
  };
  const follow = (chosen) => {
    cell = chosen;
    map.mark(...cell);
    const at = cell[0] * products.shape[1] + cell[1];
    words.textContent = app.t("lensCell", nameCell(app, cell), number(weights[at]), number(own[at]));
  };
  const ticks = el("div", { class: "lens-ticks" }, ...marks.map(([words, index]) => {
    const tick = pressable(`lens-${index}`, words, () => move(index));
    if (index === lens.own) tick.title = app.t("lensOwn");
    tick.style.setProperty("left", `${100 * index / (lens.divisors.length - 1)}%`);
    tick.classList.toggle("own", index === lens.own);
    return tick;
  }));
  const node = el("div", {}, el("p", {}, app.t("lensAbout")),
    el("div", { class: "lens-control" }, el("label", { for: "lens-divisor" }, `${app.t("lensDivisor")} `, output), slider, ticks),
    el("div", { class: "panel-beside" }, figure, el("div", { class: "lens-curves" }, ...curves.map((curve) => curve.node))));
  move(lens.own);
  return { node, follow };
}

/** One number against the divisor (logarithmic), with a cursor. */
function lensCurve(app, lens, name) {
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
    words.replaceChildren(`${app.t(`lens_${name}`)} `, el("strong", {}, number(values[index])));
  };
  return { node: el("figure", { class: "lens-curve" }, words, image), move };
}
