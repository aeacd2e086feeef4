// What is looked at of the attention: the example, its models, which attention, which head, which cell.
import { known, unique } from "kit/numbers.js";
import { equalDigits, examples, nameOf, payload, withDigits } from "./study.js";
import { t } from "./words.js";

export const look = { example: examples[0], shown: new Set(), kind: "", layer: 0, head: 0, even: true, together: false,
  query: null, key: null };

/** How maps are coloured: by how often the even share of its row a weight is, or from 0 to 1. */
export const colours = () => look.even ? { scale: "even" } : { high: 1 };
export const shownModels = () => look.example.models.filter((_, index) => look.shown.has(index));
export const sitesOf = (model) => model.sites.filter((site) => site.kind === look.kind);
export const kindsThere = () => unique(look.example.models.flatMap((model) => model.sites.map((site) => site.kind)));
export const modelName = (model) => nameOf(model, look.example.models, (encoding, seed) => t("seeded", encoding, seed));

/** The order of the rows on screen: as read, or equal digits next to each other. */
export function rowOrder(site) {
  const grouped = look.together ? equalDigits(site).flat() : [];
  return unique([...grouped, ...site.query.keys()]);
}

export function chooseExample(example) {
  Object.assign(look, { example, query: null, key: null });
  const kinds = kindsThere();
  if (!kinds.includes(look.kind)) look.kind = kinds[0];
  if (!look.shown.size) look.shown = firstModels(example.models); // the models are the same in every example
}

/** To begin with: those that the report opens with. */
function firstModels(models) {
  const first = payload.opening?.models ?? [...models.keys()].slice(0, 2);
  return new Set(first.filter((index) => index < models.length));
}

/** Open the head in which any shown model tells equal digits apart most; whether there is one. */
export function chooseHead() {
  let best = 0;
  for (const model of withDigits ? shownModels() : []) {
    sitesOf(model).forEach((site, layer) => site.equal_rows?.forEach((value, head) => {
      if (!known(value) || value <= best) return;
      best = value;
      Object.assign(look, { layer, head });
    }));
  }
  return best > 0;
}
