// Every operator that a program may use, by its name in core ATen; sizes are plain numbers.
import { PLACES } from "./places.js";
import { POINTWISE } from "./pointwise.js";
import { PRODUCTS } from "./products.js";
import { fromFront } from "./tensors.js";

const SIZES = {
  "sym_size.int": (_, x, axis) => x.shape[fromFront(axis, x.shape.length)], "sym_numel.default": (_, x) => x.data.length,
  "operator.getitem": (_, values, place) => values[place],
  "operator.add": (_, x, y) => x + y, "operator.sub": (_, x, y) => x - y, "operator.mul": (_, x, y) => x * y, "operator.neg": (_, x) => -x,
  "operator.floordiv": (_, x, y) => Math.floor(x / y), "operator.mod": (_, x, y) => x - y * Math.floor(x / y), "operator.truediv": (_, x, y) => x / y,
  "operator.pow": (_, x, y) => x ** y,
  "torch.sym_max": (_, x, y) => Math.max(x, y), "torch.sym_min": (_, x, y) => Math.min(x, y), "torch.sym_float": (_, x) => x, "torch.sym_int": (_, x) => Math.trunc(x),
};

export const OPERATORS = { ...SIZES, ...POINTWISE, ...PLACES, ...PRODUCTS };
