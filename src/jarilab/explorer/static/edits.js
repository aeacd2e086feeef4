// The edits in force at each model, by the switch and the keys of the map of the model, cuts of cells and the panel; each is carried out at once.
import { pressable } from "kit/controls.js";
import { el, painted } from "kit/elements.js";
import { known, percent } from "kit/numbers.js";
import { answerNode, token, tokenNode } from "kit/tokens.js";
import { speaking } from "kit/words.js";
import { signed } from "./effects.js";
import { answerOf, siteHidden } from "./sites.js";
import { WORDS } from "./words.js";

const t = speaking({
  headOff: ["{0} head {1} off", "{0} 헤드 {1} 끔"],
  place: ["{0}: {1}", "{0}: {1}"],
  places_source: ["positions of the source", "입력의 위치"],
  places_target: ["positions of the target", "출력의 위치"],
  places_both: ["positions", "위치"],
  how_off: ["all 0", "모두 0"],
  how_shift: ["moved by {0}", "{0} 이동"],
  how_stretch: ["stretched by {0}", "{0}배 늘임"],
  how_shuffle: ["shuffled", "뒤섞음"],
  tokenOff: ["no query sees {0} ({1})", "모든 쿼리에게 숨긴 키: {0} ({1})"],
  how_erase: ["{0}: query {1} no longer sees key {2}", "{0}: 쿼리 {1} → 키 {2}, 끊음"],
  how_force: ["{0}: query {1} sees only key {2}", "{0}: 쿼리 {1} → 키 {2}, 이 키만 봄"],
  allHeads: ["{0}, all heads", "{0}, 모든 헤드"],
  becomes: ["instead of {0}", "원래는 {0}"],
  same: ["as before", "그대로"],
  likelihood: ["Log-probability of the answer before: {0}.", "처음 답의 로그 확률: {0}."],
  likelihood_words: ["Log-probability of the words of the text: {0}.", "글에 있는 낱말들의 로그 확률: {0}."],
  likelihood_labels: ["Log-probability of the classes before: {0}.", "처음 분류들의 로그 확률: {0}."],
  ofOne: ["{0} nats", "{0} nat"], ofMany: ["{0} nats a token, most at {1} ({2})", "토큰마다 {0} nat, 가장 크게는 {1}에서({2})"],
  beside: ["A larger effect than {0} of {1} edits of the same kind at random other places.", "무작위로 고른 다른 자리의 같은 편집 {1}개 가운데 {0}개보다 효과가 큽니다."],
  remove: ["Undo: {0}", "되돌리기: {0}"],
  restore: ["Undo all", "모두 되돌리기"],
}, WORDS);

const inForce = new Map(); // view index -> {edits, result, error, busy, turn}
const none = { edits: [], result: null, error: "", busy: false };

/** Of one view: {edits, result, error, busy}. result: {view: {sites}, effect} of these edits, once they were carried out. */
export const editsOf = (index) => inForce.get(index) ?? none;
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
export const isInForce = (index, edit) => editsOf(index).edits.some((other) => same(edit, other));

/** 1 where a query may not look at a key, also by an edit; null where nothing is hidden. A head that is off has no weights. */
export function hiddenUnder(index, site, head) {
  const hidden = siteHidden(site);
  const [rows, columns] = site.shape;
  const removed = editsOf(index).result ? editsOf(index).edits : [];
  const isRemoved = (edit) => edit.kind === "head" ? edit.site === site.site && edit.head === head
    : edit.kind === "token" ? edit.side === site.keys : edit.how === "erase" && edit.site === site.site && (edit.head ?? head) === head;
  const edits = removed.filter(isRemoved);
  if (!edits.length || site.pooled > 1) return edits.some(({ kind }) => kind === "head") ? new Uint8Array(rows * columns).fill(1) : hidden;
  const all = Uint8Array.from(hidden ?? new Uint8Array(rows * columns));
  for (const { kind, query, key } of edits) {
    if (kind === "head") all.fill(1);
    else if (kind === "link") all[query * columns + key] = 1;
    else for (let at = key; at < all.length; at += columns) all[at] = 1;
  }
  return all;
}

/** The site with its weights as they are drawn: under the edits, where there are some. */
export const drawnSite = (index, site) => editsOf(index).result?.view.sites.find((other) => other.site === site.site) ?? site;

export const headEdit = (site, head) => ({ kind: "head", site, head });
export const linkEdit = (site, head, query, key, how = "erase") => ({ kind: "link", site, head, query, key, how });

export const tokenEdit = (side, key) => ({ kind: "token", side, key });

/** Whether the head is off, or nobody sees the key: there is no link to cut then. */
export const isGone = (index, site, head, key) => [headEdit(site.site, head), tokenEdit(site.keys, key)].some((edit) => isInForce(index, edit));

/** Put an edit in force, or take it back. */
export function toggleEdit(app, index, edit) {
  const { edits } = editsOf(index);
  return setEdits(app, index, isInForce(index, edit) ? edits.filter((other) => !same(other, edit)) : [...edits, edit]);
}

const MAX_UNDO = 100;
const earlier = []; // what was in force before each change
const written = () => {
  const there = [...inForce].filter(([, { edits }]) => edits.length).map(([index, { edits }]) => [index, edits]);
  return there.length ? JSON.stringify(there) : "";
};
/** The edits that an address names, by view; none where it is not what `written` wrote. */
function read(text) {
  try {
    const isEdit = (edit) => edit && typeof edit === "object" && typeof edit.kind === "string";
    return new Map(JSON.parse(text || "[]").filter(([index, edits]) => Number.isInteger(index) && Array.isArray(edits) && edits.every(isEdit)));
  } catch {
    return new Map();
  }
}
/** Put those edits in force that the address names. */
export function restoreEdits(app) {
  const wanted = read(app.state.edited);
  for (const index of app.payload.views.keys()) {
    const edits = wanted.get(index) ?? [];
    if (app.computing(index).yes && !same(edits, editsOf(index).edits)) setEdits(app, index, edits, null);
  }
}
/** Take the last change of the edits back; whether there was one. */
export function undoEdit(app) {
  if (!earlier.length) return false;
  app.rememberEdits(earlier.pop(), true);
  restoreEdits(app);
  return true;
}

