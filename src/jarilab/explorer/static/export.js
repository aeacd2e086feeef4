// What is on screen as a file: SVG, PNG, CSV or NPZ, each with a caption that says where it comes from.
import { drawMap, legendColour, scaleEnds, valueColour, visibleKeys } from "kit/draw.js";
import { byId, el, svg } from "kit/elements.js";
import { known, number } from "kit/numbers.js";
import { NUMERALS, numeralsDrawing } from "kit/numerals.js";
import { cutToken, token } from "kit/tokens.js";
import { linesDrawing } from "./lines.js";
import { drawnOf, panesOf } from "./panes.js";
import { inputName } from "./sites.js";
import { t } from "./words.js";

const INK = "#1e2328"; // on white, whatever the theme
const CELLS = 10000; // larger maps are one image inside the drawing, not a rectangle for each cell
const DRAWN = { weights: "weights", valued: "norm of weight x value x W_O (Kobayashi et al. 2020)",
  rollout: "attention rollout of all encoder layers and heads (Abnar and Zuidema 2020)" };
const clean = (text) => token(String(text).replace(/\s+/g, " "));

const rangeWords = ({ scale, high }) => scale === "even" ? "by how often the even share of its row a weight is, 1/16 to 16 times" : `from 0 to ${number(high)}`;

/** What the page says of what it shows: the caption of a figure, and its words for people who do not see it. */
export const sentenceOf = () => byId("finding").textContent.trim();
/** Lines of words: the sentence of the page, then run, encoding, step, head, colour range. */
function captionLines(app) {
  const { site, head, query, display, top, heads, every } = app.state;
  const panes = panesOf(app).filter((pane) => pane.site);
  const pane = panes.find(({ kind }) => kind === "map");
  const lines = [display === "map" ? `${DRAWN[drawnOf(app)]}, colours ${rangeWords(pane.options)}`
    : `lines from ${every ? "every query" : `query ${query}`} to its ${top} largest keys${heads ? ", every head" : ""}`];
  const difference = panes.find(({ kind }) => kind === "difference");
  if (difference) lines.push(`difference ${difference.name}, colour range ${number(-difference.high)} to ${number(difference.high)}`);
  const facts = ["experiment", "encoding", "seed", "step", "input", "answer"];
  const factsOf = ({ view }) => `${view.name}: ${facts.filter((fact) => known(view[fact]) && (fact !== "step" || known(view.experiment))).map((fact) => `${fact} ${fact === "input" ? inputName(view) : view[fact]}`).join(", ")}`;
  return [sentenceOf(), `${drawnOf(app) === "rollout" ? "" : `${site} head ${head}; `}${lines.join("; ")}`, ...panes.filter(({ kind }) => kind === "map").map(factsOf), `jari ${app.payload.jari}`].map(clean);
}

const textNode = (text, attributes) => svg("text", { "font-size": 12, fill: INK, ...attributes }, text);

function mapParts(app, pane) {
  const [rows, columns] = pane.site.shape;
  const cell = Math.max(2, Math.min(28, Math.floor(640 / Math.max(rows, columns))));
  const longest = (texts) => Math.min(12, Math.max(...texts.map((text) => clean(text).length)));
  const every = Math.ceil(11 / cell);
  const [down, across] = [pane.rowMeanings, pane.columnMeanings].map((meanings) => every === 1 && meanings?.some(Boolean) ? meanings : []);
  const upright = every === 1 && longest(pane.columnTokens) <= 2; // digits and letters stand as they are read
  const [left, top] = [20 + 7 * longest(pane.rowTokens) + (down.length && NUMERALS), 38 + (upright ? 16 : 7 * longest(pane.columnTokens)) + (across.length && NUMERALS)];
  const parts = [textNode(cutToken(pane.name, 40), { x: left, y: 16, "font-weight": 700 })];
  const labels = (texts, placed) => texts.forEach((text, place) => {
    if (place % every === 0) parts.push(textNode(cutToken(text, 12), { "font-size": 12, ...placed((place + 0.5) * cell + 4) }));
  });
  labels(pane.rowTokens, (at) => ({ x: left - 6, y: top + at, "text-anchor": "end" }));
  labels(pane.columnTokens, (at) => upright ? { x: left + at - 4, y: top - 6, "text-anchor": "middle" } : { transform: `translate(${left + at} ${top - 6}) rotate(-90)` });
  parts.push(...numeralsDrawing(down, cell, (along, away) => [left - away, top + along], INK), ...numeralsDrawing(across, cell, (along, away) => [left + along, top - away], INK));
  const area = { x: left, y: top, width: columns * cell, height: rows * cell };
  parts.push(svg("rect", { ...area, fill: "url(#hatch)" }));
  const options = { ...pane.options, onPaper: true };
  const keys = visibleKeys(options, rows, columns);
  if (rows * columns <= CELLS) {
    for (let place = 0; place < rows * columns; place += 1) {
      if (pane.hidden?.[place]) continue;
      parts.push(svg("rect", { x: left + (place % columns) * cell, y: top + Math.floor(place / columns) * cell, width: cell, height: cell,
        fill: valueColour(pane.data[place], options, keys[Math.floor(place / columns)]) }));
    }
  } else parts.push(svg("image", { ...area, href: mapImage(pane), "image-rendering": "pixelated", preserveAspectRatio: "none" }));
  const legend = top + rows * cell + 28;
  parts.push(textNode(t("axes"), { x: 8, y: 32 }), textNode(scaleName(app, pane), { x: left, y: legend - 6 }));
  for (let place = 0; place < 64; place += 1) {
    parts.push(svg("rect", { x: left + place * 3, y: legend, width: 3.2, height: 9, fill: legendColour(place / 63, options) }));
  }
  scaleEnds(options).forEach((words, index) => parts.push(textNode(words, { x: left + 96 * index, y: legend + 23, "font-size": 12, "text-anchor": ["start", "middle", "end"][index] })));
  return { parts, width: left + Math.max(columns * cell, 230) + 16, height: legend + 36 };
}
/** What the colours of a map stand for. */
const scaleName = (app, { options: { signed, scale } }) => t(signed ? "differenceLegend" : scale === "even" ? "even" : `drawn_${drawnOf(app)}`);
const mapImage = ({ data, site, options }) => drawMap(el("canvas"), data, ...site.shape, { ...options, onPaper: true }).toDataURL();

