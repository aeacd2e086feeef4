// What is looked at: the state, its copy in the address, and where data come from (this file, or the server that sent it).
import { visibleKeys } from "kit/draw.js";
import { byId } from "kit/elements.js";
import { clamp, known } from "kit/numbers.js";
import { firstPayload } from "kit/payload.js";
import { chosenLanguage, language } from "kit/words.js";
import { carryEdits, forgetResults, restoreEdits } from "./edits.js";
import { followEffects } from "./effects.js";
import { Model } from "./engines.js";
import { headWeights, PAIRS, siteHidden } from "./sites.js";
import { t } from "./words.js";

/** What a colour stands for: how often the even share of its row a weight is, a weight from 0 to 1, or to the largest shown. */
export const SCALES = ["even", "full", "fit"];
/** What a map shows: the weights, the weights times the values, or what the encoder's output is made of. */
export const DRAWN = ["weights", "valued", "rollout"];
/** What of the page is shown: all of it, or one figure for a lesson. */
export const ONLY = ["all", "map", "model", "answer"];
const CHOICES = { only: ONLY, pair: PAIRS, drawn: DRAWN, scale: SCALES, display: ["map", "lines"], zoom: ["fit", "large"] };
const COUNTS = ["view", "head", "query", "key", "top", "first", "second"];
const ASK_QUEUE_MS = 1000;
const FLAGS = ["heads", "every", "cutting", "plain"];
const PLACE = ["view", "site", "head", "query", "key"]; // once effects are known, a server opens at another head
const WAYPOINTS = ["view", "site", "head", "drawn", "display", "panel", "steps", "input", "first", "second", "edited"]; // a way back is kept for these

const { view, site, head, query, key } = firstPayload; // what the page opens at
const defaults = {
  view, site, head, query, key,
  only: "all", pair: "all", scale: "even",
  drawn: "weights", display: "map", zoom: "fit", top: 3, heads: false, every: false, cutting: false, plain: false, first: 0, second: Math.min(1, firstPayload.views.length - 1), panel: "walk", steps: {}, input: firstPayload.views[0].input,
  edited: "", // the edits in force, as edits.js writes them
};

function readAddress() {
  const read = { ...defaults, steps: {} };
  const address = new URLSearchParams(location.hash.slice(1) || firstPayload.state);
  for (const [key, value] of address) {
    if (Object.hasOwn(CHOICES, key) && CHOICES[key].includes(value)) read[key] = value;
    else if (COUNTS.includes(key) && /^\d{1,6}$/.test(value)) read[key] = Number(value);
    else if (FLAGS.includes(key)) read[key] = value === "1";
    else if (["site", "panel", "input", "edited"].includes(key)) read[key] = value;
    else if (key === "steps") for (const [, view, step] of value.matchAll(/(\d+):(\d+)/g)) read.steps[view] = Number(step);
  }
  return read;
}
function writeAddress(keepsWay) {
  const address = new URLSearchParams();
  for (const [key, value] of Object.entries(app.state)) {
    const steps = key === "steps" && Object.entries(value).map((pair) => pair.join(":")).join(" ");
    const words = steps || (value === true ? "1" : value === false ? "0" : value);
    if (key === "steps" ? steps : known(value) && (value !== defaults[key] || (app.live && PLACE.includes(key)))) address.set(key, words);
  }
  if (chosenLanguage()) address.set("lang", chosenLanguage());
  try {
    history[keepsWay ? "pushState" : "replaceState"](null, "", `#${address}`);
  } catch { /* a page inside a page (a notebook) has no address of its own */ }
}

/** Make the state point at something that exists. */
function fitState() {
  const { state } = app;
  const count = app.payload.views.length;
  state.view = clamp(state.view, 0, count - 1);
  state.first = clamp(state.first, 0, count - 1);
  state.second = clamp(state.second, 0, count - 1);
  const { sites } = app.view();
  const wanted = /^(\w+)\.\d+/.exec(state.site)?.[1];
  if (!sites.some((site) => site.site === state.site)) state.site = (sites.find((site) => site.site.startsWith(wanted)) ?? sites[0]).site;
  const site = app.site();
  state.head = clamp(state.head, 0, site.heads - 1);
  state.query = clamp(state.query, 0, site.shape[0] - 1);
  state.key = clamp(state.key, 0, site.shape[1] - 1);
}

/** The cell of a head that is farthest above the even share of its row. */
function startCell(site, head) {
  const [rows, columns] = site.shape;
  const weights = headWeights(site, head);
  const keys = visibleKeys({ hidden: siteHidden(site) }, rows, columns);
  const best = weights.reduce((top, weight, at) => weight * keys[Math.floor(at / columns)] > weights[top] * keys[Math.floor(top / columns)] ? at : top, 0);
  return { query: Math.floor(best / columns), key: best % columns };
}

