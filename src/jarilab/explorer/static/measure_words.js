// The measures in plain words: what each is called, and what it says of a head, in a line.
import { speaking } from "kit/words.js";

const t = speaking({
  label_entropy: ["entropy", "엔트로피"], plain_entropy: ["1: it looks at all tokens equally; 0: at one token.", "1이면 모든 곳을 고르게 보고, 0이면 한 토큰만 봅니다."],
  label_effective_keys: ["effective keys", "유효 키 수"], plain_effective_keys: ["How many tokens it looks at, in effect.", "실제로 몇 개의 토큰을 보는 셈인지."],
  label_confidence: ["confidence", "확신"], plain_confidence: ["How much of its weight goes to one token.", "가중치가 한 토큰에 얼마나 몰리는지."],
  label_distance: ["distance", "거리"], plain_distance: ["How far away it looks.", "얼마나 먼 곳을 보는지."],
  label_previous: ["previous token", "앞 토큰"], plain_previous: ["It looks at the token just before.", "바로 앞 토큰을 봅니다."],
  label_positional: ["positional", "위치 의존"], plain_positional: ["It looks at the same distance from every token.", "어느 토큰에서든 같은 거리만큼 떨어진 곳을 봅니다."],
  label_offset: ["commonest offset", "가장 흔한 간격"], plain_offset: ["That distance: −1 is the token just before.", "그 간격: −1은 바로 앞 토큰입니다."],
  label_duplicate: ["duplicate token", "같은 토큰"], plain_duplicate: ["It looks at other places with the same token.", "같은 토큰이 있는 다른 자리를 봅니다."],
  label_induction: ["induction", "유도"], plain_induction: ["It looks at what followed the same token before.", "같은 토큰 다음에 왔던 것을 봅니다."],
  label_sink: ["sink", "싱크"], plain_sink: ["It looks at the first token.", "첫 토큰을 봅니다."],
  label_self: ["itself", "자기 자신"], plain_self: ["It looks at the token's own place.", "자기 자리를 봅니다."],
  label_offset_share: ["explained by offset", "간격으로 설명됨"], plain_offset_share: ["How much of its scores distance alone explains.", "거리만으로 점수가 얼마나 설명되는지."],
  label_key_share: ["explained by key", "키로 설명됨"], plain_key_share: ["How much of its scores the key token alone explains.", "키 토큰만으로 점수가 얼마나 설명되는지."],
  label_importance: ["importance", "중요도"], plain_importance: ["How sensitive the loss is to this head.", "손실이 이 헤드에 얼마나 민감한지."],
  label_ablation: ["loss without it", "끄면 손실"], plain_ablation: ["How much worse the answer gets with the head off.", "헤드를 끄면 답이 얼마나 나빠지는지."],
  label_induction_probe: ["induction, probed", "유도(시험)"], plain_induction_probe: ["Induction on a random text read twice.", "무작위 글을 두 번 읽혀 잰 유도."],
});

const worded = (key, otherwise) => { const words = t(key); return words === key ? otherwise : words; };
/** What a measure is called; one that is not known here has a name of its own. */
export const labelOf = ({ name, label }) => worded(`label_${name}`, label);
/** What it says of a head, in a line; "" for one that is not known here. */
export const plainOf = ({ name }) => worded(`plain_${name}`, "");
