// The command that makes what is shown: all runs, the input, the head that is open, and the step of training.
import { refill } from "kit/elements.js";
import { known } from "kit/numbers.js";
import { commandNode } from "kit/proof.js";
import { imageOf, inputName, isDropped } from "./sites.js";
import { t } from "./words.js";

/** A word of a POSIX shell. One that begins with a dash would be an option. */
const quoted = (text) => /^[\w+.,:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
const valued = (flag, text) => text.startsWith("-") ? `${flag}=${quoted(text)}` : `${flag} ${quoted(text)}`;

/** What names all models: the folders of runs, and others by their option. */
export const runsOf = (app) => app.payload.views.flatMap((view) => view.words.map(quoted)).join(" ");

/** The step that all runs are shown at, where it is not the newest of each. */
function stepOf({ payload: { views } }) {
  const [{ step }] = views;
  const newest = views.every((view) => view.step === view.steps.at(-1));
  return newest || views.some((view) => view.step !== step) ? [] : [`--step ${step}`];
}

const pathOf = (input) => isDropped(input) ? t("dropped") : input;

/** The command that opens live what is shown here. */
export function commandOf(app) {
  const view = app.view(0);
  const image = view.with_image ? [valued("--image", pathOf(imageOf(view)))] : [];
  const { site, head } = app.state;
  return ["jarilab explore", runsOf(app), ...image, valued("--input", view.with_image ? inputName(view) : pathOf(view.input)), ...stepOf(app), `--site ${quoted(site)} --head ${head}`].join(" ");
}

/** Below a saved page: the command that makes it again. */
export function drawAgain(root, app) {
  const { again } = app.payload;
  if (!known(again)) return;
  const flags = again.map((word) => quoted(word));
  const file = decodeURIComponent(location.pathname.split("/").at(-1));
  const saved = app.payload.folder ? "page/" : file.endsWith(".html") ? file : "page.html";
  refill(root, t("again"), commandNode([commandOf(app), ...flags, valued("--save", saved)].join(" "), "copy command"));
}
