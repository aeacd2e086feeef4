// The page of a model.
import { editedNode } from "./edited.js";
import { filesNode } from "./files.js";
import { drawImage, markImage } from "./image.js";
import { begin } from "./main.js";
import { PANELS } from "./panels.js";
import { drawScrub } from "./scrub.js";

begin(PANELS, { drawImage, markImage, drawScrub, filesNode, editedNode });
