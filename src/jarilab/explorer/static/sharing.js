// What is shown, to be passed on: a link to it, its figure, and the page as it is.
import { pressable } from "kit/controls.js";
import { drawMap } from "kit/draw.js";
import { byId, el } from "kit/elements.js";
import { firstPayload } from "kit/payload.js";
import { speaking } from "kit/words.js";
import { download, exporters, sentenceOf } from "./export.js";
import { panesOf } from "./panes.js";

const t = speaking({
  link: ["Copy link", "링크 복사"],
  figure: ["Copy figure", "그림 복사"],
  page: ["Save this page as it is", "이 상태로 페이지 저장"],
  copied: ["Copied", "복사함"],
  saved: ["Saved", "저장함"],
  noClipboard: ["This browser lets no page copy this: save it instead.", "이 브라우저에서는 복사할 수 없습니다. 대신 저장하세요."],
});

/** The page as it was before anything was drawn. */
const original = `<!doctype html>\n${document.documentElement.outerHTML}`;
const PAYLOAD = /(<script type="application\/json" id="payload">)([^]*?)(<\/script>)/;
const PREVIEW = 400; // pixels

/** The name of a file with the state, or the address of a server: a path of this machine is nobody else's. */
const linkOf = () => location.protocol === "file:" ? decodeURIComponent(location.pathname.split("/").at(-1)) + location.hash : location.href;
export function shareButtons(app) {
  const actions = {
    link: () => navigator.clipboard.writeText(linkOf()),
    figure: async () => navigator.clipboard.write([new ClipboardItem({ "image/png": await exporters.png(app) })]),
    page: async () => download(new Blob([await pageOf(app)], { type: "text/html" }), "page.html"),
  };
  return Object.entries(actions).map(([name, act]) => {
    const button = pressable(`share ${name}`, t(name), async () => {
      try {
        await act();
        button.replaceChildren(t(name === "page" ? "saved" : "copied"));
      } catch (error) {
        byId("error").replaceChildren(name === "page" ? error.message : `${t("noClipboard")} ${name === "link" ? linkOf() : ""}`);
      }
    });
    return button;
  });
}

/** The HTML of a page that opens at what is shown: of this file, or of one that the server makes. */
async function pageOf(app) {
  const { site, head, steps, input } = app.state;
  const html = app.live ? (await app.post("/api/page", { input, steps, site, head })).html : original;
  const state = new URLSearchParams(location.hash.slice(1));
  if (app.live) state.delete("input"); // the page that the server makes is of this one
  const payload = { ...JSON.parse(PAYLOAD.exec(html)[2]), state: String(state) };
  const words = JSON.stringify(payload).replace(/[<>&]/g, (letter) => `\\u00${letter.charCodeAt(0).toString(16)}`);
  const about = { title: document.title, description: sentenceOf(), image: previewOf(app) ?? "" };
  return html.replace(PAYLOAD, (_, begin, __, end) => begin + words + end).replace(/<title>[^<]*/, () => `<title>${escaped(about.title)}`)
    .replace(ABOUT, (_, begin, name) => `${begin}${escaped(about[name])}"`);
}
const ABOUT = /(<meta (?:name|property)="(?:og:)?(title|description|image)" content=")[^"]*"/g;
const escaped = (text) => text.replace(/[<>&"]/g, (letter) => `&#${letter.charCodeAt(0)};`);

/** The open map as a small image; null where none is drawn. */
function previewOf(app) {
  const pane = panesOf(app).find(({ kind }) => kind === "map");
  if (!pane) return null;
  const map = drawMap(el("canvas"), pane.data, ...pane.site.shape, { ...pane.options, onPaper: true });
  const factor = Math.max(1, Math.floor(PREVIEW / Math.max(map.width, map.height)));
  const canvas = el("canvas", { width: factor * map.width, height: factor * map.height });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.fillStyle = "#e8e5dc";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(map, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/png");
}
