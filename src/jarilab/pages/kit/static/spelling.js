// Text to token numbers and back, as the Reading and the Writing of a task have it: jarilab/text/spelling.py says what they hold.
import { token } from "./tokens.js";
import { speaking } from "./words.js";

const t = speaking({
  empty: ["write an input first", "먼저 입력을 쓰세요"],
  strange: ["no token for {0}; this model knows {1}", "{0}에 해당하는 토큰이 없습니다. 이 모델이 아는 것: {1}"],
  long: ["expected at most {0} tokens, got {1}", "토큰은 {0}개까지인데 {1}개입니다"],
  half: ["expected text, got half a surrogate pair, which no UTF-8 can hold", "텍스트가 아닙니다. UTF-8로 쓸 수 없는 반쪽 서로게이트가 있습니다"],
});

const SHOWN = 40; // pieces that an error names
const PLAIN = [[33, 127], [161, 173], [174, 256]]; // bytes whose letter in GPT-2's alphabet is the character of this number

/** The letter of each byte: printable ones themselves, others from U+0100 on. */
const LETTERS = letters();
function letters() {
  let moved = 256;
  const isPlain = (byte) => PLAIN.some(([start, stop]) => byte >= start && byte < stop);
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPlain(byte) ? byte : moved++));
}
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));
const FALLBACK = new Map(LETTERS.map((_, byte) => [`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`, byte]));
const FALLBACKS = [...FALLBACK.keys()];
const lettersOf = (text) => Array.from(new TextEncoder().encode(text), (byte) => LETTERS[byte]);

/** The text after all rules, each a pattern and what stands in the place of its matches. */
const ruled = (text, rules) => rules.reduce((before, [pattern, by]) => before.replaceAll(new RegExp(pattern, "gu"), () => by), text);

/** A text as token numbers. names: of all tokens. */
export class Reader {
  constructor(rules, names) {
    const { special, pieces, merges, scores } = rules;
    const texts = pieces ?? names.slice(special);
    Object.assign(this, { rules, texts, cut: new RegExp(rules.cut, "gu") });
    this.numbers = new Map(texts.map((piece, place) => [piece, special + place]));
    this.ranks = new Map(merges.map((pair, rank) => [pair.join(" "), rank]));
    this.scores = new Map(scores.map((score, place) => [texts[place], score]));
    this.longest = texts.reduce((most, piece) => Math.max(most, piece.length), 0);
  }

  /** {ids, originals, unread}: token IDs, the text that each stands for, and the unknown ones. most: IDs at most. Throws an Error for people to read. */
  read(text, most) {
    const { nfc, lowercase, rules, kind, unknown, end } = this.rules;
    if (!text.isWellFormed()) throw new Error(t("half"));
    const composed = nfc ? text.normalize("NFC") : text;
    const plain = ruled(lowercase === "text" ? composed.toLowerCase() : composed, rules);
    const joined = JOINED[kind];
    const least = Math.ceil(plain.length / this.longest); // told before long words are joined, which takes the square of their length
    if (joined && least > most) throw new Error(t("long", most, least));
    const [ids, originals, unread] = [[], [], []];
    for (const [piece, original] of this.pieces(plain)) {
      const tokens = joined ? joined(lettersOf(piece), this) : this.spelled(piece);
      for (const one of tokens) {
        ids.push(this.numbers.get(one) ?? unknown ?? this.strange(one));
        originals.push(original);
        if (ids.at(-1) === unknown) unread.push(one.replace(/^ /, "") || one);
      }
    }
    const available = typeof end === "number" ? most - 1 : most;
    if (ids.length > available) throw new Error(t("long", available, ids.length));
    return { ids: available === most ? ids : [...ids, end], originals, unread };
  }

  /** `read` of a text to answer. Refuses unknown characters, and unknown words with strange letters if no word is known. */
  readKnown(text, most) {
    const result = this.read(text, most);
    const letters = new Set(this.texts.join(""));
    const isStrange = (word) => this.rules.kind === "characters" || Array.from(word).some((letter) => !letters.has(letter));
    const refusable = this.rules.kind === "characters" || result.unread.length === result.originals.length;
    const strange = refusable ? result.unread.find(isStrange) : undefined;
    return strange === undefined ? result : this.strange(strange);
  }