const detailsOf = new WeakMap(); // view -> {promise, found} by site and head

/** Where the details of the open head are: {detail}, {why} they cannot be had, or {promise} and what came of it, {found}. */
function findDetail(index, again = false) {
  const [view, site, { head, query }] = [app.view(index), app.site(index), app.state];
  if (!site || head >= site.heads) return { why: t("noHead", app.state.site, head, view.sites[0].site) };
  const saved = site.details?.[head];
  if (saved && !(app.live && known(saved.query) && saved.query !== query)) return { detail: saved };
  if (!app.live) return { why: t("notInFile") };
  if (!detailsOf.has(view)) detailsOf.set(view, new Map());
  const cache = detailsOf.get(view);
  const step = view.model === "recurrent" ? { query } : {}; // a recurrent decoder computes one query at a time
  const name = [site.site, head, ...Object.values(step)].join(" ");
  if (!cache.has(name) || (again && cache.get(name).found?.why)) {
    const promise = app.post("/api/head", { input: view.input, view: index, site: site.site, head, step: view.step, ...step });
    const entry = { promise, found: null };
    cache.set(name, entry);
    promise.then((detail) => { entry.found = { detail }; }, (error) => { entry.found = { why: error.message }; });
  }
  return cache.get(name);
}

// What a saved page computes by itself ---------------------------------------------------------------------------------

const engines = new Map(); // view index -> its Model, or the Error that says why there is none

/** Make the models in this file ready, each held against what Python wrote. */
export async function startEngines() {
  for (const [index, view] of firstPayload.views.entries()) {
    if (!view.engine) continue;
    try {
      engines.set(index, await Model.open(index, view));
    } catch (error) {
      engines.set(index, error);
    }
  }
  if (engines.size) app.onchange(new Set(["engines"]));
}
/** The engine of a view, while its training step is the one that the file carries; otherwise null. */
function engineOf(index) {
  const engine = engines.get(index);
  return engine instanceof Model && engine.view.step === app.view(index)?.step ? engine : null;
}
/** What a saved page asks itself: the same requests that a live one sends. */
const HERE = {
  "/api/surgery": ({ view, input, edits, controls }) => engineOf(view).operate(input, edits, controls),
  "/api/look": async ({ input }) => {
    const views = [];
    for (const engine of engines.values()) views.push(await engine.look(input));
    return { views, noise: null };
  },
};

let previewed = null;
let latest = 0; // only the last answer to a look is shown

