// The models of a saved page, which a worker runs. Its script lies in the page as text.
import { byId } from "kit/elements.js";
import { language, speaking } from "kit/words.js";

const t = speaking({
  noWorker: ["this browser does not let the page compute in a worker", "이 브라우저에서는 페이지가 워커로 계산할 수 없습니다"],
});

const waiting = new Map(); // number of a request -> [resolve, reject]
let asked = 0;
let worker = null;

function start() {
  const given = JSON.stringify({ language: language(), base: document.baseURI });
  const script = new Blob([`globalThis.workerPayload=${given};\n`, byId("worker").textContent], { type: "text/javascript" });
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
function ask(name, ...request) {
  return new Promise((resolve, reject) => {
    try {
      worker ??= start();
    } catch {
      reject(new Error(t("noWorker")));
      return;
    }
    waiting.set(asked += 1, [resolve, reject]);
    worker.postMessage({ number: asked, name, request });
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
