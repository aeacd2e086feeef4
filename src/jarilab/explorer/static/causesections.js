// The sections of the page of `jarilab causes` that measure the model as it is: contributions, logit lens, composition, and relevance of inputs.
import { note, scrolling, tableOf } from "kit/controls.js";
import { el, refill, styled, svg } from "kit/elements.js";
import { clamp, known, number, percent } from "kit/numbers.js";
import { cutToken, token, tokenNode } from "kit/tokens.js";
import { barsOf, drawPatching, drawScreening, drawSteering, isPart } from "./causeschanges.js";
import { gridOf } from "./causesheads.js";
import { nats, saidIn, t } from "./causeswords.js";

const DRAWN = { contributions: drawContributions, lens: drawLens, composition: drawComposition, relevance: drawRelevance, patching: drawPatching, steering: drawSteering, screening: drawScreening };
export const SECTIONS = Object.keys(DRAWN);
const LETTERS = 12; // of a token in the lens
const INPUTS = ["q", "k", "v"];
const refusal = (reason, words = t("refused")) => note(words, " ", el("span", { lang: "en" }, reason));

/** Fill an open section. tools: link(head), linked(text), and the sequence that the answer is read in. */
export function drawSection(name, root, page, tools) {
  const section = page.sections[name];
  if (!section) return refill(root, note(t(`ask_${name}`)));
  if (section.refused) return refill(root, refusal(section.refused));
  return DRAWN[name](root, section, page, tools);
}

// ---------------------------------------------------------------- contributions

function drawContributions(root, section, page, { linked }) {
  const label = (row) => t("bar", row.part, nats(row.contribution, true), known(row.recomputed) ? nats(row.recomputed, true) : "–");
  const { drawing, largest } = barsOf(root, page, section.rows, (row) => row.contribution, label);
  const others = section.rows.filter((row) => !isPart(row)).map((row) => `${row.part} ${nats(row.contribution, true)}`);
  refill(root, el("p", {}, linked(saidIn(section))), scrolling(t("contributions"), drawing),
    note(t("others"), " ", others.join(", "), "."), section.unembedding ? note(t("unembedding", section.unembedding)) : null, note(t("contributionsHelp", number(largest.head), number(largest.mlp))));
}

// ---------------------------------------------------------------- logit lens

function drawLens(root, section, page, { answerSide }) {
  const count = section.layers[0].tokens.length;
  const names = (page.tokens[answerSide] ?? []).slice(section.first);
  const header = count === names.length ? names : Array.from({ length: count }, (_, place) => count > 1 ? String(place + section.first) : t("answer"));
  const last = section.layers.length - 1;
  const lines = section.layers.map(({ after, tokens, shares, answers }, layer) => [known(after) ? t("lensAfter", after) : t("lensBefore"),
    ...tokens.map((text, place) => {
      const answer = section.places.includes(place) ? answers[place] : null;
      const isAnswer = known(answer) && Math.abs(answer - shares[place]) < 1e-9;
      const title = known(answer) ? t("lensCell", token(text), percent(shares[place]), percent(answer)) : `${token(text)}: ${percent(shares[place])}`;
      const className = [known(answer) && "read", known(answer) && !layer && "first", known(answer) && layer === last && "last", isAnswer && "hit"].filter(Boolean).join(" ");
      return styled(el("td", { class: className, title }, el("bdi", { class: "token" }, cutToken(text, LETTERS)), el("small", {}, percent(shares[place]))), { "--weight": shares[place] });
    }), ...section.places.length === 1 ? [percent(answers[section.places[0]])] : []]);
  const table = tableOf(["", ...header.map((text) => el("bdi", { class: "token", title: token(text) }, cutToken(text, LETTERS))), ...section.places.length === 1 ? [t("lensAnswer")] : []], lines);
  table.className = "lens";
  const scroll = scrolling(t("lens"), table);
  refill(root, el("p", {}, saidIn(section)), section.warning ? el("p", { class: "warning", lang: "en" }, section.warning) : null, scroll, note(t("lensHelp")));
  scroll.scrollLeft = scroll.scrollWidth * (section.places[0] + 1) / count - scroll.clientWidth / 2;
}

// ---------------------------------------------------------------- composition

