// How elements are made, filled and styled.
// Names, tokens and answers come from elsewhere: they reach the page only as text nodes and drawings.
import { known } from "./numbers.js";

export const byId = (id) => document.getElementById(id);

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key.replace(/^on/, ""), value);
    else if (value !== false && known(value)) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => known(child) && child !== false));
  return node;
}
/** A new element; attributes: on* are listeners, false, null and undefined are left out. Strings become text nodes. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(byId("namespace").namespaceURI, tag), attributes, children);
}

/** Set custom properties or styles, which no attribute may (the policy allows no inline style). */
export function styled(node, styles) {
  for (const [name, value] of Object.entries(styles)) node.style.setProperty(name, value);
  return node;
}

/** Replace what stands in `root`; the control that had the focus (by data-keep) gets it back. */
export function refill(root, ...children) {
  const held = root.contains(document.activeElement) ? document.activeElement.dataset.keep : null;
  root.replaceChildren(...children.flat(Infinity).filter((child) => known(child) && child !== false));
  if (held) [...root.querySelectorAll("[data-keep]")].find((node) => node.dataset.keep === held)?.focus({ preventScroll: true });
}

/** Once what was drawn is on the screen; soon, where nobody sees the page and no frame comes. */
export const painted = () => new Promise((resume) => {
  requestAnimationFrame(() => setTimeout(resume));
  setTimeout(resume, 200);
});

/** Rules of style that belong to a module: the policy lets only a script add them. */
export function adopt(...rules) {
  const sheet = new CSSStyleSheet();
  for (const rule of rules) sheet.insertRule(rule, sheet.cssRules.length);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}
