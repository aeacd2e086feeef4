// A model in an ONNX file beside the page, run by ONNX Runtime Web, whose files lie there too. Nothing else is asked for.
import { inputsOf } from "./program.js";
import { firstPayload } from "./payload.js";
import { speaking } from "./words.js";

const t = speaking({
  fromDisk: ["its model is in a file beside the page, which a browser reads only from a server: run python -m http.server in its folder, and open http://localhost:8000/",
    "모델이 페이지 옆의 파일에 있는데, 브라우저는 그런 파일을 서버를 통해서만 읽습니다. 그 폴더에서 python -m http.server 를 실행하고 http://localhost:8000/ 을 여세요"],
  noWasm: ["this browser has no WebAssembly, which the model needs", "이 브라우저에는 모델을 실행할 WebAssembly가 없습니다"],
  missing: ["{0} cannot be read beside this page; put the whole folder there", "페이지 옆에서 {0} 파일을 읽을 수 없습니다. 폴더를 통째로 두세요"],
});

export const ONNX = "jari onnx 1";
const BASE = firstPayload.base; // of the page, which is not the worker's
const RUNTIME = "onnxruntime/";
const MODULE = "ort.wasm.min.mjs";

/** A number of an input as the runtime holds it. */
const ARRAYS = { int64: (data) => BigInt64Array.from(data, BigInt), bool: (data) => Uint8Array.from(data), float32: (data) => Float32Array.from(data) };

/** The same as a `Program`, but for `run`, which is awaited. */
export class OnnxProgram {
  /** Throws an Error, in words, where the browser cannot run it or a file is missing. */
  static async open(source) {
    if (BASE.startsWith("file:")) throw new Error(t("fromDisk"));
    if (typeof WebAssembly !== "object") throw new Error(t("noWasm"));
    const runtime = new URL(RUNTIME, BASE).href;
    let ort;
    try {
      ort = await import(runtime + MODULE);
    } catch {
      throw new Error(t("missing", RUNTIME + MODULE));
    }
    ort.env.wasm.wasmPaths = runtime;
    ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? 0 : 1; // 0: as many as there are cores
    const held = await bytesOf(source.file);
    try {
      return new OnnxProgram(source, ort, await ort.InferenceSession.create(held, { executionProviders: ["wasm"] }));
    } catch (error) {
      throw new Error(`ONNX Runtime: ${error.message}`, { cause: error });
    }
  }
  constructor(source, ort, session) {
    Object.assign(this, { source, ort, session, lengths: source.lengths, sites: source.sites, turn: Promise.resolve() });
  }

  /** As `Program.run`. One after the other: a session runs once at a time. */
  run({ edits = [], ...inputs }) {
    const result = this.turn.then(() => this.forward(inputs, edits));
    this.turn = result.catch(() => {});
    return result;
  }
  async forward(inputs, edits) {
    const tensors = inputsOf(this, inputs, edits).map(({ dtype, shape, data }) => new this.ort.Tensor(dtype, ARRAYS[dtype](data), shape));
    const { inputNames, outputNames } = this.session;
    const outputs = await this.session.run(Object.fromEntries(inputNames.map((name, place) => [name, tensors[place]])));
    const [scores, ...weights] = outputNames.map((name) => ({ shape: outputs[name].dims.slice(1), data: outputs[name].data })); // a batch of one
    return { scores, weights: Object.fromEntries(this.sites.map((site, place) => [site, weights[place]])) };
  }
}

async function bytesOf(file) {
  const answer = await fetch(new URL(file, BASE)).catch(() => null);
  if (!answer?.ok) throw new Error(t("missing", file));
  return new Uint8Array(await answer.arrayBuffer());
}
