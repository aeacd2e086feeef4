import { barNode, pressable, scrolling, tableOf } from "kit/controls.js";
import { adopt, el, refill, styled, svg } from "kit/elements.js";
import { known, number, percent } from "kit/numbers.js";
import { placeName } from "kit/numerals.js";
import { cutToken, token, tokenNode } from "kit/tokens.js";
import { speaking } from "kit/words.js";
import { beginPanel } from "./kit.js";
import { WORDS } from "../words.js";

const t = speaking({
  title: ["Task", "과제"],
  places: ["Digits by place", "자릿수별 숫자"],
  carry: ["carry in", "받아올림"],
  share: ["Weight on the digits of the same place, by head (uniform weights)", "같은 자리 숫자에 준 가중치, 헤드별 (균등할 때)"],
  role_source: ["source", "입력"],
  role_target: ["target", "출력"],
  role_left: ["left", "왼쪽"],
  role_operator: ["operator", "연산자"],
  role_right: ["right", "오른쪽"],
  role_equals: ["equals", "등호"],
  role_sign: ["sign", "부호"],
  role_answer: ["answer", "답"],
  role_other: ["other", "그 밖"],
  links: ["Each written token linked to the source token that it looks at most, in {0}, mean of its heads.", "출력 토큰마다 {0}(헤드 평균)에서 가장 많이 보는 입력 토큰과 이었습니다."],
  aer: ["Alignment error rate: {0} (0 is perfect).", "정렬 오류율(AER): {0} (0이 완벽)."],
  right: ["solid: in the reference", "실선: 정답에 있음"],
  wrong: ["dashed: not in the reference", "파선: 정답에 없음"],
  missed: ["dotted: only in the reference", "점선: 정답에만 있음"],
}, WORDS);

adopt(
  ".tasklens-digits th, .tasklens-digits td { text-align: center; border: 0; line-height: 1.3; }",
  ".tasklens-digits tr:first-child td { font: 600 var(--t4) var(--mono); }",
  ".tasklens-digits .note { font-size: var(--t1); }",
  ".tasklens-digits .place { border-bottom: 4px solid var(--tone); color: var(--tone); }",
  "svg.tasklens-links { max-width: none; }",
  ".link { fill: none; stroke: var(--accent); stroke-width: 2; }",
  ".link.right { stroke: var(--good); }",
  ".link.wrong { stroke: var(--bad); stroke-dasharray: 7 4; }",
  ".link.missed { stroke: var(--muted); stroke-dasharray: 2 4; }",
  ".tasklens-key { display: flex; flex-wrap: wrap; gap: .2rem 1.6rem; font-size: var(--t2); }",
  ".tasklens-key span { border-bottom: 2px solid var(--good); }",
  ".tasklens-key .wrong { border-bottom: 2px dashed var(--bad); }",
  ".tasklens-key .missed { border-bottom: 2px dotted var(--muted); }",
  ".tasklens table { margin-bottom: 1rem; }",
  ".tasklens-links text { fill: var(--ink); font: var(--t2) var(--sans); }",
);

export const panel = {
  id: "tasklens", title: () => t("title"), there: (app) => Object.hasOwn(DRAWN, app.view().lens?.kind ?? ""),
  draw(root, app) {
    beginPanel(root);
    refill(root, ...DRAWN[app.view().lens.kind](app));
  },
};

const DRAWN = { arithmetic: digitsOf, alignment: alignmentOf };

// Digits --------------------------------------------------------------------------------------------------------------

function digitsOf(app) {
  const { lens, sides, outputs } = app.view();
  const written = outputs.map(({ token }) => token); // a row of the target stands for what is written there
  const lines = [placesTable("source", sides.source.tokens, lens.places.source, []),
    placesTable("target", written, lens.places.target, lens.carries)];
  return [el("h3", {}, t("places")), ...lines, sharesOf(app, lens.share)];
}

