// The sites of a view: what is at hand of each head.
import { block } from "kit/blocks.js";
import { unique } from "kit/numbers.js";
import { t } from "./words.js";

export const isDropped = (input) => input.startsWith("data:image/");
/** The input of a view in words: beside an image, the text. */
export const inputName = ({ input, with_image: withImage, sides }) => withImage ? input.slice(input.indexOf("\t") + 1) : sides.source?.picture ? imageName(input) : input;
/** The image of an input, which stands before the text of a model that reads both. */
export const imageOf = ({ input, with_image: withImage }) => withImage ? input.split("\t", 1)[0] : input;
/** The input with another image or text. */
export const inputWith = (view, { image = imageOf(view), text = inputName(view) }) => view.with_image ? `${image}\t${text}`
  : view.sides.source?.picture && !FOLDERS.test(text) ? (FOLDERS.exec(view.input)?.[0] ?? "") + text : text;
const FOLDERS = /^(?!data:).*[/\\]/;
/** The name of a file without its folders, which are of this machine; an image that was dropped has none. */
export const imageName = (image) => isDropped(image) ? t("dropped") : image.replace(FOLDERS, "");
/** The weights of one head, query after query. */
export function headWeights(site, head) {
  const size = site.shape[0] * site.shape[1];
  return block(site.weights).data.subarray(head * size, (head + 1) * size);
}
/** 1 where a query may not look at a key, or null. */
export const siteHidden = (site) => site.hidden ? block(site.hidden).data : null;

/** Whether a token is one that a tokenizer adds, such as [CLS] or <bos>; one that stands for a word is not. */
export const isSpecial = (text) => /^\[(?!UNK|MASK)[A-Z]+\]$|^<(?!unk|mask)[^<>]+>$/.test(text);

/** Of two sentences that are read together: all weights, or those from one to the other. */
export const PAIRS = ["all", "ab", "ba"];
/** The labels of rows or columns; where the map is pooled, of the groups. */
export function siteTokens(view, site, side) {
  const tokens = view.sides[site[side]].tokens;
  const count = site.shape[side === "queries" ? 0 : 1];
  if (site.pooled <= 1) return tokens;
  return Array.from({ length: count }, (_, place) => tokens.slice(place * site.pooled, (place + 1) * site.pooled).join(""));
}

/** Whether each attention over a side has all of its tokens as keys: where some are pooled, a token has no number. */
export const isOfTokens = (view, side) => view.sites.every((site) => site.keys !== side || (site.pooled <= 1 && site.shape[1] === view.sides[side].tokens.length));
/** The side whose tokens have painted a picture, or null. */
export const paintedSide = (view) => view.sides.target?.picture && !view.with_image ? "target" : null;
/** The side whose tokens lie over an image: that of the open site's keys, if it has one. */
export const picturedSide = (view, site) => [site?.keys, "target", "source"].find((side) => view.sides[side]?.picture);
/** Words for a view: those for images or a sound where it is of one, or has painted one. */
export function wordsOf(view, key) {
  if (view.with_image) return { written: "written_text", sides_decoder: "sides_decoder_read", about_decoder: "about_decoder_read" }[key] ?? `${key}_image`;
  const { picture } = view.sides.source ?? {};
  if (picture?.seconds) return key === "written" ? key : `${key}_sound`;
  return picture ? `${key}_image` : paintedSide(view) ? `${key}_painted` : key;
}
/** The word for its answer, which is not the same of every model. */
export const answerOf = (view) => paintedSide(view) ? "answer_painted" : view.sides.target?.boxes ? "answer_found" : NAMED.includes(view.says) ? `answer_${view.says}` : "answer";
/** What a model gives that has a word for its answer. */
export const NAMED = ["next", "masked", "class"];
/** Sites of a view by kind, in the order of the model. */
export const kindsOf = (view) => unique(view.sites.map((site) => site.kind)).map((kind) => [kind, view.sites.filter((site) => site.kind === kind)]);
/** What people call a head, the path of its module, and what is special about its attention. */
export function originOf(site, head) {
  const facts = [`${site.short}H${head}`, site.path, site.note && t(`note_${site.note}`), site.placed ? "" : t("unplaced"), site.partial && t("partial")];
  return facts.filter(Boolean).join(" · ");
}
