// The models of a saved page, which a worker runs. Its script lies in the page as text.
import { unpacked } from "kit/blocks.js";
import { byId } from "kit/elements.js";
import { language, speaking } from "kit/words.js";

const t = speaking({
  noWorker: ["this browser does not let the page compute in a worker", "이 브라우저에서는 페이지가 워커로 계산할 수 없습니다"],
});

const waiting = new Map(); // number of a request -> [resolve, reject]
let asked = 0;
let worker = null; // a promise of it

async function start() {
  const given = JSON.stringify({ language: language(), base: document.baseURI });
  const code = await unpacked(byId("worker").textContent);
  const script = new Blob([`globalThis.workerPayload=${given};\n`, code], { type: "text/javascript" });
  const started = new Worker(URL.createObjectURL(script));
  started.addEventListener("message", ({ data: { number, result, error } }) => {
    const [resolve, reject] = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error));
    else resolve(result);
  });
  started.addEventListener("error", () => {
    for (const [, reject] of waiting.values()) reject(new Error(t("noWorker")));
    waiting.clear();
  });
  return started;
}
async function ask(name, ...request) {
  worker ??= start().catch(() => { throw new Error(t("noWorker")); });
  const ready = await worker;
  return new Promise((resolve, reject) => {
    waiting.set(asked += 1, [resolve, reject]);
    ready.postMessage({ number: asked, name, request });
  });
}

/** The model of a view. apart: its largest difference from Python. reads: whether it can read other inputs. */
export class Model {
  /** Throws an Error for people to read if the page cannot compute this view, or not as Python did. */
  static async open(index, view) {
    const { why } = view.engine;
    if (why) throw new Error(why[language() === "ko" ? 1 : 0]);
    return new Model(index, view, await ask("open", index, view));
  }
  constructor(index, view, { apart, reads }) { Object.assign(this, { index, view, apart, reads }); }

  /** The view of another input. */
  look(input) { return ask("look", this.index, input); }
  /** The answer and the maps under edits. */
  operate(input, edits, controls) { return ask("operate", this.index, input, edits, controls); }
}
