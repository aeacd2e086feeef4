// The edits in force at each model, by the switch and the keys of the map of the model, cuts of cells and the panel; each is carried out at once.
import { painted } from "kit/elements.js";
import { siteHidden } from "./sites.js";

const inForce = new Map(); // view index -> {edits, result, error, busy, turn}
const none = { edits: [], result: null, error: "", busy: false };

/** Of one view: {edits, result, error, busy}. result: {edits, view: {sites}, effect} of the edits that were carried out last; sites: those that changed. */
export const editsOf = (index) => inForce.get(index) ?? none;
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
export const isInForce = (index, edit) => editsOf(index).edits.some((other) => same(edit, other));

/** 1 where a query may not look at a key, also by an edit; null where nothing is hidden. A head that is off has no weights. */
export function hiddenUnder(index, site, head) {
  const hidden = siteHidden(site);
  const [rows, columns] = site.shape;
  const removed = editsOf(index).result?.edits ?? [];
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
export async function setEdits(app, index, edits, way = "push") {
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
  let carried = null;
  try {
    // the answer at once, or later if it is written token by token; what it is held against takes some twenty forwards
    const [draft, answer, compared] = [{ draft: true, controls: false }, { controls: false }, { controls: true }];
    const stages = app.live && view.says === "written" ? [draft, answer, compared] : [answer, compared];
    for (const stage of stages) {
      let result;
      do { // another request ends controls: they are asked for again after it
        result = await app.post("/api/surgery", { ...asked, ...stage });
        if (!current()) return;
      } while (result.effect.interrupted);
      carried = { ...result, edits };
      put({ busy: stage !== compared, result: carried }, stage === stages[0] ? "edits" : "asked");
      await painted();
    }
  } catch (error) {
    if (current()) put({ busy: false, result: carried, error: error.message });
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