/** Tokens with their parts and places; carries stand under the tokens at which their digits are written. */
function placesTable(side, tokens, places, carries) {
  const shown = tokens.map((text, at) => known(places[at].place)
    ? styled(el("td", { class: "place" }, tokenNode(text)), { "--tone": `var(--tone-${places[at].place % 6})` }) : el("td", {}, tokenNode(text)));
  const words = places.map(({ role, place }) => el("td", { class: "note" }, t(`role_${role}`), known(place) && [el("br"), placeName(place)]));
  const carried = carries.some(known) && el("tr", {}, el("th", { scope: "row" }, t("carry")),
    carries.map((carry) => el("td", {}, known(carry) ? String(Number(carry)) : "")));
  return scrolling(t(`role_${side}`), el("table", { class: "tasklens-digits" }, el("caption", {}, t(`role_${side}`)),
    el("tbody", {}, el("tr", {}, el("td"), shown), el("tr", {}, el("td"), words), carried)));
}

function sharesOf(app, share) {
  const sites = Object.entries(share).filter(([, { value }]) => value.some(known));
  if (!sites.length) return null;
  const heads = Math.max(...sites.map(([, { value }]) => value.length));
  const cell = (site, value, chance, head) => el("td", {}, !known(value) ? "–" : [pressable(`share-${site}-${head}`, percent(value), () => app.set({ site, head })),
    barNode(value), known(chance) && el("small", {}, `(${percent(chance)})`)]);
  return el("div", { class: "scroll measures" }, tableOf(["", ...Array.from({ length: heads }, (_, head) => `${t("head")} ${head}`)],
    sites.map(([site, { value, chance }]) => [site, ...value.map((one, head) => cell(site, one, chance?.[head], head))]), t("share")));
}

// Sentences -----------------------------------------------------------------------------------------------------------

/** Words side by side: where each stands, and how wide all are. */
function lineOf(tokens) {
  let x = 8;
  const places = tokens.map((text) => {
    const shown = cutToken(text, 14);
    const width = [...shown].reduce((sum, letter) => sum + (letter.codePointAt(0) > 0x1100 ? 15 : 8.6), 16);
    x += width;
    return { text, shown, x: x - width / 2 };
  });
  return { places, width: x + 8 };
}

function alignmentOf(app) {
  const { lens, sides, outputs } = app.view();
  const written = outputs.map(({ token }) => token);
  const lines = [written, sides.source.tokens].map(lineOf);
  const width = Math.max(...lines.map((line) => line.width));
  const height = 190;
  for (const line of lines) for (const place of line.places) place.x += (width - line.width) / 2;
  const pair = ([query, key]) => `${query} ${key}`;
  const gold = new Set([...(lens.gold?.sure ?? []), ...(lens.gold?.possible ?? [])].map(pair));
  const links = new Set(lens.links.map(pair));
  const missed = (lens.gold?.sure ?? []).filter((link) => !links.has(pair(link)));
  const draw = (link, kind) => {
    const [query, key] = [lines[0].places[link[0]], lines[1].places[link[1]]];
    return query && key ? svg("path", { class: `link ${kind}`, d: `M${query.x} 34C${query.x} 95 ${key.x} 95 ${key.x} ${height - 34}` }, svg("title", {}, `${token(query.text)} – ${token(key.text)}`)) : null;
  };
  const words = (line, y) => line.places.map((place) => svg("text", { x: place.x, y, "text-anchor": "middle" }, place.shown, svg("title", {}, token(place.text))));
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "tasklens-links", role: "img",
    "aria-label": lens.links.map(([query, key]) => `${token(written[query] ?? "")} – ${token(sides.source.tokens[key] ?? "")}`).join(", ") },
  ...missed.map((link) => draw(link, "missed")), ...lens.links.map((link) => draw(link, !lens.gold ? "" : gold.has(pair(link)) ? "right" : "wrong")),
  ...words(lines[0], 24), ...words(lines[1], height - 16));
  return [el("p", {}, t("links", lens.site)), scrolling(t("title"), image),
    lens.gold && el("p", { class: "tasklens-key" }, ...["Right", "Wrong", "Missed"].map((kind) => el("span", { class: kind.toLowerCase() }, t(kind.toLowerCase())))),
    known(lens.error_rate) && el("p", {}, t("aer", number(lens.error_rate)))];
}
