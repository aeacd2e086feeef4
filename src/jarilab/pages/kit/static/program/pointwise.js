// Operators that go number by number. Each takes the type of its result, then what the operator takes.
import { commonShape, converted, isTensor, spread, tensor } from "./tensors.js";

/** One number from each of some tensors or plain numbers, which are spread to a common shape. */
function each(dtype, compute, ...values) {
  const shape = commonShape(...values.map((value) => isTensor(value) ? value.shape : []));
  const [a, b, c] = values.map((value) => isTensor(value) ? spread(value, shape).data : value);
  const result = tensor(dtype, shape);
  const to = result.data;
  const count = to.length;
  if (values.length === 1) for (let i = 0; i < count; i += 1) to[i] = compute(a[i]);
  else if (values.length === 3) for (let i = 0; i < count; i += 1) to[i] = compute(at(a, i), at(b, i), at(c, i));
  else if (typeof b === "number") for (let i = 0; i < count; i += 1) to[i] = compute(a[i], b);
  else if (typeof a === "number") for (let i = 0; i < count; i += 1) to[i] = compute(a, b[i]);
  else for (let i = 0; i < count; i += 1) to[i] = compute(a[i], b[i]);
  return result;
}
const at = (value, place) => typeof value === "number" ? value : value[place];
const plain = (value) => typeof value === "boolean" ? Number(value) : value;

const unary = (compute) => (dtype, x) => each(dtype, compute, x);
const binary = (compute) => (dtype, x, y) => each(dtype, compute, plain(x), plain(y));
/** x and y, y so many times. */
const scaled = (compute) => (dtype, x, y, alpha) => each(dtype, compute, plain(x), alpha === 1 ? plain(y) : times(dtype, y, alpha));
const times = (dtype, y, alpha) => isTensor(y) ? each(dtype, (one) => one * alpha, y) : y * alpha;

const add = scaled((x, y) => x + y);
const subtract = scaled((x, y) => x - y);
const multiply = binary((x, y) => x * y);
const divide = binary((x, y) => x / y);
const power = binary((x, y) => x ** y);
const remainder = binary((x, y) => x - y * Math.floor(x / y));
function divideTo(dtype, x, y, mode) {
  const whole = { trunc: Math.trunc, floor: Math.floor }[mode] ?? ((value) => value);
  return each(dtype, (one, other) => whole(one / other), plain(x), plain(y));
}

// erfc by a Chebyshev fit, off by 1.2e-7 of its value at most (Numerical Recipes, section 6.2).
const FIT = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277];
function erf(x) {
  const t = 1 / (1 + 0.5 * Math.abs(x));
  const fit = FIT.reduceRight((sum, factor) => factor + t * sum, 0);
  const rest = t * Math.exp(-x * x + fit);
  return x < 0 ? rest - 1 : 1 - rest;
}
const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const tanhGelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));
const exactGelu = (x) => 0.5 * x * (1 + erf(x * Math.SQRT1_2));
const gelu = (dtype, x, approximate) => each(dtype, approximate === "tanh" ? tanhGelu : exactGelu, x);

/** Halves go to the even number. */
function rounded(x) {
  const near = Math.round(x);
  return near - x === 0.5 && near % 2 !== 0 ? near - 1 : near;
}

const clamp = (dtype, x, low, high) => {
  const limited = low === null ? x : each(dtype, Math.max, x, low);
  return high === null ? converted(limited, dtype) : each(dtype, Math.min, limited, high);
};
const choose = (dtype, condition, x, y) => each(dtype, (which, yes, no) => which ? yes : no, condition, plain(x), plain(y));
const fill = (dtype, x, mask, value) => choose(dtype, mask, value, x);