function drawPanes(app) {
  const panes = panesOf(app).filter((pane) => pane.site);
  const drawings = panes.map((pane) => {
    if (app.state.display !== "lines") return mapParts(app, pane);
    const { drawing } = linesDrawing(app, pane, true);
    const name = textNode(cutToken(pane.name, 40), { x: 8, y: 14, "font-weight": 700 });
    return { parts: [name, svg("g", { transform: "translate(0 22)" }, [...drawing.childNodes])], width: 450,
      height: Number(drawing.getAttribute("height")) + 34 };
  });
  const height = Math.max(...drawings.map((one) => one.height));
  const width = Math.max(560, drawings.reduce((sum, one) => sum + one.width, 0));
  const letters = Math.floor(width / 6.9);
  const caption = captionLines(app).flatMap((line) => line.match(new RegExp(`.{1,${letters}}(?: |$)|.{1,${letters}}`, "gu")));
  const total = height + 18 * caption.length + 16;
  let x = 0;
  const hatch = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { width: 6, height: 6, fill: "#fff" }), svg("rect", { width: 2, height: 6, fill: "#b5b1a8" }));
  const placed = drawings.map((one) => {
    x += one.width;
    return svg("g", { transform: `translate(${x - one.width} 4)`, "shape-rendering": "crispEdges" }, one.parts);
  });
  return svg("svg", { viewBox: `0 0 ${width} ${total}`, width, height: total, color: INK, "font-family": "sans-serif", role: "img" },
    svg("title", {}, sentenceOf()),
    svg("defs", {}, hatch), svg("rect", { width, height: total, fill: "#fff" }), placed,
    caption.map((line, place) => textNode(line, { x: 12, y: height + 18 + 18 * place, "font-size": 12 })));
}

async function makePng(app) {
  const drawing = drawPanes(app);
  const [width, height] = ["width", "height"].map((name) => Number(drawing.getAttribute(name)));
  const factor = Math.min(2, 8000 / Math.max(width, height));
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(drawing))}`;
  await image.decode();
  const canvas = el("canvas", { width: Math.ceil(factor * width), height: Math.ceil(factor * height) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

// A table program would compute a cell that begins like a formula, so a longer token that does gets an apostrophe.
const quotedCell = (text) => `"${(/^[=+\-@\t\r]./s.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;

function makeCsv(app) {
  const rows = [...captionLines(app).map((line) => `# ${line}`), "map,query,query_token,key,key_token,value"];
  for (const { name, site, data, hidden, rowTokens, columnTokens } of panesOf(app).filter((pane) => pane.site)) {
    const columns = site.shape[1];
    data.forEach((value, place) => {
      const [query, key] = [Math.floor(place / columns), place % columns];
      rows.push([quotedCell(clean(name)), query, quotedCell(rowTokens[query]), key, quotedCell(columnTokens[key]),
        hidden?.[place] ? "" : Number(value.toFixed(6))].join(","));
    });
  }
  return new Blob([rows.join("\n"), "\n"], { type: "text/csv" });
}

