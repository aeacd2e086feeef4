// Colours, and maps of numbers on a canvas: one pixel per number, enlarged without smoothing by the style sheet.
import { el } from "./elements.js";
import { clamp, number } from "./numbers.js";

const colourStops = (text) => text.match(/.{6}/g).map((stop) => stop.match(/../g).map((part) => parseInt(part, 16)));
const VIRIDIS = colourStops("440154481769472a7a433d843d4e8a355e8d2e6d8e297b8e23898e1f978b21a5852eb37c46c06f65cb5e89d548b0dd2fd8e219fde725");
const BLUE_ORANGE = colourStops("08306b1f66ac5a9bcea9cce4f5f5f2f6c99aeb9449c75f0f7a3203");

/** 256 colours [red, green, blue] between the stops. */
const gradient = (stops) => Array.from({ length: 256 }, (_, index) => {
  const place = index / 255 * (stops.length - 1);
  const stop = Math.min(Math.floor(place), stops.length - 2);
  return stops[stop].map((low, channel) => Math.round(low + (stops[stop + 1][channel] - low) * (place - stop)));
});
const PLAIN = gradient(VIRIDIS);
const SIGNED = gradient(BLUE_ORANGE);
/** The same as one number for the four bytes of a pixel, whichever end this machine begins with. */
const PIXELS = [PLAIN, SIGNED].map((table) => new Uint32Array(Uint8Array.from(table.flatMap((shade) => [...shade, 255])).buffer));
const DECADES = 4; // the logarithmic scale ends this far below the largest value
const stepOf = (share) => Math.round(255 * clamp(share, 0, 1));
const cssColour = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

/** A css colour for 0..1, and for -1..1 (blue to orange). */
export const colour = (share) => cssColour(PLAIN[stepOf(share)]);
export const signedColour = (share) => cssColour(SIGNED[stepOf((share + 1) / 2)]);

/** A function from a value to its place on the colour scale, 0..1. */
function shareOf({ low = 0, high = 1, signed = false, scale = "linear" }) {
  const linear = high > low ? (value) => (value - low) / (high - low) : () => 0;
  if (signed || scale === "linear") return linear;
  if (scale === "sqrt") return (value) => Math.sqrt(Math.max(0, linear(value)));
  return (value) => 1 + Math.log10(Math.max(linear(value), 1e-30)) / DECADES;
}
/** The value in the middle of the colour scale. */
const middleOf = (low, high, scale) => low + (high - low) * ({ sqrt: 0.25, log: 10 ** (-DECADES / 2) }[scale] ?? 0.5);
/** The css colour of a value, as `drawMap` would draw it. */
export const valueColour = (value, options) => cssColour((options.signed ? SIGNED : PLAIN)[stepOf(shareOf(options)(value))]);

/**
 * Draw rows x columns numbers. Hidden cells (a mask, or no number) stay transparent: the style sheet hatches behind them.
 * `signed` takes the blue-orange scale, for which low = -high. `faint`: the lower on the scale, the more of what lies behind is seen.
 */
export function drawMap(canvas, data, rows, columns, options = {}) {
  Object.assign(canvas, { width: columns, height: rows });
  canvas.classList.add(options.faint ? "faint" : "map");
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const table = PIXELS[options.signed ? 1 : 0];
  const share = shareOf(options);
  for (let place = 0; place < pixels.length; place += 1) {
    const value = data[place];
    if (options.hidden?.[place] || !(value > -3e38)) continue;
    const step = stepOf(share(value));
    pixels[place] = table[step];
    if (options.faint) image.data[4 * place + 3] = step;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** What is printed at the beginning, the middle and the end of a colour scale. */
function scaleEnds({ low = 0, high = 1, signed = false, scale = "linear" }) {
  const first = scale === "log" ? `≤ ${number(high * 10 ** -DECADES)}` : number(low);
  return [first, signed ? "0" : number(middleOf(low, high, scale)), number(high)];
}

/** The colour scale with its ends and middle printed; hidden cells are explained by `hiddenWords`. */
export function legendNode(options, words, hiddenWords, ends = scaleEnds(options)) {
  const canvas = el("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  const steps = Float32Array.from({ length: 256 }, (_, place) => place / 255);
  if (options.signed) drawMap(canvas, steps.map((step) => 2 * step - 1), 1, 256, { low: -1, high: 1, signed: true });
  else drawMap(canvas, steps, 1, 256, { faint: options.faint });
  return el("div", { class: "legend" }, words && el("p", {}, words), canvas, ends.map((text) => el("span", {}, text)),
    hiddenWords && el("p", { class: "hidden-key" }, el("i", { class: "hatch", "aria-hidden": "true" }), hiddenWords));
}
