// A map enlarged, with its labels: queries go down, keys across. Boards side by side share the size of their cells, their
// scrolling and the cell that is pointed at.
import { drawMap } from "./draw.js";
import { el, styled } from "./elements.js";
import { clamp } from "./numbers.js";
import { edgesOf } from "./numerals.js";
import { token, tokenNode } from "./tokens.js";

/**
 * {node, canvas, field, beside, keys, queries, ...}. map: {data, shape, options} of drawMap. words: {kind, label, axes}. crosses: which stand on
 * it, among row, column, spot and pin. beside: what stands at its right. attributes: of the field, listeners too. rowMeanings, columnMeanings: of digits, see numerals.js.
 */
export function boardOf({ map, rowTokens, columnTokens, rowMeanings = [], columnMeanings = [], words, crosses, beside, attributes }) {
  const [rows, columns] = map.shape;
  const canvas = drawMap(el("canvas", { "aria-hidden": "true" }), map.data, rows, columns, map.options);
  const field = styled(el("div", { class: "field", tabindex: 0, role: "application", "aria-roledescription": words.kind,
    "aria-label": words.label, ...attributes }, canvas, crosses.map((part) => el("div", { class: `cross ${part}` }))),
  { "--rows": rows, "--columns": columns });
  const [keys, queries] = ["keys", "queries"].map((side) => el("div", { class: side, "aria-hidden": "true" }));
  const axes = el("span", { class: "axes", "aria-hidden": "true" }, words.axes);
  const node = el("div", { class: "scroll" }, el("div", { class: "board" }, axes, keys, el("span"), queries, field, beside ?? el("span")));
  return { node, canvas, field, beside, keys, queries, rows, columns, rowTokens, columnTokens, rowMeanings, columnMeanings, whole: true };
}

/** Boards too large for their frame move together. */
export function scrollTogether(boards) {
  const follow = ({ currentTarget }) => {
    const { scrollLeft, scrollTop } = currentTarget;
    for (const { node } of boards) if (node !== currentTarget) Object.assign(node, { scrollLeft, scrollTop });
  };
  for (const { node } of boards) node.addEventListener("scroll", follow);
}

/** A token; a digit with its place as a tone, as a letter where there is room, whole in its title, and a bracket over its number. */
function labelOf(text, meaning, edge, roomy) {
  if (!meaning) return tokenNode(text);
  const attributes = roomy ? { "data-short": meaning.short } : {};
  const ends = ["start", "end"].filter((name) => edge[name]).join(" ");
  const title = `${token(text)}: ${meaning.name}`;
  return styled(tokenNode(text, { class: `token meant ${ends}`, title, ...attributes }), { "--tone": `var(--tone-${meaning.tone})` });
}

const widest = (texts) => Math.max(...texts.map((text) => [...token(text)].length));

/**
 * Give all boards cells of one size, which is returned; labels are thinned out where they would not fit.
 * room: the width for a board and what stands beside it. aside: the width of that. size: from the size that fits to the one taken.
 * most: the largest size.
 */
export function fitBoards(boards, room, aside, size, most = 42) {
  const meant = boards.some((board) => board.rowMeanings.some(Boolean)) ? 24 : 0;
  const wide = meant + Math.min(112, 14 + 9 * Math.max(...boards.map((board) => widest(board.rowTokens))));
  const columns = Math.max(...boards.map((board) => board.columns));
  const rows = Math.max(...boards.map((board) => board.rows));
  const cell = size(Math.min((room - wide - aside) / columns, Math.max(13, 680 / rows), most));
  const every = Math.ceil(13 / cell);
  const roomy = cell >= 18;
  const labels = (texts, meanings) => {
    const edges = edgesOf(meanings);
    return texts.flatMap((text, place) => place % every ? [] : [labelOf(text, every === 1 && meanings[place], edges[place], roomy)]);
  };
  for (const board of boards) {
    styled(board.field.closest(".board"), { "--cell": `${cell}px`, "--every": every, "--label": `${wide}px` });
    const letters = widest(board.columnTokens);
    board.keys.classList.toggle("tall", letters * 9 + (letters > 1 ? 4 : 0) > cell * every);
    board.keys.replaceChildren(...labels(board.columnTokens, board.columnMeanings));
    board.queries.replaceChildren(...labels(board.rowTokens, board.rowMeanings));
    board.whole = every === 1; // each label is there
  }
  return cell;
}

// ---------------------------------------------------------------- the cell

/** The cell of a board under the pointer: [row, column]. */
export function cellUnder(event, { field, rows, columns }) {
  const area = field.getBoundingClientRect();
  const place = (at, begin, size, count) => clamp(Math.floor((at - begin) / size * count), 0, count - 1);
  return [place(event.clientY, area.top, area.height, rows), place(event.clientX, area.left, area.width, columns)];
}

const MOVES = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1],
  PageDown: [10, 0], PageUp: [-10, 0], Home: [0, -1e6], End: [0, 1e6] };

/** The cell to which a key moves from another, or null where it moves nothing. */
export function cellAfter(event, { rows, columns }, [row, column]) {
  const move = MOVES[event.key];
  if (!move || event.altKey || event.ctrlKey || event.metaKey) return null;
  return [clamp(row + move[0], 0, rows - 1), clamp(column + move[1], 0, columns - 1)];
}

/**
 * Put the crosses of a board on a cell, or on none (null). resting: nobody points at it, so its row and column are not marked.
 * Whether the board has such a cell.
 */
export function markBoard({ field, keys, queries, rows, columns, whole }, cell, resting = false) {
  const inside = cell !== null && cell[0] >= 0 && cell[0] < rows && cell[1] < columns;
  field.classList.toggle("outside", !inside);
  field.classList.toggle("resting", resting);
  for (const labels of [keys, queries]) labels.querySelector(".on")?.classList.remove("on");
  if (!inside) return false;
  styled(field, { "--row": cell[0], "--column": cell[1] });
  if (whole) [queries.children[cell[0]], keys.children[cell[1]]].forEach((label) => label?.classList.add("on"));
  return true;
}

export const scrollToCell = ({ field }) => field.querySelector(".spot").scrollIntoView({ block: "nearest", inline: "nearest" });