/** Carry out just these edits at a view; what is shown follows. way: "push" or "replace" in the history, or null for neither. */
async function setEdits(app, index, edits, way = "push") {
  const before = written();
  const turn = (inForce.get(index)?.turn ?? 0) + 1;
  const put = (patch, change = "edits") => {
    inForce.set(index, { ...inForce.get(index), ...patch });
    app.onchange(new Set([change]));
  };
  const remember = () => {
    if (!way) return;
    if (way === "push" && earlier.push(before) > MAX_UNDO) earlier.shift();
    app.rememberEdits(written(), way === "push");
  };
  const view = app.view(index);
  if (!edits.length) put({ edits, turn, error: "", busy: false, result: null });
  else put({ edits, turn, error: "", busy: true }, "asked"); // the maps are drawn again when they are known
  remember();
  if (!edits.length) return;
  const current = () => inForce.get(index).turn === turn;
  const asked = { input: view.input, view: index, step: view.step, edits };
  try {
    for (const controls of [false, true]) { // the answer at once; what it is held against takes some twenty forwards
      let result;
      do { // another request ends controls: they are asked for again after it
        result = await app.post("/api/surgery", { ...asked, controls });
        if (!current()) return;
      } while (result.effect.interrupted);
      put({ busy: !controls, result }, controls ? "asked" : "edits");
      await painted();
    }
  } catch (error) {
    if (current()) put({ busy: false, result: null, error: error.message });
  }
}

/** Other inputs or steps come: what edits did to those before is not drawn any more. */
export function forgetResults() {
  for (const [index, state] of inForce) inForce.set(index, { ...state, result: null });
}

/** After other inputs or steps came: heads stay off and tokens moved, but a link or a token meant one of the input before. */
export function carryEdits(app, otherInput) {
  for (const [index, { edits }] of [...inForce]) {
    if (!edits.length) continue;
    setEdits(app, index, app.view(index) && app.computing(index).yes ? edits.filter((edit) => !otherInput || ["head", "place"].includes(edit.kind)) : [], "replace");
  }
}

/** An edit in words. */
function wordsOfEdit(edit, { sides }) {
  if (edit.kind === "place") return t("place", t(`places_${edit.side}`), t(`how_${edit.how}`, edit.amount ?? ""));
  if (edit.kind === "head") return t("headOff", edit.site, edit.head);
  if (edit.kind === "token") return t("tokenOff", token(sides[edit.side]?.tokens[edit.key] ?? ""), edit.key);
  const where = known(edit.head) ? t("headName", edit.site, edit.head) : t("allHeads", edit.site);
  return t(`how_${edit.how}`, where, edit.query, edit.key);
}

/** What is in force at a view and what it did to the answer, for its card; null where there is nothing. */
export function editedNode(app, index, where = "card") {
  const { edits, result, error, busy } = editsOf(index);
  if (!edits.length) return null;
  const chips = edits.map((edit, place) => {
    const button = pressable(`undo ${where} ${index} ${place}`, "×", () => toggleEdit(app, index, edit));
    const words = wordsOfEdit(edit, app.view(index));
    button.setAttribute("aria-label", t("remove", words));
    return el("span", { class: "edit" }, `✂ ${words} `, button);
  });
  const all = edits.length > 1 ? pressable(`undo ${where} ${index}`, t("restore"), () => setEdits(app, index, [])) : null;
  return el("div", { class: "edited", role: "status" }, el("p", {}, chips, all), error ? el("p", { class: "error" }, error) : busy && !result ? el("p", {}, t("wait")) : result && whatItDid(app, index, result));
}

/** What edits changed in the log-probability of the answer before: the mean of its tokens, and the token that changed most. */
export function likelihoodNode({ says }, { log_probability: log, tokens }) {
  const size = signed((log.after - log.before) / tokens.length);
  const each = tokens.map(({ token: text, before, after }) => [text, Math.log(after) - Math.log(before)]).filter(([, change]) => Number.isFinite(change));
  const [text, change] = each.reduce((one, other) => Math.abs(other[1]) > Math.abs(one[1]) ? other : one, ["", 0]);
  return t.parts(["words", "labels"].includes(says) ? `likelihood_${says}` : "likelihood", tokens.length > 1 ? t.parts("ofMany", size, tokenNode(text), signed(change)) : t("ofOne", size));
}

function whatItDid(app, index, { effect }) {
  const before = app.view(index).answer;
  const { answer, controls, divergence } = effect;
  const changed = known(answer) && answer !== before;
  const now = known(answer) && el("p", { class: "answer" }, `${t(answerOf(app.view(index)))} `, answerNode(answer, 120, { class: `token big ${changed ? "changed" : ""}` }), " ",
    changed ? t.parts("becomes", tokenNode(before)) : t("same"));
  const change = el("span", {}, effect.log_probability ? likelihoodNode(app.view(index), effect) : t("vectorsMoved", percent(divergence)), " ");
  const smaller = controls?.filter((control) => control.divergence < divergence).length;
  return [now, el("p", { class: "note" }, change, controls?.length ? t("beside", smaller, controls.length) : "")];
}
