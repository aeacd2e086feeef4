import { cutToken, el, known, number, percent, styled, svg, token, tokenNode } from "./data.js";
import { barNode, beginPanel, panelNote, pressable, refill, scrolling, tableOf } from "./panelkit.js";

export const tasklensPanel = {
  id: "tasklens", title: "tasklensTitle",
  draw(root, app) {
    beginPanel(root);
    const kinds = { arithmetic: tasklensDigits, alignment: tasklensAlignment };
    refill(root, ...(kinds[app.view().lens?.kind] ?? tasklensNothing)(app));
  },
};

const tasklensNothing = (app) => [panelNote(app.t("tasklensNone"))];

// Digits --------------------------------------------------------------------------------------------------------------

const tasklensPlace = (app, place) => place < 4 ? app.t(`tasklens_${place}`) : app.t("tasklensPlace", place);

function tasklensDigits(app) {
  const { lens, sides, outputs } = app.view();
  const written = outputs.map(({ token }) => token); // a row of the target stands for what is written there
  const lines = [tasklensTable(app, "source", sides.source.tokens, lens.places.source, []),
    tasklensTable(app, "target", written, lens.places.target, lens.carries)];
  return [el("h3", {}, app.t("tasklensPlaces")), ...lines, tasklensShares(app, lens.share)];
}

/** Tokens with their parts and places; carries stand under the tokens at which their digits are written. */
function tasklensTable(app, side, tokens, places, carries) {
  const { t } = app;
  const shown = tokens.map((text, at) => known(places[at].place)
    ? styled(el("td", { class: "place" }, tokenNode(text)), { "--tone": `var(--tone-${places[at].place % 6})` }) : el("td", {}, tokenNode(text)));
  const words = places.map(({ role, place }) => el("td", { class: "note" }, t(`tasklens_${role}`), known(place) && [el("br"), tasklensPlace(app, place)]));
  const carried = carries.some(known) && el("tr", {}, el("th", { scope: "row" }, t("tasklensCarry")),
    carries.map((carry) => el("td", {}, known(carry) ? String(Number(carry)) : "")));
  return scrolling(t(`tasklens_${side}`), el("table", { class: "tasklens-digits" }, el("caption", {}, t(`tasklens_${side}`)),
    el("tbody", {}, el("tr", {}, el("td"), shown), el("tr", {}, el("td"), words), carried)));
}

function tasklensShares(app, share) {
  const sites = Object.entries(share).filter(([, { value }]) => value.some(known));
  if (!sites.length) return null;
  const heads = Math.max(...sites.map(([, { value }]) => value.length));
  const cell = (site, value, chance, head) => el("td", {}, !known(value) ? "–" : [pressable(`share-${site}-${head}`, percent(value), () => app.set({ site, head })),
    barNode(value), known(chance) && el("small", {}, `(${percent(chance)})`)]);
  return el("div", { class: "scroll measures" }, tableOf(["", ...Array.from({ length: heads }, (_, head) => `${app.t("head")} ${head}`)],
    sites.map(([site, { value, chance }]) => [site, ...value.map((one, head) => cell(site, one, chance?.[head], head))]), app.t("tasklensShare")));
}

// Sentences -----------------------------------------------------------------------------------------------------------

/** Words side by side: where each stands, and how wide all are. */
function tasklensLine(tokens) {
  let x = 8;
  const places = tokens.map((text) => {
    const shown = cutToken(text, 14);
    const width = [...shown].reduce((sum, letter) => sum + (letter.codePointAt(0) > 0x1100 ? 15 : 8.6), 16);
    x += width;
    return { text, shown, x: x - width / 2 };
  });
  return { places, width: x + 8 };
}

function tasklensAlignment(app) {
  const { t } = app;
  const { lens, sides, outputs } = app.view();
  const written = outputs.map(({ token }) => token);
  const lines = [written, sides.source.tokens].map(tasklensLine);
  const width = Math.max(...lines.map((line) => line.width));
  const height = 190;
  for (const line of lines) for (const place of line.places) place.x += (width - line.width) / 2;
  const pair = ([query, key]) => `${query} ${key}`;
  const gold = new Set([...(lens.gold?.sure ?? []), ...(lens.gold?.possible ?? [])].map(pair));
  const found = new Set(lens.links.map(pair));
  const missed = (lens.gold?.sure ?? []).filter((link) => !found.has(pair(link)));
  const draw = (link, kind) => {
    const [query, key] = [lines[0].places[link[0]], lines[1].places[link[1]]];
    return query && key ? svg("path", { class: `link ${kind}`, d: `M${query.x} 34C${query.x} 95 ${key.x} 95 ${key.x} ${height - 34}` }, svg("title", {}, `${token(query.text)} – ${token(key.text)}`)) : null;
  };
  const words = (line, y) => line.places.map((place) => svg("text", { x: place.x, y, "text-anchor": "middle" }, place.shown, svg("title", {}, token(place.text))));
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "tasklens-links", role: "img",
    "aria-label": lens.links.map(([query, key]) => `${token(written[query] ?? "")} – ${token(sides.source.tokens[key] ?? "")}`).join(", ") },
  ...missed.map((link) => draw(link, "missed")), ...lens.links.map((link) => draw(link, !lens.gold ? "" : gold.has(pair(link)) ? "right" : "wrong")),
  ...words(lines[0], 24), ...words(lines[1], height - 16));
  return [el("p", {}, t("tasklensLinks", lens.site)), scrolling(t("tasklensTitle"), image),
    lens.gold && el("p", { class: "tasklens-key" }, ...["Right", "Wrong", "Missed"].map((kind) => el("span", { class: kind.toLowerCase() }, t(`tasklens${kind}`)))),
    known(lens.error_rate) && el("p", {}, t("tasklensAer", number(lens.error_rate)))];
}
