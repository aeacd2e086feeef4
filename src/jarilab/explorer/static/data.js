// The payload, its blocks of numbers, and how elements, tokens and numbers are made.
// Names, tokens and answers come from elsewhere: they reach the page only as text nodes and drawings.

export const byId = (id) => document.getElementById(id);
export const firstPayload = JSON.parse(byId("payload").textContent);

function dataFill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key.replace(/^on/, ""), value);
    else if (value !== false && known(value)) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => known(child) && child !== false));
  return node;
}
/** A new element; attributes: on* are listeners, false, null and undefined are left out. Strings become text nodes. */
export function el(tag, attributes = {}, ...children) {
  return dataFill(document.createElement(tag), attributes, children);
}
export function svg(tag, attributes = {}, ...children) {
  return dataFill(document.createElementNS(byId("namespace").namespaceURI, tag), attributes, children);
}
export const known = (value) => value !== null && value !== undefined;
export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
export const unique = (items) => [...new Set(items)];

/** Set custom properties or styles, which no attribute may (the policy allows no inline style). */
export function styled(node, styles) {
  for (const [name, value] of Object.entries(styles)) node.style.setProperty(name, value);
  return node;
}
/** The colour that belongs to a model. */
export const toned = (index, node) => styled(node, known(index) ? { "--tone": `var(--tone-${index % 6})` } : {});

// ---------------------------------------------------------------- tokens and numbers

const DATA_MARKS = { "": "∅", " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍", "\u00a0": "⍽" };
const dataMark = (letter) => DATA_MARKS[letter] ?? (letter.codePointAt(0) < 32 ? String.fromCodePoint(0x2400 + letter.codePointAt(0))
  : `‹${letter.codePointAt(0).toString(16).toUpperCase()}›`);

/** A token as it can be seen: white space, control and direction marks and broken letters get a sign. */
export function token(text) {
  return text === "" ? "∅" : text.replace(/^ | $|[^\S ]|[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}]/gu, dataMark);
}
/** The visible form of a token, of at most `length` letters. */
export function cutToken(text, length) {
  const letters = [...token(text)];
  return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : letters.join("");
}
/** An element with a token, cut by the style sheet, whole in its title. */
export const tokenNode = (text, attributes = {}) => el("bdi", { class: "token", title: token(text), ...attributes }, token(text));
/** Words from elsewhere (a run's name) that must not disturb the direction of their surroundings. */
export const nameNode = (text) => el("bdi", {}, token(String(text)));

/** Three significant digits; only what is exactly 0 is printed as 0. */
export function number(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const minus = (text) => text.replace("-", "−");
  if (size >= 0.001 && size < 10000) return minus(Number.isInteger(value) ? String(value) : value.toPrecision(size < 1000 ? 3 : 4));
  const [digits, power] = value.toExponential(2).split("e");
  return `${minus(digits)}·10${[...String(Number(power))].map((digit) => digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}
/** A share in percent; a near miss is never rounded to 0 % or 100 %. */
export function percent(share) {
  const size = 100 * share;
  if (size > 0 && size < 0.1) return "< 0.1 %";
  if (size < 100 && size > 99.9) return "> 99.9 %";
  return `${Number(size.toFixed(1))} %`;
}

// ---------------------------------------------------------------- blocks

const dataBlocks = new WeakMap();

function dataBytes(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < bytes.length; place += 1) bytes[place] = letters.charCodeAt(place);
  return bytes;
}

/** The numbers of a Block, decoded when first asked for; fixed point (uint16) becomes 0..1. */
export function block(source) {
  if (!dataBlocks.has(source)) {
    const { buffer, length } = dataBytes(source.data);
    const bits = { uint8: 8, uint16: 16, float32: 32 }[source.dtype];
    const count = 8 * length / bits;
    if (count !== source.shape.reduce((product, size) => product * size, 1)) throw new Error(`block: ${count} numbers for the shape ${source.shape}`);
    const view = new DataView(buffer); // the bytes are little-endian, this machine may not be
    const data = bits === 8 ? new Uint8Array(buffer) : new Float32Array(count);
    if (bits === 16) for (let place = 0; place < count; place += 1) data[place] = view.getUint16(2 * place, true) / 65535;
    if (bits === 32) for (let place = 0; place < count; place += 1) data[place] = view.getFloat32(4 * place, true);
    dataBlocks.set(source, { data, shape: source.shape });
  }
  return dataBlocks.get(source);
}

// ---------------------------------------------------------------- sites

/** The weights of one head, query after query. */
export function headWeights(site, head) {
  const size = site.shape[0] * site.shape[1];
  return block(site.weights).data.subarray(head * size, (head + 1) * size);
}
/** 1 where a query may not look at a key, or null. */
export const siteHidden = (site) => site.hidden ? block(site.hidden).data : null;

/** The labels of rows or columns; where the map is pooled, of the groups. */
export function siteTokens(view, site, side) {
  const tokens = view.sides[site[side]].tokens;
  const count = site.shape[side === "queries" ? 0 : 1];
  if (site.pooled <= 1) return tokens;
  return Array.from({ length: count }, (_, place) => tokens.slice(place * site.pooled, (place + 1) * site.pooled).join(""));
}
/** The place of a weight among those that its query may look at, 1 the largest, and their number. */
export function rankOf(weights, hidden, columns, query, key) {
  let [rank, count] = [1, 0];
  for (let at = query * columns; at < (query + 1) * columns; at += 1) {
    if (hidden?.[at]) continue;
    count += 1;
    rank += weights[at] > weights[query * columns + key];
  }
  return [rank, count];
}
/** The largest of each square of cells, so that no weight is lost; hidden where all of it is. */
export function maxPool(data, mask, [rows, columns], factor) {
  const [high, wide] = [Math.ceil(rows / factor), Math.ceil(columns / factor)];
  const [small, hidden] = [new Float32Array(high * wide), new Uint8Array(high * wide).fill(1)];
  for (let row = 0; row < rows; row += 1) {
    const base = Math.floor(row / factor) * wide;
    for (let column = 0; column < columns; column += 1) {
      const at = row * columns + column;
      const place = base + Math.floor(column / factor);
      if (mask?.[at]) continue;
      hidden[place] = 0;
      if (data[at] > small[place]) small[place] = data[at];
    }
  }
  return { data: small, hidden, rows: high, columns: wide };
}
export function largestOf(data, hidden) {
  let largest = 0;
  for (let place = 0; place < data.length; place += 1) if (!hidden?.[place] && Math.abs(data[place]) > largest) largest = Math.abs(data[place]);
  return largest;
}
