// What the keys do: behind the button and the key "?", and as the description of the maps.
import { byId, el } from "kit/elements.js";
import { speaking } from "kit/words.js";

const WORDS = {
  title: ["Keys", "키"], close: ["Close", "닫기"],
  cell: ["another cell", "다른 칸"], row: ["ends of the row", "행의 끝"], rows: ["ten rows up or down", "열 행씩 이동"],
  head: ["head before, after", "이전 헤드, 다음 헤드"], layer: ["layer before, after", "이전 층, 다음 층"],
  pin: ["keep this cell, choose this head", "이 칸을 고정, 이 헤드를 선택"], leave: ["back to the kept cell", "고정한 칸으로"],
  cut: ["switch the head off, cut the link of the cell", "헤드를 끄기, 칸의 연결 끊기"], hide: ["hide the key from every query", "키를 모든 쿼리에게서 숨기기"],
  undo: ["undo the last edit", "마지막 편집 되돌리기"], help: ["these keys", "이 목록"],
};
const KEYS = { cell: "← → ↑ ↓", row: "Home End", rows: "Page Up, Page Down", head: "[ ]", layer: "{ }", pin: "Enter", leave: "Esc", cut: "x", hide: "X", undo: "Ctrl+Z", help: "?" };
const t = speaking(WORDS);

/** All keys in one sentence. */
export const keysInWords = () => Object.entries(KEYS).map(([name, keys]) => `${keys}: ${t(name)}`).join("; ");

function toggleHelp() {
  const open = byId("keys");
  if (open) return open.close();
  const rows = Object.entries(KEYS).map(([name, keys]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, keys)), el("td", {}, t(name))));
  const dialog = el("dialog", { id: "keys", "aria-label": t("title"), onclose: () => dialog.remove() }, el("h2", {}, t("title")), el("table", {}, rows),
    el("button", { type: "button", onclick: () => dialog.close() }, t("close")));
  document.body.append(dialog);
  dialog.showModal();
}
/** The button that shows them. */
export const helpButton = () => el("button", { type: "button", class: "plain", "aria-label": t("title"), title: t("title"), "data-keep": "keys", onclick: toggleHelp }, "?");

addEventListener("keydown", (event) => {
  const typing = event.target.matches?.("input:not([type=checkbox], [type=radio], [type=range]), textarea, select");
  if (event.key === "?" && !typing) toggleHelp();
});