function drawComposition(root, section, page, { link, linked }) {
  const { labels, places, right, bottom } = gridOf(root, page);
  const strongest = Math.max(...section.links.map((each) => each.to_chance));
  const curves = section.links.map((each) => {
    const [[x1, y1], [x2, y2]] = [places.get(each.head), places.get(each.to)];
    const bend = (INPUTS.indexOf(each.input) - 1) * 8;
    const label = `${each.head} → ${each.to}, ${t(`input_${each.input}`)}: ${number(each.to_chance)}`;
    return svg("path", { class: `link ${each.input}`, d: `M${x1} ${y1}Q${(x1 + x2) / 2 + bend} ${(y1 + y2) / 2} ${x2} ${y2}`, "stroke-width": 1 + 4 * each.to_chance / strongest }, svg("title", {}, label));
  });
  const dots = [...places.values()].map(([x, y]) => svg("circle", { class: "none", cx: x, cy: y, r: 3 }));
  const lines = section.links.map((each) => {
    const edge = page.edges.find(({ source, target, input }) => source === each.head && target === each.to && input === each.input);
    return [el("span", {}, link(each.head), " → ", link(each.to)), t(`input_${each.input}`), number(each.to_chance), number(each.to_shuffled), edge ? nats(-edge.effect, true) : "–"];
  });
  const marks = INPUTS.map((input) => el("span", {}, svg("svg", { width: 22, height: 12, "aria-hidden": "true" }, svg("path", { class: `link ${input}`, d: "M0 6H22", "stroke-width": 3 })), t(`input_${input}`)));
  const words = el("p", {}, linked(saidIn(section)));
  if (!section.links.length) return refill(root, words, note(t("compositionHelp")));
  return refill(root, words, el("div", { class: "marks" }, marks), scrolling(t("composition"), svg("svg", { width: right + 8, height: bottom, role: "img", "aria-label": t("composition") }, labels, dots, curves)),
    note(t("compositionHelp")), scrolling(t("composition"), tableOf(["link", "byInput", "timesChance", "timesMean", "measured"].map((key) => t(key)), lines)));
}

// ---------------------------------------------------------------- relevance

const PATCH = /^\d+,\d+$/;
function tokensNode(tokens) {
  const largest = Math.max(...tokens.map(({ relevance }) => Math.abs(relevance)), 1e-30);
  const side = (name) => {
    const own = tokens.filter(({ sequence }) => sequence === name);
    const isImage = own.filter((each) => PATCH.test(each.token)).length > 1;
    const columns = isImage && 1 + Math.max(...own.filter((each) => PATCH.test(each.token)).map((each) => Number(each.token.split(",")[1])));
    const nodes = own.map((each) => styled(el("span", { class: each.relevance < 0 ? "below" : "", title: `${token(each.token)} (${each.position}): ${number(each.relevance)}` }, isImage && PATCH.test(each.token) ? "" : tokenNode(each.token)),
      { "--weight": clamp(Math.abs(each.relevance) / largest, 0, 1) }));
    if (!isImage) return el("div", { class: "tokens", dir: "auto" }, nodes);
    const [patches, rest] = [nodes.filter((_, place) => PATCH.test(own[place].token)), nodes.filter((_, place) => !PATCH.test(own[place].token))];
    return [el("div", { class: "tokens" }, rest), styled(el("div", { class: "patches" }, patches), { "--columns": columns })];
  };
  return [...new Set(tokens.map(({ sequence }) => sequence))].map(side);
}

function drawRelevance(root, section) {
  const { judged } = section;
  const gains = (method) => (judged.rows ?? []).filter((row) => row.method === method)
    .map((row) => el("span", {}, t(`gain_${row.removal}`, `${number(row.gain)} [${number(row.gain_low)}, ${number(row.gain_high)}]`)));
  const gainOf = ({ method, refused }) => refused ? -Infinity : (judged.rows ?? []).find((row) => row.method === method)?.gain ?? 0;
  const items = [...section.methods].sort((one, other) => gainOf(other) - gainOf(one) || 0).map(({ method, formula, tokens, refused }) => el("div", { class: "method" },
    el("h3", {}, el("code", { title: formula, class: judged.winner === method ? "right" : "" }, method)), refused ? refusal(refused) : tokensNode(tokens), el("p", { class: "note gains" }, gains(method))));
  const reasons = ["mask", "replace"].filter((kind) => judged.left_out?.[kind]).map((kind) => refusal(judged.left_out[kind], `${kind}:`));
  refill(root, judged.refused ? refusal(judged.refused, t("notJudged")) : el("p", {}, saidIn(judged)), judged.rows?.length && reasons, note(t("relevanceHelp"), judged.rows?.length ? ` ${t("gainHelp")}` : ""), items);
}
