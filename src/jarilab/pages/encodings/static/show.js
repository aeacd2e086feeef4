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

speak();
document.documentElement.dataset.ready = "";
