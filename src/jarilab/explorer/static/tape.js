// The page of a tape, which has no model: what needs one is left out.
import { begin } from "./main.js";
import { panel as measures } from "./panels/measures.js";

begin([measures]);
