// The report of `jarilab compare`: its sections, drawn from the JSON in this page, and again in the other language.
import { onNightfall } from "kit/draw.js";
import { byId, refill } from "kit/elements.js";
import { chosenLanguage, language } from "kit/words.js";
import { accuracy } from "./accuracy.js";
import { digits } from "./digits.js";
import { drawHeader } from "./header.js";
import { fitHero } from "./hero.js";
import { learning } from "./learning.js";
import { run } from "./run.js";
import { why } from "./why.js";

/** {id, name(), draw() -> a section or null, fit() once its width is known}. */
const SECTIONS = [accuracy, why, digits, learning, run];

function draw() {
  const open = [...document.querySelectorAll("main details")].map((details) => details.open);
  document.documentElement.lang = language();
  const drawn = SECTIONS.map((section) => [section, section.draw()]).filter(([, node]) => node);
  drawHeader(drawn.map(([{ id, name }]) => [id, name()]), languageChanged);
  refill(byId("main"), drawn.map(([, node]) => node));
  // What the reader, or a print, has opened stays open in the other language and in the other colours.
  document.querySelectorAll("main details").forEach((details, place) => { details.open ||= open[place]; });
  fit();
}
function fit() {
  fitHero();
  for (const section of SECTIONS) section.fit?.();
}

/** The address keeps the section that was gone to, and the language where it is not the usual one. */
function writeAddress() {
  const parts = location.hash.slice(1).split("&").filter((part) => part && !part.startsWith("lang="));
  const sections = chosenLanguage() ? [...parts, `lang=${chosenLanguage()}`] : parts;
  try {
    history.replaceState(null, "", `#${sections.join("&")}`);
  } catch { /* a page inside a page (a notebook) has no address of its own */ }
}
function languageChanged() {
  draw();
  writeAddress();
}

draw();
byId(location.hash.slice(1).split("&")[0])?.scrollIntoView();
addEventListener("hashchange", writeAddress);
onNightfall(draw);
addEventListener("beforeprint", () => { for (const details of document.querySelectorAll("details")) details.open = true; });
let width = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === width) return; // drawing changes the height, never the width
  width = document.body.clientWidth;
  fit();
}).observe(document.body);
