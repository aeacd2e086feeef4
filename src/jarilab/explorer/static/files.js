// Another image for a live page: one of the folder, or one that the reader drops or chooses.
import { chooser, labelled } from "kit/controls.js";
import { el } from "kit/elements.js";
import { speaking } from "kit/words.js";
import { imageName, imageOf, inputWith } from "./sites.js";

const t = speaking({
  ofFolder: ["Image of the folder", "폴더의 이미지"], own: ["or drop one here, or choose one", "여기에 놓거나 고르기"],
});
const LONGEST = 320; // pixels along a side, more than a page shows

/** What chooses another image; null where none is read. look(input) */
export function filesNode({ live, payload: { files = [], views: [view] } }, lookAt) {
  if (!live || !files.length) return null;
  const image = imageOf(view);
  const look = (other) => lookAt(view.with_image ? inputWith(view, { image: other }) : other);
  const read = async (file) => { if (file?.type.startsWith("image/")) look(await inlined(file)); };
  document.ondragover = (event) => event.preventDefault();
  document.ondrop = (event) => { event.preventDefault(); read(event.dataTransfer.files[0]); };
  const options = [...new Set([...files, image])].map((file) => [file, imageName(file)]);
  return el("div", { class: "row" }, labelled(t("ofFolder"), chooser("file", image, options, look)),
    labelled(t("own"), el("input", { type: "file", accept: "image/*", "data-keep": "own file", onchange: ({ target }) => read(target.files[0]) })));
}

/** An image file as a data URL that a request can hold. */
async function inlined(file) {
  const bitmap = await createImageBitmap(file);
  const factor = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  const canvas = el("canvas", { width: Math.max(1, Math.round(factor * bitmap.width)), height: Math.max(1, Math.round(factor * bitmap.height)) });
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.92);
}
