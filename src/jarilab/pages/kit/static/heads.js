// Every head as a small map: layers down, heads across. A grid is one tab stop; arrow keys move inside it.
import { drawMap, visibleKeys } from "./draw.js";
import { el, styled } from "./elements.js";
import { clamp } from "./numbers.js";
import { largestOf, maxPool } from "./weights.js";

const PIXELS = 96; // larger maps are max-pooled to this, so that no weight is lost between pixels
const small = new WeakMap(); // site -> its maps by head, made small enough

function smallOf(site, head, { data, hidden, shape, pooled }) {
  if (!small.has(site)) small.set(site, []);
  const made = small.get(site);
  const [rows, columns] = shape;
  const factor = Math.ceil(Math.max(rows, columns) / PIXELS);
  const keys = visibleKeys({ hidden, pooled }, rows, columns);
  return made[head] ??= factor === 1 ? { data, hidden, rows, columns, keys } : { ...maxPool(data, hidden, shape, factor),
    keys: Float32Array.from({ length: Math.ceil(rows / factor) }, (_, row) => Math.max(...keys.subarray(row * factor, (row + 1) * factor))) };
}

/** Draw one head of a site small. weights: {data, hidden, shape, pooled}; options: of drawMap, where no `high` is the map's own largest. */
export function drawSmall(canvas, site, head, weights, options) {
  const { data, hidden, rows, columns, keys } = smallOf(site, head, weights);
  drawMap(canvas, data, rows, columns, { ...options, high: options.high ?? (largestOf(data, hidden) || 1), hidden, keys });
}

// ---------------------------------------------------------------- painted when they come into view, or are printed

const painters = new WeakMap(); // canvas -> what paints it, until it is painted

function paint(canvas) {
  painters.get(canvas)?.();
  painters.delete(canvas);
}
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    paint(target);
    seen.unobserve(target);
  }
}, { rootMargin: "300px" });
addEventListener("beforeprint", () => document.querySelectorAll(".heads canvas").forEach(paint));

// ---------------------------------------------------------------- the grid

/** rows: {label, title, heads}, one a layer. cell(place, head): {shape, paint(canvas), attributes} of the button of a head in the row at that place. */
export function headsGrid(label, rows, cell) {
  const heads = Math.max(1, ...rows.map((row) => row.heads));
  const names = Array.from({ length: heads }, (_, head) => el("span", {}, String(head)));
  const grid = styled(el("div", { class: "heads", role: "group", "aria-label": label }, el("span"), names), { "--heads": heads });
  rows.forEach((row, place) => {
    const buttons = Array.from({ length: heads }, (_, head) => head < row.heads ? headButton(place, head, cell(place, head)) : el("span"));
    grid.append(el("span", { title: row.title }, String(row.label)), ...buttons);
  });
  return grid;
}

function headButton(place, head, { shape: [height, width], paint, attributes }) {
  const canvas = el("canvas", { width, height });
  painters.set(canvas, () => paint(canvas));
  seen.observe(canvas);
  return el("button", { type: "button", "data-row": place, "data-head": head, onkeydown: moveFocus, ...attributes }, canvas);
}

const ARROWS = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1], Home: [0, -99], End: [0, 99] };
function moveFocus(event) {
  const [down, across] = ARROWS[event.key] ?? [0, 0];
  if ((!down && !across) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const grid = event.currentTarget.closest(".heads");
  const { row, head } = event.currentTarget.dataset;
  const there = [...grid.querySelectorAll(`[data-row="${Number(row) + down}"]`)];
  const next = there[clamp(Number(head) + across, 0, there.length - 1)];
  if (!next) return;
  stopAt(grid, next);
  next.focus();
}
const stopAt = (grid, chosen) => { for (const button of grid.querySelectorAll("button[data-row]")) button.tabIndex = button === chosen ? 0 : -1; };

/** Frame the heads that are open; each grid keeps one tab stop. isOpen(dataset of a button). */
export function markHeads(root, isOpen) {
  for (const grid of root.querySelectorAll(".heads")) {
    const buttons = [...grid.querySelectorAll("button[data-row]")];
    for (const button of buttons) button.setAttribute("aria-pressed", isOpen(button.dataset));
    stopAt(grid, buttons.find((button) => isOpen(button.dataset)) ?? buttons[0]);
  }
}
