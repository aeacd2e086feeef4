// One map of about 300 pixels and a control for the head: how a notebook draws a tape.
import { block } from "kit/blocks.js";
import { adopt, byId, el, svg } from "kit/elements.js";
import { mapDrawing } from "kit/mapdrawing.js";
import { firstPayload } from "kit/payload.js";

const SIDE = 300; // pixels of the map, without its labels
const MARGIN = 8;
const { sites, batch } = firstPayload;
const chooser = byId("head");
const maps = sites.map(({ weights, hidden }) => ({ weights: block(weights), hidden: hidden && block(hidden).data }));
const options = sites.flatMap(({ site }, place) => Array.from({ length: maps[place].weights.shape[0] }, (_, head) => ({ site, place, head })));

function draw() {
  const { site, place, head } = options[chooser.selectedIndex];
  const { weights: { data, shape: [, rows, columns] }, hidden } = maps[place];
  const shown = data.subarray(head * rows * columns, (head + 1) * rows * columns);
  const map = { data: shown, hidden, shape: [rows, columns], options: { scale: "even" } };
  const { node, width, height } = mapDrawing("", map, ...sites[place].sides, [], [], SIDE);
  const name = `${site}, head ${head}`;
  byId("map").replaceChildren(svg("svg", { width: width + MARGIN, height, role: "img", "aria-label": name }, node));
}

chooser.append(...options.map(({ site, head }) => el("option", {}, `${site}, head ${head}`)));
chooser.addEventListener("change", draw);
byId("about").append(batch > 1 ? `input 0 of ${batch}; tape.row(1) is the next` : "");
adopt("body { margin: 0; padding: .5rem; min-height: 0 }", "main { margin: 0; padding: 0 }");
draw();
document.documentElement.dataset.ready = "";
