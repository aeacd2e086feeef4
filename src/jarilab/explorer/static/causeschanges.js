// The sections of the page of `jarilab causes` that change the model: patching, steering, and screening by gradients.
import { barNode, note, scrolling, tableOf } from "kit/controls.js";
import { el, refill, styled, svg } from "kit/elements.js";
import { clamp, known, number, percent, unique } from "kit/numbers.js";
import { cutToken, token } from "kit/tokens.js";
import { gridOf } from "./causesheads.js";
import { nats, saidIn, t } from "./causeswords.js";

const LETTERS = 12; // of a token
const MOST = 12; // rows of a table
const bySize = (name) => (one, other) => Math.abs(other[name]) - Math.abs(one[name]);
const afterOf = (layer) => known(layer) ? t("lensAfter", layer) : t("lensBefore");
export const isPart = ({ kind }) => kind === "head" || kind === "mlp";

/** A signed bar for each head and MLP {drawing, largest}. valueOf, labelOf: from a row {part, kind, site, index}. */
export function barsOf(root, page, rows, valueOf, labelOf) {
  const heads = new Map(page.layout.map((row) => [`${row.site} ${row.index}`, row.head]));
  const { at, cell, columns, labels, left, line, places, right, bottom } = gridOf(root, page, rows.some((row) => row.kind === "mlp") ? ["MLP"] : []);
  const largestOf = (kind) => Math.max(...rows.filter((row) => row.kind === kind).map((row) => Math.abs(valueOf(row))), 0);
  const largest = { head: largestOf("head"), mlp: largestOf("mlp") }; // one MLP would hide all heads
  const bars = rows.filter(isPart).map((row) => {
    const head = row.kind === "head" && heads.get(`${row.site} ${row.index}`);
    const [x, y] = head ? places.get(head) : at(row.part.replace(/ MLP$/, ""), columns);
    const [value, label] = [valueOf(row), labelOf(row)];
    const height = Math.abs(value) / (largest[row.kind] || 1) * (line / 2 - 2);
    const isFor = value >= 0;
    const bar = [svg("title", {}, label), svg("rect", { class: "cell", x: x - cell / 2, y: y - line / 2, width: cell, height: line }),
      height < 0.5 ? null : svg("rect", { class: isFor ? "total" : "total against", x: x - cell / 4, width: cell / 2, y: isFor ? y - height : y, height })];
    return head && page.heads.some((each) => each.head === head) ? svg("a", { href: `#head=${encodeURIComponent(head)}`, "aria-label": label }, bar) : svg("g", { role: "img", "aria-label": label }, bar);
  });
  const middles = unique([...places.values()].map(([, y]) => y)).map((y) => svg("path", { class: "middle", d: `M${left} ${y}H${right}` }));
  return { drawing: svg("svg", { width: right + 8, height: bottom, role: "group" }, labels, middles, bars), largest };
}

// ---------------------------------------------------------------- patching

export function drawPatching(root, section, page, { linked }) {
  const towards = Math.sign(section.base - section.donor) || 1; // upwards: towards the other score
  const share = (row) => known(row.share) ? percent(row.share) : "–";
  const label = (row) => t("patchBar", row.part, nats(-row.noised, true), share(row));
  const { drawing, largest } = barsOf(root, page, section.rows, (row) => towards * row.noised, label);
  const line = (row) => [row.kind === "group" ? t(row.part.replace(" ", "_")) : linked(row.part), nats(-row.noised, true), share(row), nats(row.restored, true), known(row.control) ? nats(-row.control, true) : "–"];
  const rows = [...section.rows.filter((row) => row.kind === "group"), ...section.rows.filter(isPart).sort(bySize("noised")).slice(0, MOST)];
  const header = ["part", "patchedHere", "share", "patchedThere", "number_random"].map((key) => t(key));
  const reasons = Object.values(section.left_out).map((reason) => note(t("refused"), " ", el("span", { lang: "en" }, reason)));
  refill(root, el("p", {}, linked(saidIn(section))), scrolling(t("patching"), drawing), note(t("patchingHelp", number(largest.head), number(largest.mlp))),
    scrolling(t("patching"), tableOf(header, rows.map(line))), streamsNode(section, page), reasons);
}

