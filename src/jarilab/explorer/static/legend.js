// The colour scale below the maps, and what it says.
import { LARGEST_TIMES, legendNode } from "kit/draw.js";
import { byId, el } from "kit/elements.js";
import { t } from "./words.js";

/** panes: of map.js. drawn: what the maps show. */
export function drawLegend({ state }, panes, drawn) {
  const shown = panes.find((pane) => pane.kind === "map");
  if (!shown || state.display === "lines") return byId("legend").replaceChildren();
  const isEven = shown.options.scale === "even";
  const keys = shown.site.shape[1] * shown.site.pooled;
  const hidden = panes.some((pane) => pane.hidden) && t(panes.some((pane) => pane.leftOut) ? "leftOutKey" : "hiddenKey");
  const legend = legendNode(shown.options, t(isEven ? "evenShare" : `drawn_${drawn}`), hidden);
  if (isEven && keys < LARGEST_TIMES) legend.append(el("p", {}, t("shortRows", keys)));
  return byId("legend").replaceChildren(legend);
}