/** Bits of whole numbers, and truths. */
const inverted = (dtype, x) => each(dtype, dtype === "bool" ? (one) => 1 - one : (one) => -one - 1, x);
const compare = (holds) => (dtype, x, y) => each(dtype, (one, other) => Number(holds(one, other)), plain(x), plain(y));
const [equal, unequal] = [compare((x, y) => x === y), compare((x, y) => x !== y)];
const [less, atMost] = [compare((x, y) => x < y), compare((x, y) => x <= y)];
const [greater, atLeast] = [compare((x, y) => x > y), compare((x, y) => x >= y)];

export const POINTWISE = {
  "add.Tensor": add, "add.Scalar": add, "sub.Tensor": subtract, "sub.Scalar": subtract,
  "mul.Tensor": multiply, "mul.Scalar": multiply, "div.Tensor": divide, "div.Scalar": divide, "div.Tensor_mode": divideTo, "div.Scalar_mode": divideTo,
  "pow.Tensor_Scalar": power, "pow.Tensor_Tensor": power, "pow.Scalar": power,
  "remainder.Scalar": remainder, "remainder.Tensor": remainder,
  "fmod.Scalar": binary((x, y) => x % y), "fmod.Tensor": binary((x, y) => x % y), "atan2.default": binary(Math.atan2), "hypot.default": binary(Math.hypot),
  "maximum.default": binary(Math.max), "minimum.default": binary(Math.min),
  "neg.default": unary((x) => -x), "abs.default": unary(Math.abs), "sign.default": unary(Math.sign), "reciprocal.default": unary((x) => 1 / x),
  "sqrt.default": unary(Math.sqrt), "rsqrt.default": unary((x) => 1 / Math.sqrt(x)),
  "exp.default": unary(Math.exp), "exp2.default": unary((x) => 2 ** x), "expm1.default": unary(Math.expm1),
  "log.default": unary(Math.log), "log1p.default": unary(Math.log1p), "log2.default": unary(Math.log2), "log10.default": unary(Math.log10),
  "sin.default": unary(Math.sin), "cos.default": unary(Math.cos), "tan.default": unary(Math.tan), "atan.default": unary(Math.atan),
  "tanh.default": unary(Math.tanh), "erf.default": unary(erf), "sigmoid.default": unary(sigmoid), "relu.default": unary((x) => x > 0 ? x : 0),
  "silu.default": unary((x) => x * sigmoid(x)), "gelu.default": gelu,
  "floor.default": unary(Math.floor), "ceil.default": unary(Math.ceil), "round.default": unary(rounded), "trunc.default": unary(Math.trunc),
  "clamp.default": clamp, "clamp.Tensor": clamp, "clamp_min.default": (dtype, x, low) => clamp(dtype, x, low, null), "clamp_max.default": (dtype, x, high) => clamp(dtype, x, null, high),
  "where.self": choose, "where.ScalarOther": choose, "where.ScalarSelf": choose, "where.Scalar": choose, "masked_fill.Scalar": fill, "masked_fill.Tensor": fill,
  "eq.Scalar": equal, "eq.Tensor": equal, "ne.Scalar": unequal, "ne.Tensor": unequal, "lt.Scalar": less, "lt.Tensor": less, "le.Scalar": atMost, "le.Tensor": atMost,
  "gt.Scalar": greater, "gt.Tensor": greater, "ge.Scalar": atLeast, "ge.Tensor": atLeast,
  "logical_not.default": unary((x) => Number(x === 0)), "logical_and.default": compare((x, y) => x !== 0 && y !== 0),
  "logical_or.default": compare((x, y) => x !== 0 || y !== 0), "logical_xor.default": compare((x, y) => (x !== 0) !== (y !== 0)),
  "bitwise_not.default": inverted, "bitwise_and.Tensor": binary((x, y) => x & y), "bitwise_or.Tensor": binary((x, y) => x | y),
  "bitwise_xor.Tensor": binary((x, y) => x ^ y), "bitwise_and.Scalar": binary((x, y) => x & y), "bitwise_or.Scalar": binary((x, y) => x | y),
  "isnan.default": unary((x) => Number(Number.isNaN(x))), "isinf.default": unary((x) => Number(Math.abs(x) === Infinity)),
};