/** The share of the difference that the residual stream carries: layers down, tokens across. */
function streamsNode(section, page) {
  const streams = section.rows.filter((row) => row.kind === "stream");
  if (!streams.length) return null;
  const valueOf = (row) => row.share ?? 0;
  if (!known(streams[0].position)) return scrolling(t("streams"), tableOf([t("streams"), "", t("share")], streams.map((row, layer) => [afterOf(layer ? streams[layer - 1].part.replace(/ stream$/, "") : null), barNode(clamp(valueOf(row), 0, 1)), percent(valueOf(row))])));
  const tables = unique(streams.map((row) => row.part.replace(/L\d+ stream.*/, ""))).map((stack) => {
    const rows = streams.filter((row) => row.part.replace(/L\d+ stream.*/, "") === stack);
    const parts = unique(rows.map((row) => row.part));
    const count = rows.length / parts.length;
    const names = Object.values(page.tokens).filter((each) => each.length === count).at(stack === "enc." ? 0 : -1) ?? Array.from({ length: count }, (_, place) => String(place));
    const lines = parts.map((part, layer) => [afterOf(layer ? parts[layer - 1].replace(/ stream$/, "") : null), ...rows.filter((row) => row.part === part).map((row) =>
      styled(el("td", { title: `${part}, ${token(names[row.position])}: ${nats(-row.noised, true)}` }, Math.abs(valueOf(row)) < 0.005 ? "" : percent(valueOf(row))), { "--weight": clamp(Math.abs(valueOf(row)), 0, 1) }))]);
    const table = tableOf(["", ...names.map((text) => el("bdi", { class: "token", title: token(text) }, cutToken(text, LETTERS)))], lines);
    table.className = "lens";
    return scrolling(t("streams"), table);
  });
  return [el("h3", {}, t("streams")), tables, note(t("streamsHelp"))];
}

// ---------------------------------------------------------------- steering

export function drawSteering(root, section) {
  const layers = unique(section.cells.map((cell) => cell.after));
  const lines = layers.map((after) => {
    const cells = section.cells.filter((cell) => cell.after === after);
    return [afterOf(after), ...cells.map((cell) => {
      const title = t("steerCell", token(cell.token), percent(cell.share), nats(cell.change, true), nats(cell.control), percent(cell.answer));
      const className = cell.passes ? (cell.token === section.clean ? "" : "hit") : "weak";
      return styled(el("td", { class: className, title }, el("bdi", { class: "token" }, cutToken(cell.token, LETTERS)), el("small", {}, nats(cell.change, true))), { "--weight": cell.passes ? cell.share : 0 });
    }), number(cells[0].norm / cells[0].stream_norm)];
  });
  const table = tableOf(["", ...section.scales.map((scale) => `× ${scale}`), t("steerLength")], lines);
  table.className = "lens";
  refill(root, el("p", {}, saidIn(section)), scrolling(t("steering"), table), note(t("steeringHelp", token(section.clean), section.controls)));
}

// ---------------------------------------------------------------- screening

const SIZE = 300;
export function drawScreening(root, section, page, { linked, link }) {
  const measured = section.rows.filter((row) => known(row.actual));
  const most = Math.max(...measured.map((row) => Math.max(Math.abs(row.estimate), Math.abs(row.actual))), 1e-9);
  const at = (value) => SIZE / 2 + value / most * (SIZE / 2 - 12);
  const dots = measured.map((row) => {
    const label = t("screenDot", row.head, nats(row.estimate, true), nats(row.actual, true));
    const isMissed = section.missed.includes(row.head);
    return [svg("circle", { class: isMissed ? "missed" : row.checked === "random" ? "random" : "top", cx: at(row.estimate), cy: SIZE - at(row.actual), r: 5, role: "img", "aria-label": label }, svg("title", {}, label)),
      isMissed ? svg("text", { x: at(row.estimate) + 8, y: SIZE - at(row.actual) + 4 }, row.head) : null];
  });
  const middle = at(0);
  const drawing = svg("svg", { width: SIZE + 40, height: SIZE, role: "group", "aria-label": t("screening") },
    svg("path", { class: "middle", d: `M${middle} 0V${SIZE}M0 ${middle}H${SIZE}` }), svg("path", { class: "diagonal", d: `M0 ${SIZE}L${SIZE} 0` }), dots);
  const isSampled = measured.some((row) => row.checked === "random");
  const lines = [...measured].sort(bySize("actual")).slice(0, MOST).map((row) => [page.heads.some(({ head }) => head === row.head) ? link(row.head) : row.head, nats(row.estimate, true), nats(row.actual, true), ...isSampled ? [t(`checked_${row.checked}`)] : []]);
  refill(root, el("p", {}, linked(saidIn(section))), el("div", { class: "screen" }, el("figure", {}, drawing, el("figcaption", {}, t("screenHelp"))),
    scrolling(t("screening"), tableOf(["head", "estimated", "measuredEffect", ...isSampled ? ["chosenBy"] : []].map((key) => t(key)), lines))));
}