  /** Each match of the cut, and what it was before each character was put into lower case by itself. */
  pieces(text) {
    if (this.rules.lowercase !== "characters") return Array.from(text.matchAll(this.cut), ([piece]) => [piece, piece]);
    const lower = Array.from(text, (character) => character.toLowerCase());
    const origins = lower.flatMap((changed, place) => Array(changed.length).fill(place)); // of each unit, the character it came from
    const characters = [...text];
    return Array.from(lower.join("").matchAll(this.cut), ({ 0: piece, index }) =>
      [piece, characters.slice(origins[index], origins[index + piece.length - 1] + 1).join("")]);
  }

  /** A piece, or if it is unknown its characters, or their bytes. */
  spelled(piece) {
    if (!this.rules.byte_fallback || this.numbers.has(piece)) return [piece];
    const bytes = (character) => Array.from(new TextEncoder().encode(character), (byte) => FALLBACKS[byte]);
    return Array.from(piece).flatMap((character) => this.numbers.has(character) ? [character] : bytes(character));
  }

  strange(piece) { throw new Error(t("strange", token(piece), this.texts.slice(0, SHOWN).join(" "))); }
}

/** Letters joined to pieces: by the two of the earliest merge first, the leftmost of these. */
function merged(letters, { ranks }) {
  const pieces = [...letters];
  const rankAt = (place) => ranks.get(`${pieces[place]} ${pieces[place + 1]}`) ?? Infinity;
  const rankOf = pieces.map((_, place) => rankAt(place)); // of each piece and the next
  for (;;) {
    let best = 0;
    for (let place = 1; place < pieces.length - 1; place += 1) if (rankOf[place] < rankOf[best]) best = place;
    if (pieces.length < 2 || rankOf[best] === Infinity) return pieces;
    pieces.splice(best, 2, pieces[best] + pieces[best + 1]);
    rankOf.splice(best, 1);
    rankOf[best] = rankAt(best);
    if (best) rankOf[best - 1] = rankAt(best - 1);
  }
}

/** Letters joined to the pieces with the highest sum of scores (Viterbi); of equal sums, that whose last piece is longest. */
function likeliestPieces(letters, { scores, longest }) {
  const best = [{ score: 0, start: 0 }];
  for (let start = 0; start < letters.length; start += 1) {
    let piece = "";
    for (let end = start + 1; end <= Math.min(letters.length, start + longest); end += 1) {
      piece += letters[end - 1];
      const score = best[start].score + (scores.get(piece) ?? -Infinity);
      if (score > (best[end]?.score ?? -Infinity)) best[end] = { score, start };
    }
  }
  const pieces = [];
  for (let end = letters.length; end > 0; end = best[end].start) pieces.unshift(letters.slice(best[end].start, end).join(""));
  return pieces;
}

const JOINED = { bpe: merged, unigram: likeliestPieces };

/** An input that has tokens. Throws an Error in words. */
export function readSome(reader, text, most) {
  const result = reader.readKnown(text, most);
  if (!result.originals.length) throw new Error(t("empty"));
  return result;
}

/**
 * Token numbers, none of them an end or padding, as a text. names: of all tokens. copied(place): what the source says where
 * the token at this place looked most; without it an unknown token stays unknown.
 */
export function written(ids, writing, names, copied) {
  const { join, rules, special, pieces, skipped, unknown, over_bytes: overBytes, byte_fallback: byteFallback } = writing;
  const textOf = (number, place) => number === unknown ? copied(place) : pieces && number >= special ? pieces[number - special] : names[number];
  const parts = ids.map((number, place) => skipped.includes(number) ? null : textOf(number, place)).filter((part) => part !== null);
  if (overBytes) return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(parts.join(""), (letter) => BYTES.get(letter)));
  return ruled((byteFallback ? withoutBytes(parts) : parts).join(join), rules);
}

/** Pieces with each run of bytes as its text, or as a sign for each byte if they are not UTF-8. */
function withoutBytes(parts) {
  const texts = [];
  for (let start = 0, end = 0; start < parts.length; start = end) {
    while (end < parts.length && FALLBACK.has(parts[end]) === FALLBACK.has(parts[start])) end += 1;
    const run = parts.slice(start, end);
    texts.push(...(FALLBACK.has(run[0]) ? [spelledBy(run)] : run));
  }
  return texts;
}

function spelledBy(run) {
  try {
    return new TextDecoder("utf-8", { ignoreBOM: true, fatal: true }).decode(Uint8Array.from(run, (piece) => FALLBACK.get(piece)));
  } catch {
    return "\ufffd".repeat(run.length);
  }
}
