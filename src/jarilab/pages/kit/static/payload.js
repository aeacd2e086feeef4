// What the page was told: the JSON that lies in it.
import { byId } from "./elements.js";

export const firstPayload = JSON.parse(byId("payload").textContent);
