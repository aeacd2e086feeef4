// Numbers of a comparison as a person reads them.
import { known } from "kit/numbers.js";

// Spreading long lists overflows the stack.
export const largest = (items) => items.reduce((one, two) => Math.max(one, two), -Infinity);
export const smallest = (items) => items.reduce((one, two) => Math.min(one, two), Infinity);
export const whole = (value) => known(value) ? value.toLocaleString("en", { maximumFractionDigits: 0 }) : "–";
export const compact = (value) => value.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
export const minus = (text) => text.replace("-", "−");

/** A share in percent, with as many digits as a near miss needs: it is never rounded to 0 % or 100 %. */
export function precisePercent(share) {
  if (!known(share)) return "–";
  const ends = share === 0 || share === 1;
  let digits = ends ? 0 : share > 0.1 && share < 0.99 ? 1 : 2;
  const rounded = () => (100 * share).toFixed(digits);
  while (digits < 6 && !ends && [0, 100].includes(Number(rounded()))) digits += 1;
  return `${rounded()}\u00a0%`;
}

/** A value of a metric. */
export function valueOf(metric, value) {
  if (metric.share) return precisePercent(value);
  return known(value) ? minus(value.toFixed(metric.digits)) : "–";
}
