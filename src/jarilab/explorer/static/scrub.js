// Maps over training: a slider over the checkpoints, under the curve of the loss.
import { byId, el, refill, svg } from "kit/elements.js";
import { clamp, known, number, percent } from "kit/numbers.js";
import { cutToken, nameNode, token } from "kit/tokens.js";
import { toned, variantOf } from "kit/tones.js";
import { look } from "./state.js";
import { t } from "./words.js";

let timer = null;
let now = null; // what is drawn; while it stays the same, a slider that is held is not taken from under the hand

/** One alone, that of the page, where a file has no room for more. */
const stepsOf = (app) => app.live ? app.view().steps : app.payload.frames?.map((frame) => frame.step) ?? [app.view().step];
const nearestTo = (steps, step) => steps.reduce((best, one) => Math.abs(one - step) < Math.abs(best - step) ? one : best, steps[0]);

export function drawScrub(root, app) {
  const steps = stepsOf(app);
  const view = app.view();
  root.hidden = steps.length < 2 && !view.curve.length;
  if (root.hidden) return;
  const drawn = JSON.stringify([steps, app.state.view, app.language, app.payload.views.map(({ run }) => run)]);
  if (drawn !== now?.drawn) now = { drawn, ...build(root, app, view, steps) };
  now.show(Math.max(0, steps.indexOf(nearestTo(steps, view.step))));
}

function build(root, app, view, steps) {
  const chart = chartOf(app, view, steps);
  const output = el("output", { for: "scrub" });
  let held = false;
  const say = (place) => {
    const words = t("ofSteps", steps[place], steps.at(-1));
    output.replaceChildren(words);
    range.setAttribute("aria-valuetext", words);
    chart.cursor(steps[place]);
  };
  const choose = (place) => {
    say(place);
    clearTimeout(timer);
    timer = setTimeout(() => look({ steps: chosen(app, steps[place]) }), app.live ? 200 : 30);
  };
  const range = el("input", { type: "range", id: "scrub", min: 0, max: steps.length - 1, "data-keep": "scrub", onpointerdown: () => { held = true; },
    onpointerup: () => { held = false; }, onpointercancel: () => { held = false; }, oninput: () => choose(Number(range.value)) });
  const next = el("button", { type: "button", "data-keep": "next", onclick: () => {
    range.value = (Number(range.value) + 1) % steps.length;
    choose(Number(range.value));
  } }, t("nextStep"));
  refill(root, el("h2", {}, t("training")), chart.node,
    el("div", { class: "scrubber", hidden: steps.length < 2 }, el("label", { for: "scrub" }, t("step")), range, output, next));
  return { show: (place) => { if (!held) { range.value = place; say(place); } } };
}

/** The training step of every model: where several have checkpoints, each goes to its nearest. */
function chosen(app, step) {
  if (!app.live) return { 0: step };
  return Object.fromEntries(app.payload.views.map((view, index) => [index, nearestTo(view.steps, step)]));
}

function chartOf(app, view, steps) {
  const [width, height, floor] = [clamp(byId("main").clientWidth, 300, 800), 150, 118];
  const losses = app.payload.views.map((one) => one.curve.filter(([step, loss]) => known(loss) && loss > 0 && step >= 0));
  const all = losses.flat();
  if (!all.length) return { node: el("p", { class: "note" }, t("noCurve")), cursor: () => {} };
  const end = Math.max(...all.map(([step]) => step), ...steps) || 1;
  const levels = all.map(([, loss]) => Math.log10(loss));
  const [low, high] = [Math.min(...levels), Math.max(...levels)];
  const x = (step) => 70 + step / end * (width - 160);
  const y = (loss) => 14 + (high - Math.log10(loss)) / (high - low || 1) * (floor - 14);
  const point = ([step, loss]) => `${x(step).toFixed(1)} ${y(loss).toFixed(1)}`;
  // names keep their distance
  const ends = losses.flatMap((rows, index) => rows.length ? [{ index, at: y(rows.at(-1)[1]) }] : []).sort((one, two) => one.at - two.at);
  ends.forEach((end, place) => { end.at = Math.max(end.at - 15 * (ends.length - 1 - place), place ? ends[place - 1].at + 15 : 0); });
  const nearest = (rows, step) => rows.reduce((best, row) => Math.abs(row[0] - step) < Math.abs(best[0] - step) ? row : best);
  const lossesAt = (step) => losses.flatMap((rows, index) => rows.length ? [`${token(app.payload.views[index].name)} ${number(nearest(rows, step)[1])}`] : []).join(", ");
  const words = (step) => t("curveWords", lossesAt(step), step);
  const measured = view.curve.filter((row) => known(row[2]));
  const heldOut = (step) => {
    const done = measured.filter(([at]) => at <= step).at(-1);
    return done ? [" ", nameNode(view.name), `: ${t("heldOut", view.metric.title, valueOf(view.metric, done[2]), done[0])}`] : [];
  };
  const cursor = svg("line", { class: "cursor", y1: 6, y2: floor + 4 });
  const move = (step) => { cursor.setAttribute("x1", x(step)); cursor.setAttribute("x2", x(step)); };
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", role: "img", "aria-label": words(view.step) },
    [10 ** high, 10 ** low].map((loss) => [svg("line", { class: "axis", x1: 70, x2: width - 90, y1: y(loss), y2: y(loss) }),
      svg("text", { x: 64, y: y(loss) + 4, "text-anchor": "end" }, number(loss))]),
    steps.map((step) => svg("line", { class: "tick", x1: x(step), x2: x(step), y1: floor + 2, y2: floor + 8 })),
    losses.map((rows, index) => rows.length ? toned(app.payload.views[index].name, svg("path", { class: variantOf(app.payload.views[index].name) ? "curve other" : "curve", d: `M${rows.map(point).join("L")}` })) : null),
    ends.map(({ index, at }) => toned(app.payload.views[index].name, svg("text", { class: "end", x: width - 84, y: at + 4 }, cutToken(app.payload.views[index].name, 10)))),
    svg("text", { x: 70, y: height - 8 }, "0"), svg("text", { x: x(end), y: height - 8, "text-anchor": "middle" }, `${t("step")} ${end}`), cursor);
  const caption = el("figcaption", {});
  const follow = (step) => {
    move(step);
    caption.replaceChildren(words(step), ...heldOut(step));
  };
  let shown = view.step;
  chart.addEventListener("pointermove", ({ clientX }) => {
    const { left, width: drawn } = chart.getBoundingClientRect();
    const pointed = ((clientX - left) / drawn * width - 70) / (width - 160) * end;
    follow(nearest(losses.find((rows) => rows.length), clamp(pointed, 0, end))[0]);
  });
  chart.addEventListener("pointerleave", () => follow(shown));
  return { cursor: (step) => follow(shown = step), node: el("figure", {}, chart, caption) };
}
/** A metric's value for people. */
const valueOf = ({ share, digits }, value) => share ? percent(value) : value.toFixed(digits);
