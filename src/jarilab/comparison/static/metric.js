// What runs are judged by.
import { firstPayload } from "web/payload.js";

export const metric = firstPayload.task?.metric ?? { name: "", title: "" };
export const exact = metric.name === "exact_match";
