// An image whose patches are looked at: its pixels, weights laid over them, and frames around patches.
// image: {pixels, rows, columns, height, width, first, pool, seconds} as kit/image_data.py writes it.
import { block } from "./blocks.js";
import { drawMap } from "./draw.js";
import { el, styled } from "./elements.js";

const share = (value, whole) => `${100 * value / whole}%`;
/** Patches are squares, but those of a sound. */
function sizes({ width, height, seconds, pixels: { shape } }) {
  const [down, across] = seconds ? shape : [height, width];
  return { "--ratio": across / down, "--ratio-of": `${across} / ${down}` };
}

/** The pixels alone, on a canvas. */
export function pixelsOf(image, attributes) {
  const { data, shape: [high, wide, channels] } = block(image.pixels);
  const canvas = el("canvas", { width: wide, height: high, "aria-hidden": "true", ...attributes });
  const context = canvas.getContext("2d");
  const bitmap = context.createImageData(wide, high);
  for (let place = 0; place < high * wide; place += 1) {
    for (let part = 0; part < 3; part += 1) bitmap.data[4 * place + part] = data[place * channels + (channels === 1 ? 0 : part)];
    bitmap.data[4 * place + 3] = 255;
  }
  context.putImageData(bitmap, 0, 0);
  return styled(canvas, sizes(image));
}

/** {node, cover, marks}: the image with room for weights over it and a frame for a query and a key. above: what stands on it. */
export function patchField(image, attributes, above = []) {
  const cover = styled(el("canvas", { class: "cover", hidden: true, "aria-hidden": "true" }),
    { width: share(image.columns, image.width), height: share(image.rows, image.height) });
  const marks = Object.fromEntries(["key", "query"].map((name) => [name, el("div", { class: `patch ${name}`, hidden: true })]));
  const node = styled(el("div", { class: "image-field", ...attributes }, pixelsOf(image, { class: "pixels" }), cover, above, marks.key, marks.query), sizes(image));
  return { node, image, cover, marks };
}

/** How weights are painted over an image: the colours of the maps, the fainter the less of the largest weight there is. */
export const overImage = (high) => ({ low: 0, high, faint: true });

/** Lay the weights of all patches over an image. strength: of the whole cover, 0..1. */
export function layOver({ cover, image }, { values, hidden, high }, strength = 0.75) {
  cover.hidden = false;
  drawMap(cover, values, image.rows, image.columns, { ...overImage(high), hidden });
  styled(cover, { opacity: strength });
}

/** Frame a patch as the `query` or the `key`; a number outside the image frames none. */
export function framePatch({ marks, image }, name, patch) {
  const mark = marks[name];
  mark.hidden = !(patch >= 0 && patch < image.rows * image.columns);
  if (mark.hidden) return;
  styled(mark, { top: share(Math.floor(patch / image.columns), image.height), left: share(patch % image.columns, image.width),
    width: share(1, image.width), height: share(1, image.height) });
}
