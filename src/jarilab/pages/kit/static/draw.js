// Colours, and maps of numbers on a canvas: one pixel per number, enlarged without smoothing by the style sheet.
import { el } from "./elements.js";
import { clamp, number } from "./numbers.js";

const colourStops = (text) => text.match(/.{6}/g).map((stop) => stop.match(/../g).map((part) => parseInt(part, 16)));
/** By the logarithm of how often a weight is the even share of its row: at 1/16, 1, 2, 4, 8 and 16 times, by day and by night. */
const EVEN = { light: colourStops("cfdbe8f8f6f0fbd7a1ee9a3ab9540c591c02"), dark: colourStops("0d1c2b262b305f4516ad701af0a63cfff0c9") };
const EVEN_PLACES = [0, 4 / 8, 5 / 8, 6 / 8, 7 / 8, 1];
const BLUE_ORANGE = colourStops("08306b1f66ac5a9bcea9cce4f5f5f2f6c99aeb9449c75f0f7a3203");

/** 256 colours [red, green, blue] between the stops. */
const gradient = (stops, places = stops.map((_, index) => index / (stops.length - 1))) => Array.from({ length: 256 }, (_, index) => {
  const after = Math.max(1, places.findIndex((place) => place >= index / 255));
  const part = (index / 255 - places[after - 1]) / (places[after] - places[after - 1]);
  return stops[after].map((high, channel) => Math.round(stops[after - 1][channel] + (high - stops[after - 1][channel]) * part));
});
/** Colours, and the same as one number for the four bytes of a pixel, whichever end this machine begins with. */
const tableOf = (shades) => ({ shades, pixels: new Uint32Array(Uint8Array.from(shades.flatMap((shade) => [...shade, 255])).buffer) });
const TABLES = { light: tableOf(gradient(EVEN.light, EVEN_PLACES)), dark: tableOf(gradient(EVEN.dark, EVEN_PLACES)), signed: tableOf(gradient(BLUE_ORANGE)) };
const night = matchMedia("screen and (prefers-color-scheme: dark)");
export const isNight = () => night.matches;
/** Maps are painted in the colours of the day or of the night: call this when they change. */
export const onNightfall = (repaint) => night.addEventListener("change", repaint);
/** The table of colours. onPaper: for a file, whose ground is white. */
const tableFor = ({ signed, onPaper }) => TABLES[signed ? "signed" : night.matches && !onPaper ? "dark" : "light"];

/** What the legend says: [English, Korean]. */
export const LEGEND_WORDS = {
  evenShare: ["weight, in even shares of its row (1: as much as every other key)", "가중치, 행의 균등 몫 단위 (1: 다른 모든 키만큼)"],
  weight: ["weight", "가중치"],
};

const OCTAVES = 4; // the scale ends so far below and above the even share
/** Times the even share at which the scale ends. */
export const LARGEST_TIMES = 2 ** OCTAVES;
const stepOf = (share) => Math.round(255 * clamp(share, 0, 1));
/** From the even share on, what a weight of 0 to 1 is drawn with where the scale ends at fixed numbers. */
const upperHalf = (share) => (1 + clamp(share, 0, 1)) / 2;

/**
 * A function from a value, and the keys that its query may see, to its place on the colour scale, 0..1.
 * scale: "even" for how often the even share of its row a weight is; otherwise linear from low to high.
 */
function shareOf({ low = 0, high = 1, signed = false, scale = "linear" }) {
  if (scale === "even" && !signed) return (value, keys) => (Math.log2(Math.max(value * keys, 1e-30)) + OCTAVES) / (2 * OCTAVES);
  const linear = high > low ? (value) => (value - low) / (high - low) : () => 0;
  return signed ? linear : (value) => upperHalf(linear(value));
}
/** How many keys each query may see. options: of drawMap; pooled: keys that one column stands for. */
export function visibleKeys({ hidden, pooled = 1, keys }, rows, columns) {
  if (keys) return keys;
  if (!hidden) return new Float32Array(rows).fill(columns * pooled);
  return Float32Array.from({ length: rows }, (_, row) => {
    let count = 0;
    for (let at = row * columns; at < (row + 1) * columns; at += 1) count += !hidden[at];
    return count * pooled;
  });
}
/** The css colour of a value, as `drawMap` would draw it. keys: that its query may see. */
export function valueColour(value, options, keys = 1) {
  const [red, green, blue] = tableFor(options).shades[stepOf(shareOf(options)(value, keys))];
  return `rgb(${red} ${green} ${blue})`;
}
/** The css colour at a place, 0..1, of a colour scale as its legend shows it. */
export const legendColour = (place, options) => valueColour(...legendCell(place, options));
/** [value, options of drawMap] that paint a place of the legend. */
function legendCell(place, { signed, scale, onPaper, faint }) {
  if (signed) return [2 * place - 1, { low: -1, high: 1, signed, onPaper }];
  if (scale === "even") return [2 ** (OCTAVES * (2 * place - 1)), { scale, onPaper }];
  return [place, { onPaper, faint }];
}

/**
 * Draw rows x columns numbers. Hidden cells (a mask, or no number) stay transparent: the style sheet hatches behind them.
 * options: those of shareOf and visibleKeys. `signed` takes the blue-orange scale, for which low = -high.
 * `faint`: the lower on the scale, the more of what lies behind is seen.
 */
export function drawMap(canvas, data, rows, columns, options = {}) {
  Object.assign(canvas, { width: columns, height: rows });
  canvas.classList.add(options.faint ? "faint" : "map");
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const table = tableFor(options).pixels;
  const share = shareOf(options);
  const keys = options.scale === "even" ? visibleKeys(options, rows, columns) : null;
  for (let place = 0; place < pixels.length; place += 1) {
    const value = data[place];
    if (options.hidden?.[place] || !(value > -3e38)) continue;
    const step = stepOf(share(value, keys?.[Math.floor(place / columns)]));
    pixels[place] = table[step];
    if (options.faint) image.data[4 * place + 3] = 2 * step - 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** What is printed at the beginning, the middle and the end of a colour scale. */
export function scaleEnds({ low = 0, high = 1, signed = false, scale = "linear" }) {
  if (scale === "even" && !signed) return [`1/${LARGEST_TIMES}`, "1", `${LARGEST_TIMES}×`];
  return [number(low), signed ? "0" : number((low + high) / 2), number(high)];
}

/** The colour scale with its ends and middle printed; hidden cells are explained by `hiddenWords`. */
export function legendNode(options, words, hiddenWords, ends = scaleEnds(options)) {
  const canvas = el("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const cells = Array.from({ length: 256 }, (_, place) => legendCell(place / 255, options));
  drawMap(canvas, cells.map(([value]) => value), 1, 256, { ...cells[0][1], keys: [1] });
  return el("div", { class: "legend" }, words && el("p", {}, words), canvas, ends.map((text) => el("span", {}, text)),
    hiddenWords && el("p", { class: "hidden-key" }, el("i", { class: "hatch", "aria-hidden": "true" }), hiddenWords));
}
