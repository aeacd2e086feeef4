// Unpacks the script of the page and runs it: the policy of the page has the hashes of both.
import { unpacked } from "./blocks.js";

const OLD = "This browser is too old to unpack the script of this page. / 브라우저가 오래되어 이 페이지의 스크립트를 풀 수 없습니다.";

function run(code) {
  const script = document.createElement("script");
  script.type = "module";
  script.textContent = code;
  document.body.append(script);
  script.remove(); // it runs nevertheless, and a copy of the page has it once
}
if (globalThis.DecompressionStream) unpacked(document.getElementById("code").textContent).then(run);
else document.body.prepend(OLD);
