// The page of a model.
import { begin } from "./main.js";
import { PANELS } from "./panels.js";

begin(PANELS);
