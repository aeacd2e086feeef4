// Numbers, and how they are written.

export const known = (value) => value !== null && value !== undefined;
export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
export const unique = (items) => [...new Set(items)];

/** Three significant digits; only what is exactly 0 is printed as 0. */
export function number(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const minus = (text) => text.replace("-", "−");
  // From these sizes on, toPrecision would round up to a power of ten and write it as 1.00e+3.
  if (size >= 0.001 && size < 9999.5) return minus(Number.isInteger(value) ? String(value) : size < 999.5 ? value.toPrecision(3) : value.toFixed(0));
  const [digits, power] = value.toExponential(2).split("e");
  return `${minus(digits)}·10${[...String(Number(power))].map((digit) => digit === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`;
}
/** A share in percent; a near miss is never rounded to 0 % or 100 %. */
export function percent(share) {
  const size = 100 * share;
  if (size > 0 && size < 0.1) return "< 0.1 %";
  if (size < 100 && size > 99.9) return "> 99.9 %";
  return `${Number(size.toFixed(1))} %`;
}