// ---------------------------------------------------------------- NPZ: arrays in NumPy's format, in a ZIP that is not compressed

function npy(descriptor, shape, bytes) {
  const head = `{'descr': '${descriptor}', 'fortran_order': False, 'shape': (${shape.map((size) => `${size},`).join(" ")}), }`;
  const padded = `${head.padEnd(Math.ceil((head.length + 11) / 64) * 64 - 11)}\n`;
  const array = new Uint8Array(10 + padded.length + bytes.length);
  array.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, padded.length & 255, padded.length >> 8]);
  array.set(new TextEncoder().encode(padded), 10);
  array.set(bytes, 10 + padded.length);
  return array;
}
function numbersArray(data, shape) {
  const view = new DataView(new ArrayBuffer(4 * data.length));
  data.forEach((value, place) => view.setFloat32(4 * place, value, true));
  return npy("<f4", shape, new Uint8Array(view.buffer));
}
function wordsArray(texts) {
  const letters = texts.map((text) => [...text]);
  const longest = Math.max(1, ...letters.map((word) => word.length));
  const view = new DataView(new ArrayBuffer(4 * longest * texts.length));
  letters.forEach((word, row) => word.forEach((letter, place) => view.setUint32(4 * (row * longest + place), letter.codePointAt(0), true)));
  return npy(`<U${longest}`, [texts.length], new Uint8Array(view.buffer));
}

const CRC = Uint32Array.from({ length: 256 }, (_, index) => {
  let value = index;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value;
});
const checksum = (bytes) => (bytes.reduce((crc, byte) => CRC[(crc ^ byte) & 255] ^ (crc >>> 8), -1) ^ -1) >>> 0;

/** Little-endian fields: [value, bytes]. */
function fieldBytes(fields, text) {
  const name = new TextEncoder().encode(text);
  const bytes = fields.flatMap(([value, size]) => Array.from({ length: size }, (_, place) => Math.floor(value / 256 ** place) & 255));
  return new Uint8Array([...bytes, ...name]);
}
function zipOf(files) {
  const [parts, entries] = [[], []];
  let offset = 0;
  for (const [name, bytes] of files) {
    // version, flags, stored, time, date (1980-01-01), checksum, sizes, length of the name, no extra field
    const common = [[20, 2], [0, 2], [0, 2], [0, 2], [33, 2], [checksum(bytes), 4], [bytes.length, 4], [bytes.length, 4],
      [name.length, 2], [0, 2]];
    const head = fieldBytes([[0x04034b50, 4], ...common], name);
    entries.push(fieldBytes([[0x02014b50, 4], [20, 2], ...common, [0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]], name));
    parts.push(head, bytes);
    offset += head.length + bytes.length;
  }
  const size = entries.reduce((sum, entry) => sum + entry.length, 0);
  const end = fieldBytes([[0x06054b50, 4], [0, 2], [0, 2], [files.length, 2], [files.length, 2], [size, 4], [offset, 4], [0, 2]], "");
  return new Blob([...parts, ...entries, end], { type: "application/zip" });
}
function makeNpz(app) {
  const files = [["caption.npy", wordsArray(captionLines(app))]];
  for (const [index, { kind, view, site, data, hidden, rowTokens, columnTokens }] of panesOf(app).filter((pane) => pane.site).entries()) {
    const name = kind === "difference" ? "difference" : `${index}_${view.name.replace(/[^\w.-]+/g, "_")}`;
    files.push([`${drawnOf(app)}_${name}.npy`, numbersArray(data, site.shape)], [`queries_${name}.npy`, wordsArray(rowTokens)],
      [`keys_${name}.npy`, wordsArray(columnTokens)]);
    if (hidden) files.push([`hidden_${name}.npy`, npy("|b1", site.shape, Uint8Array.from(hidden))]);
  }
  return zipOf(files);
}

const makeSvg = (app) => new Blob([new XMLSerializer().serializeToString(drawPanes(app))], { type: "image/svg+xml" });
export const exporters = { svg: makeSvg, png: makePng, csv: makeCsv, npz: makeNpz };

/** Save what is shown under a name that says which head it is. */
export async function saveAs(app, kind) {
  if (!panesOf(app).some((pane) => pane.site)) {
    for (const id of ["live", "readout"]) byId(id).replaceChildren(t("nothingShown"));
    return;
  }
  const blob = await exporters[kind](app);
  const names = app.payload.views.map((view) => view.name).join("-").replace(/[^\w.-]+/g, "_").slice(0, 60);
  download(blob, `${names}-${drawnOf(app) === "rollout" ? "rollout" : `${app.state.site}-head${app.state.head}`}.${kind}`);
}
/** Give a file to the reader. */
export function download(blob, name) {
  const link = el("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
