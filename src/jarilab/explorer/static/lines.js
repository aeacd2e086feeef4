// Lines from a query to the keys it looks at most.
import { el, svg } from "kit/elements.js";
import { isNight } from "kit/draw.js";
import { clamp } from "kit/numbers.js";
import { cutToken, token, tokenNode } from "kit/tokens.js";
import { headWeights, siteHidden } from "./sites.js";
import { t } from "./words.js";

/** Eight heads drawn over each other, told apart by people who see less red or green too (a test sees to it). */
const TONES = {
  light: ["#2c218c", "#556187", "#0018f2", "#6b0832", "#549e9d", "#c01e0d", "#ff5504", "#6d87fc"],
  dark: ["#047486", "#cfdc01", "#d48701", "#83dfff", "#00b8a6", "#b83a07", "#0e5ae3", "#529bff"],
};
const ROW = 22;
const TOP = 24;
const COUNT = 2000; // more nodes than this make a page slow; the weakest lines give way

const toneOf = (head, onPaper) => TONES[isNight() && !onPaper ? "dark" : "light"][head % TONES.light.length];
/** Of more than eight heads, those of one tone differ by dashes. */
const dashOf = (head) => ["none", "6 4", "2 3", "9 3 2 3"][Math.floor(head / TONES.light.length) % 4];

/** The links to draw, strongest first: the `top` keys of each query, of one head or of all. */
function linksOf(app, { site, leftOut }) {
  const { every, heads, head, query, top } = app.state;
  const [rows, columns] = site.shape;
  const mask = siteHidden(site);
  const stronger = (one, two) => two.weight - one.weight;
  const links = [];
  for (const drawn of heads ? Array(site.heads).keys() : [head]) {
    const data = headWeights(site, drawn);
    for (const row of every ? Array(rows).keys() : [query]) {
      const linksOfRow = Array.from({ length: columns }, (_, key) => ({ head: drawn, query: row, key, weight: data[row * columns + key] }));
      links.push(...linksOfRow.filter(({ key, weight }) => weight > 0 && !mask?.[row * columns + key] && !leftOut?.[row * columns + key]).sort(stronger).slice(0, top));
    }
  }
  return links.sort(stronger);
}

/** The drawing alone, with its own colours, so that it can leave the page. onPaper: for a file, whose ground is white. */
export function linesDrawing(app, pane, onPaper = false) {
  const { query, every } = app.state;
  const allLinks = linksOf(app, pane);
  const links = allLinks.slice(0, COUNT);
  const [width, left, right] = [440, 120, 320];
  const height = TOP + ROW * Math.max(...pane.site.shape) + 4;
  const y = (place) => TOP + ROW * (place + 0.5);
  const column = (texts, x, anchor, isOn) => texts.map((text, place) => svg("text", { x, y: y(place) + 4, "text-anchor": anchor,
    "font-size": 14, "font-family": "monospace", fill: "currentColor", "fill-opacity": isOn(place) ? 1 : 0.55,
    "font-weight": isOn(place) ? 700 : 400 }, cutToken(text, 12), svg("title", {}, `${token(text)} (${place})`)));
  const line = (link) => {
    const aside = app.state.heads ? (link.head - (pane.site.heads - 1) / 2) * 14 / pane.site.heads : 0; // heads do not cover each other
    const [from, to] = [y(link.query) + aside, y(link.key) + aside];
    const ends = `${cutToken(pane.rowTokens[link.query], 12)} → ${cutToken(pane.columnTokens[link.key], 12)}`;
    return svg("path", { d: `M${left} ${from}C${left + 90} ${from} ${right - 90} ${to} ${right} ${to}`, fill: "none",
      stroke: toneOf(link.head, onPaper), "stroke-dasharray": dashOf(link.head), "stroke-width": (1 + 5 * link.weight).toFixed(2), "stroke-opacity": (0.15 + 0.85 * link.weight).toFixed(3) },
    svg("title", {}, `${t("head")} ${link.head}: ${ends} ${link.weight.toFixed(4)}`));
  };
  const title = (x, anchor, words) => svg("text", { x, y: 14, "text-anchor": anchor, "font-size": 12, fill: "currentColor" }, words);
  const looked = new Set(links.map(({ key }) => key));
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "lines" },
    title(left - 8, "end", t("query")), title(right + 8, "start", t("key")),
    every ? null : svg("rect", { x: 0, y: y(query) - ROW / 2, width: left - 2, height: ROW, rx: 4, fill: "#8886" }),
    links.map(line), column(pane.rowTokens, left - 8, "end", (place) => every || place === query),
    column(pane.columnTokens, right + 8, "start", (place) => looked.has(place)));
  return { drawing, links, left: allLinks.length - links.length };
}

const MOVES = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e6, End: 1e6 };

export function linesNode(app, pane) {
  const { drawing, links, left } = linesDrawing(app, pane);
  const go = (query) => app.set({ query: clamp(query, 0, pane.site.shape[0] - 1) });
  const box = el("div", { class: "lines-box", tabindex: 0, role: "application", "aria-roledescription": t("linesOf"),
    "aria-label": t("linesLabel", pane.name), "data-keep": `lines ${pane.name}`,
    onclick: ({ clientY }) => {
      const { top, height } = drawing.getBoundingClientRect(); // a narrow page shows the drawing smaller
      go(Math.floor(((clientY - top) / height * drawing.viewBox.baseVal.height - TOP) / ROW));
    },
    onkeydown: (event) => {
      const move = MOVES[event.key];
      if (!move) return;
      event.preventDefault();
      go(app.state.query + move);
    } }, drawing);
  drawing.setAttribute("aria-hidden", "true");
  const dot = (head) => svg("svg", { width: 24, height: 12, "aria-hidden": "true" },
    svg("path", { d: "M0 6H24", stroke: toneOf(head), "stroke-width": 5, "stroke-dasharray": dashOf(head) }));
  const tones = app.state.heads && el("p", { class: "tones" }, Array.from({ length: pane.site.heads }, (_, head) =>
    el("span", {}, dot(head), ` ${t("head")} ${head}`)));
  const [first] = links;
  const strongest = first && el("p", { class: "note" }, `${t("strongest")} `, tokenNode(pane.rowTokens[first.query]), ` (${first.query}) → `,
    tokenNode(pane.columnTokens[first.key]), ` (${first.key}), ${t("head")} ${first.head}, ${first.weight.toFixed(4)}`);
  return el("div", {}, tones, el("div", { class: "scroll" }, box), strongest, left > 0 && el("p", { class: "note" }, t("linesLeft", left)));
}
