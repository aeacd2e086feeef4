import { el, known, number, percent, styled, svg, token, tokenNode } from "./data.js";
import { beginPanel, panelNote, pressable, refill } from "./panelkit.js";

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
  const { lens, sides } = app.view();
  const { t } = app;
  const lines = Object.entries(lens.places).filter(([side]) => sides[side]).map(([side, places]) => {
    const { tokens } = sides[side];
    const carries = side === (sides.target ? "target" : "source") ? tasklensCarries(lens.carries, places) : [];
    return el("div", { class: "scroll" }, el("table", { class: "tasklens-digits" }, el("caption", {}, t(`tasklens_${side}`)), el("tbody", {},
      el("tr", {}, el("td", {}), ...tokens.map((text, at) => known(places[at]?.place) ? styled(el("td", { class: "place" }, tokenNode(text)), { "--tone": `var(--tone-${places[at].place % 6})` }) : el("td", {}, tokenNode(text)))),
      el("tr", {}, el("td", {}), ...tokens.map((_, at) => el("td", { class: "note" }, t(`tasklens_${places[at]?.role ?? "other"}`), known(places[at]?.place) && el("br"),
        known(places[at]?.place) && tasklensPlace(app, places[at].place)))),
      carries.length > 0 && el("tr", {}, el("th", { scope: "row" }, t("tasklensCarry")), ...tokens.map((_, at) => el("td", {}, known(carries[at]) ? String(Number(carries[at])) : ""))))));
  });
  return [el("h4", {}, t("tasklensPlaces")), ...lines, tasklensShares(app, lens.share ?? {})];
}

/** A carry for each token: given so, or for the digits of the answer alone. */
function tasklensCarries(carries, places) {
  if (!carries?.length || carries.length === places.length) return carries ?? [];
  const digits = [...places.keys()].filter((at) => places[at].role === "answer" && known(places[at].place));
  return digits.length === carries.length ? places.map((_, at) => carries[digits.indexOf(at)] ?? null) : [];
}

function tasklensShares(app, share) {
  const sites = Object.entries(share).filter(([, { value }]) => value.some(known));
  if (!sites.length) return null;
  const heads = Math.max(...sites.map(([, { value }]) => value.length));
  const cell = (site, head, { value, chance }) => {
    if (!known(value[head])) return el("td", { class: "number" }, "–");
    const bar = styled(el("span", { class: "panel-bar" }), { width: `${100 * Math.min(1, value[head])}%` });
    return el("td", { class: "number" }, pressable(`share-${site}-${head}`, percent(value[head]), () => app.set({ site, head })), bar,
      known(chance?.[head]) && el("small", {}, `(${percent(chance[head])})`));
  };
  return el("div", { class: "scroll measures" }, el("table", {}, el("caption", {}, app.t("tasklensShare")),
    el("thead", {}, el("tr", {}, el("td", {}), ...Array.from({ length: heads }, (_, head) => el("th", { scope: "col" }, `${app.t("head")} ${head}`)))),
    el("tbody", {}, ...sites.map(([site, scored]) => el("tr", {}, el("th", { scope: "row" }, site), ...Array.from({ length: heads }, (_, head) => cell(site, head, scored)))))));
}

// Sentences -----------------------------------------------------------------------------------------------------------

/** Words side by side: where each stands, and how wide all are. */
function tasklensLine(tokens) {
  let x = 8;
  const places = tokens.map((text) => {
    const shown = token(text).length > 14 ? `${[...token(text)].slice(0, 13).join("")}…` : token(text);
    const width = [...shown].reduce((sum, letter) => sum + (letter.codePointAt(0) > 0x1100 ? 15 : 8.6), 16);
    x += width;
    return { text, shown, x: x - width / 2 };
  });
  return { places, width: x + 8 };
}

function tasklensAlignment(app) {
  const { t } = app;
  const { lens, sides } = app.view();
  const lines = [sides.target.tokens, sides.source.tokens].map(tasklensLine);
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
    "aria-label": lens.links.map(([query, key]) => `${token(sides.target.tokens[query] ?? "")} – ${token(sides.source.tokens[key] ?? "")}`).join(", ") },
  ...missed.map((link) => draw(link, "missed")), ...lens.links.map((link) => draw(link, !lens.gold ? "" : gold.has(pair(link)) ? "right" : "wrong")),
  ...words(lines[0], 24), ...words(lines[1], height - 16));
  return [el("p", {}, t("tasklensLinks")), el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": t("tasklensTitle") }, image),
    lens.gold && el("p", { class: "tasklens-key" }, ...["Right", "Wrong", "Missed"].map((kind) => el("span", { class: kind.toLowerCase() }, t(`tasklens${kind}`)))),
    known(lens.error_rate) && el("p", {}, t("tasklensAer", number(lens.error_rate)))];
}