export const app = {
  payload: firstPayload, state: readAddress(), live: firstPayload.live, panels: [], onchange: () => {}, onspot: () => {},
  get language() { return language(); },
  view: (index = app.state.view) => app.payload.views[index],
  site: (index = app.state.view) => app.payload.views[index]?.sites.find((site) => site.site === app.state.site) ?? null,

  set(patch) {
    previewed = null;
    const before = { ...app.state };
    Object.assign(app.state, patch);
    fitState();
    const changed = new Set(Object.keys(app.state).filter((key) => app.state[key] !== before[key]));
    if (!changed.size) return;
    writeAddress(WAYPOINTS.some((key) => changed.has(key)));
    app.onchange(changed);
  },
  /** Show the maps of another head, and nothing else of it; null: of the one that is open. */
  preview(spot) {
    const kept = app.state;
    if (spot === previewed) return;
    previewed = spot;
    app.state = { ...kept, ...spot };
    fitState();
    app.onchange(new Set(["preview"]));
    app.state = kept;
  },
  /** Keep the edits in force in the address. keepsWay: a way back leads to those before. */
  rememberEdits(edited, keepsWay) {
    if (edited === app.state.edited) return;
    app.state.edited = edited;
    writeAddress(keepsWay);
  },
  replaceViews(payload) {
    const { input } = app.view(0);
    app.payload = { ...app.payload, ...payload };
    app.state.input = app.view(0).input;
    fitState();
    if (input !== app.state.input) Object.assign(app.state, startCell(app.site(), app.state.head));
    writeAddress(false);
    forgetResults();
    app.onchange(new Set(["views"]));
    followEffects(app);
    carryEdits(app, input !== app.state.input);
  },
  /** Whether edits of this view can be carried out, and why not: {yes} or {why}; {never}: nor on a page that is live. */
  computing(index = app.state.view) {
    const engine = engines.get(index);
    const uneditable = app.view(index)?.uneditable;
    if (uneditable) return { never: true, why: uneditable[language() === "ko" ? 1 : 0] };
    if (app.live || engineOf(index)) return { yes: true, apart: engine?.apart };
    if (engine instanceof Error) return { why: engine.message };
    return { why: null, otherStep: Boolean(engine) };
  },
  /** Whether other inputs can be read: by a server, or by all models of this file. */
  reading: () => app.live || (engines.size === app.payload.views.length && app.payload.views.every((_, index) => engineOf(index)?.reads)),
  async post(path, body) {
    if (!app.live) {
      if (!Object.hasOwn(HERE, path)) throw new Error(t("notLive"));
      return HERE[path](body);
    }
    let answer;
    const ticket = String(Math.random());
    const asking = setInterval(() => sayQueue(ticket), ASK_QUEUE_MS);
    try {
      const response = await fetch(`${path}?ticket=${ticket}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      answer = await response.json();
      sayTiming(response.headers.get("Server-Timing"));
    } catch {
      throw new Error(t("noServer"));
    } finally {
      clearInterval(asking);
      byId("queue").replaceChildren();
    }
    if (answer.error) throw new Error(answer.error);
    return answer;
  },
  detail(index = app.state.view) {
    const { detail, why, promise } = findDetail(index, true);
    return promise ?? (why ? Promise.reject(new Error(why)) : Promise.resolve(detail));
  },
  /** The same at once: {detail}, or {why} it is not there; where it is only awaited, maps are drawn again when it comes. */
  opened(index) {
    const { promise, found, ...here } = findDetail(index);
    if (!promise) return here;
    if (!found) promise.catch(() => {}).then(() => app.onchange(new Set(["drawn"])));
    return found ?? { why: t("wait") };
  },
};

/** Show the models for an input at training steps: asked from the server, or the frame that lies in this file. */
export async function look(patch) {
  const wanted = { input: app.state.input, steps: app.state.steps, ...patch };
  const turn = latest += 1;
  say("");
  delete document.documentElement.dataset.stale;
  if (!app.live && (patch.steps || !app.reading())) {
    const frames = app.payload.frames ?? [];
    const step = Object.values(wanted.steps)[0] ?? frames.at(-1)?.step;
    const frame = frames.find((one) => one.step === step);
    const isFirst = firstPayload.views.every((view, index) => view.step === (wanted.steps[index] ?? step));
    if (!isFirst && !frame) return;
    app.set({ steps: wanted.steps });
    // the views that the file opens with have more details
    app.replaceViews({ views: isFirst ? firstPayload.views : frame.views });
    return;
  }
  document.documentElement.setAttribute("aria-busy", "true");
  try {
    const payload = await app.post("/api/look", { input: wanted.input, steps: wanted.steps });
    if (turn !== latest) return;
    app.set(wanted);
    app.replaceViews(payload);
  } catch (error) {
    if (turn !== latest) return;
    say(error.message);
    document.documentElement.dataset.stale = ""; // what is shown answers another input than the one that was asked for
  } finally {
    if (turn === latest) document.documentElement.removeAttribute("aria-busy");
  }
}
/** Show how many requests the server answers before this one. */
async function sayQueue(ticket) {
  const { ahead } = await fetch(`/api/queue?ticket=${ticket}`).then((response) => response.json(), () => ({}));
  byId("queue").replaceChildren(ahead ? t("queued", ahead) : "");
}
/** Show where the time of the last answer went. */
function sayTiming(header) {
  const seconds = [...(header ?? "").matchAll(/dur=([\d.]+)/g)].map(([, ms]) => (ms / 1000).toFixed(2));
  byId("timing").replaceChildren(seconds.length ? t("timing", ...seconds) : "");
}
const say = (message) => byId("error").replaceChildren(message);

/** Follow the address; ask for what it names where that is not what is shown. */
function followBack() {
  const before = app.state;
  app.state = readAddress();
  const { input, steps } = app.state;
  const otherSteps = JSON.stringify(steps) !== JSON.stringify(before.steps);
  const elsewhere = otherSteps || input !== app.view(0).input;
  fitState();
  app.onchange(new Set(Object.keys(app.state).filter((key) => JSON.stringify(app.state[key]) !== JSON.stringify(before[key]))));
  if (elsewhere) lookAsAddressed(otherSteps ? { input, steps } : { input }).then(() => restoreEdits(app));
  else restoreEdits(app);
}
/** Show what the address names, and open its cell. */
export async function lookAsAddressed(patch) {
  const { query, key } = readAddress();
  await look(patch);
  app.set({ query, key });
}
export function followAddress() {
  const { input, steps } = app.state;
  addEventListener("popstate", followBack);
  if (app.live) writeAddress(false);
  if ((app.reading() && input !== app.view(0).input) || Object.keys(steps).length) lookAsAddressed({ input, steps });
}
export function languageChanged() {
  writeAddress(false);
  app.onchange(new Set(["language"]));
}
fitState();
