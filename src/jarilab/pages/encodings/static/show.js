// Both languages stand in the page: this chooses one, for what is seen and for what is read aloud.
import { byId, refill } from "kit/elements.js";
import { language, languageButton } from "kit/words.js";

function speak() {
  const now = language();
  document.documentElement.lang = now;
  for (const drawing of document.querySelectorAll("svg.drawing")) {
    const title = drawing.dataset[now];
    drawing.setAttribute("aria-label", title);
    drawing.querySelector("title").textContent = title;
  }
  refill(byId("language"), languageButton(speak));
}

/** Show one drawing, for a lesson: #only= and the name of its file. */
function frame() {
  const wanted = new URLSearchParams(location.hash.slice(1)).get("only");
  const figures = [...document.querySelectorAll("figure")];
  const one = figures.find((figure) => figure.id === wanted);
  document.documentElement.toggleAttribute("data-only", Boolean(one));
  for (const part of [...document.querySelectorAll("section"), ...figures]) part.hidden = Boolean(one) && !part.contains(one);
}

addEventListener("hashchange", frame);
speak();
frame();
document.documentElement.dataset.ready = "";
