// What the page was told: the JSON that lies in it; in a worker, what the page gave it.
import { byId } from "./elements.js";

export const firstPayload = globalThis.workerPayload ?? JSON.parse(byId("payload").textContent);
