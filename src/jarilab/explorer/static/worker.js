// What runs beside a saved page: its models, so that no forward keeps the page from answering.
import { Engine } from "./engine.js";

const engines = new Map(); // view index -> its Engine

const ANSWERS = {
  open: async (index, view) => {
    const engine = await Engine.open(view);
    engines.set(index, engine);
    return { apart: engine.apart, reads: engine.reads };
  },
  operate: (index, ...request) => engines.get(index).operate(...request),
  look: (index, input) => engines.get(index).look(input),
};

globalThis.addEventListener("message", async ({ data: { number, name, request } }) => {
  try {
    postMessage({ number, result: await ANSWERS[name](...request) });
  } catch (error) {
    postMessage({ number, error: error.message });
  }
});
