// A figure as a file: SVG or PNG, drawn as it stands on the page, on paper, with a line that says what it is.
import { el, svg } from "./elements.js";
import { speaking } from "./words.js";

const t = speaking({
  save: ["Save", "저장"],
  as: ["Save as {1}: {0}", "{1}로 저장: {0}"],
});

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-opacity", "opacity",
  "font-family", "font-size", "font-weight"];
const LONGEST = 8000; // pixels of a PNG along a side
const MARGIN = 16;

/** The colour that the theme has for a name now. */
export const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
/** Text of a drawing that stands for itself. */
export const words = (text, attributes) => svg("text", { "font-family": "sans-serif", "font-size": 12, fill: themed("ink"), ...attributes }, text);

/** A chart of the page as {node, width, height}: what its classes mean is written into it. */
export function chartDrawing(chart) {
  const copy = chart.cloneNode(true);
  const copies = [copy, ...copy.querySelectorAll("*")];
  [chart, ...chart.querySelectorAll("*")].forEach((node, place) => {
    const style = getComputedStyle(node);
    for (const name of STYLES) copies[place].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "style"]) copies[place].removeAttribute(name);
  });
  const [width, height] = ["width", "height"].map((name) => Number(chart.getAttribute(name)));
  return { node: copy, width, height };
}

/** Drawings side by side, as a document with its caption below. */
export function sheetOf(drawings, caption) {
  let x = MARGIN;
  const placed = drawings.map(({ node, width }) => {
    x += width + MARGIN;
    return svg("g", { transform: `translate(${x - width - MARGIN} ${MARGIN})` }, node);
  });
  const bottom = MARGIN + Math.max(...drawings.map(({ height }) => height));
  const width = Math.max(x, 320);
  const lines = caption.match(new RegExp(`.{1,${Math.floor(width / 7)}}(?: |$)|\\S+`, "gu")) ?? [];
  const height = bottom + 18 * lines.length + 2 * MARGIN;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height },
    svg("rect", { width, height, fill: themed("paper") }), placed,
    lines.map((line, place) => words(line, { x: MARGIN, y: bottom + 22 + 18 * place, fill: themed("muted") })));
}

const asSvg = (sheet) => new Blob([new XMLSerializer().serializeToString(sheet)], { type: "image/svg+xml" });
async function asPng(sheet) {
  const [width, height] = ["width", "height"].map((name) => Number(sheet.getAttribute(name)));
  const factor = Math.min(2, LONGEST / Math.max(width, height));
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(sheet))}`;
  await image.decode();
  const canvas = el("canvas", { width: Math.ceil(factor * width), height: Math.ceil(factor * height) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}
const MAKERS = { SVG: asSvg, PNG: asPng };

async function save(kind, name, sheet) {
  const blob = await MAKERS[kind](sheet);
  const link = el("a", { href: URL.createObjectURL(blob), download: `${name}.${kind.toLowerCase()}` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Buttons that save a figure. name: of the file. title: for people. draw() -> a sheet. */
export function savers(name, title, draw) {
  const button = (kind) => el("button", { type: "button", "data-keep": `save ${name} ${kind}`, "aria-label": t("as", title, kind),
    onclick: () => save(kind, name, draw()) }, kind);
  return el("p", { class: "savers" }, el("span", { "aria-hidden": "true" }, t("save")), Object.keys(MAKERS).map(button));
}
