// Operators that move numbers, pick them or make them.
import { commonShape, converted, fromFront, isTensor, put, reshaped, sizeOf, spread, strided, stridesOf, tensor, transposed } from "./tensors.js";

// Shapes --------------------------------------------------------------------------------------------------------------

const view = (_, x, shape) => reshaped(x, shape);
const same = (_, x) => x;
const convert = (dtype, x) => converted(x, dtype);
const permute = (_, x, axes) => transposed(x, axes);
function transpose(_, x, first, second) {
  const axes = x.shape.map((_, axis) => axis);
  const [one, other] = [first, second].map((axis) => fromFront(axis, axes.length));
  [axes[one], axes[other]] = [other, one];
  return axes.length ? transposed(x, axes) : x;
}
const turn = (_, x) => x.shape.length < 2 ? x : transpose(_, x, 0, 1);
const expand = (_, x, shape) => spread(x, shape);
function unsqueeze(_, x, axis) {
  const shape = [...x.shape];
  shape.splice(fromFront(axis, shape.length + 1), 0, 1);
  return reshaped(x, shape);
}
/** Without these axes, where they have the size 1; without all such by default. */
function squeeze(_, x, axes = null) {
  const rank = x.shape.length;
  const chosen = axes === null ? null : [axes].flat().map((axis) => fromFront(axis, rank));
  return reshaped(x, x.shape.filter((size, axis) => size !== 1 || !(chosen?.includes(axis) ?? true)));
}

/** From `start` to `stop` along an axis; numbers below 0 count from the end. */
function slice(_, x, axis = 0, start = null, stop = null, step = 1) {
  const place = fromFront(axis, x.shape.length);
  const [size, strides] = [x.shape[place], stridesOf(x.shape)];
  const limited = (value) => Math.min(size, Math.max(0, value < 0 ? value + size : value));
  const [first, last] = [limited(start ?? 0), limited(stop ?? size)];
  const count = Math.max(0, Math.ceil((last - first) / step));
  if (count === size) return x;
  const shape = x.shape.with(place, count);
  return strided(x, shape, strides.with(place, strides[place] * step), first * strides[place]);
}
function select(_, x, axis, index) {
  const place = fromFront(axis, x.shape.length);
  const [strides, size] = [stridesOf(x.shape), x.shape[place]];
  const without = (list) => list.filter((_, axis) => axis !== place);
  return strided(x, without(x.shape), without(strides), checked(fromFront(index, size), size) * strides[place]);
}
function flip(_, x, axes) {
  const strides = stridesOf(x.shape);
  let start = 0;
  for (const axis of axes.map((one) => fromFront(one, x.shape.length))) {
    start += strides[axis] * (x.shape[axis] - 1);
    strides[axis] *= -1;
  }
  return strided(x, x.shape, strides, start);
}
function cat(dtype, tensors, axis = 0) {
  const parts = tensors.filter((one) => one.shape.length !== 1 || one.shape[0] > 0); // an empty list goes with any shape
  const place = fromFront(axis, parts[0].shape.length);
  const size = parts.reduce((sum, part) => sum + part.shape[place], 0);
  const result = tensor(dtype, parts[0].shape.with(place, size));
  const strides = stridesOf(result.shape);
  let start = 0;
  for (const part of parts) {
    put(result, strides, start, part);
    start += part.shape[place] * strides[place];
  }
  return result;
}
const stack = (dtype, tensors, axis = 0) => cat(dtype, tensors.map((one) => unsqueeze(null, one, fromFront(axis, one.shape.length + 1))), fromFront(axis, tensors[0].shape.length + 1));
function split(_, x, sizes, axis = 0) {
  let stop = 0;
  return sizes.map((size) => slice(null, x, axis, stop, stop += size));
}
function splitEvenly(_, x, size, axis = 0) {
  const count = x.shape[fromFront(axis, x.shape.length)];
  const sizes = Array.from({ length: Math.ceil(count / size) }, (_, part) => Math.min(size, count - part * size));
  return split(null, x, sizes, axis);
}
const unbind = (_, x, axis = 0) => Array.from({ length: x.shape[fromFront(axis, x.shape.length)] }, (_, index) => select(null, x, axis, index));
function repeat(_, x, times) {
  const padded = reshaped(x, [...Array(times.length - x.shape.length).fill(1), ...x.shape]);
  return times.reduce((tiled, count, axis) => cat(tiled.dtype, Array(count).fill(tiled), axis), padded);
}
/** widths: before and behind the last axis, then the one before it, and so on. */
function pad(dtype, x, widths, value) {
  const shape = x.shape.map((size, axis) => size + around(x, widths, axis, 0) + around(x, widths, axis, 1));
  const strides = stridesOf(shape);
  const result = tensor(dtype, shape);
  result.data.fill(value ?? 0);
  const inner = x.shape.reduce((part, size, axis) => slice(null, part, axis, Math.max(0, -around(x, widths, axis, 0)), size + Math.min(0, around(x, widths, axis, 1))), x);
  put(result, strides, strides.reduce((sum, stride, axis) => sum + stride * Math.max(0, around(x, widths, axis, 0)), 0), inner);
  return result;
}
const around = (x, widths, axis, end) => widths[2 * (x.shape.length - 1 - axis) + end] ?? 0;

// Picking by number ---------------------------------------------------------------------------------------------------

function checked(number, count) {
  if (!(number >= 0 && number < count)) throw new Error(`expected a number from 0 to ${count - 1}, got ${number}`);
  return number;
}
const picked = (index, place, count) => checked(fromFront(index.data[place], count), count);

function embedding(dtype, table, index) {
  const [rows, width] = table.shape;
  const result = tensor(dtype, [...index.shape, width]);
  for (let place = 0; place < index.data.length; place += 1) {
    const first = checked(index.data[place], rows) * width;
    result.data.set(table.data.subarray(first, first + width), place * width);
  }
  return result;
}
function indexSelect(_, x, axis, index) {
  const places = Array(x.shape.length).fill(null);
  places[fromFront(axis, x.shape.length)] = index;
  return pick(null, x, places);
}
/** x[a, :, b]: the indices are spread to one shape, which stands where the first of them was, or in front where they are apart. */
function pick(_, x, indices) {
  const places = indices.flatMap((index, axis) => index === null ? [] : [axis]);
  const pickers = places.map((axis) => indices[axis]);
  if (pickers.some((index) => index.dtype === "bool")) throw new Error("numbers cannot be picked by a mask here");
  const shape = commonShape(...pickers.map((index) => index.shape));
  const wide = pickers.map((index) => spread(index, shape));
  const together = places.at(-1) - places[0] === places.length - 1;
  const front = together ? x.shape.slice(0, places[0]) : [];
  const rest = x.shape.filter((_, axis) => !places.includes(axis)).slice(front.length);
  const source = together ? x : transposed(x, [...places, ...x.shape.map((_, axis) => axis).filter((axis) => !places.includes(axis))]);
  const sizes = places.map((axis) => x.shape[axis]);
  const [width, count, strides] = [sizeOf(rest), sizeOf(shape), stridesOf(sizes)];
  const result = tensor(x.dtype, [...front, ...shape, ...rest]);
  const starts = Array.from({ length: count }, (_, place) => wide.reduce((sum, index, one) => sum + strides[one] * picked(index, place, sizes[one]), 0));
  for (let outer = 0; outer < sizeOf(front); outer += 1) {
    for (let place = 0; place < count; place += 1) {
      const first = (outer * sizeOf(sizes) + starts[place]) * width;
      result.data.set(source.data.subarray(first, first + width), (outer * count + place) * width);
    }
  }
  return result;
}

/** Call step(place in x, place in index) for each number of `index`, which says where along the axis it is. */
function eachPicked(x, axis, index, step) {
  const place = fromFront(axis, x.shape.length);
  const [strides, size] = [stridesOf(x.shape), x.shape[place]];
  const counts = strided({ dtype: "int64", data: Float64Array.from({ length: sizeOf(x.shape) }, (_, at) => at) }, index.shape, strides.with(place, 0));
  for (let at = 0; at < index.data.length; at += 1) step(counts.data[at] + picked(index, at, size) * strides[place], at);
}
function gather(dtype, x, axis, index) {
  const result = tensor(dtype, index.shape);
  eachPicked(x, axis, index, (from, to) => { result.data[to] = x.data[from]; });
  return result;
}
/** combine(what is there, what comes): the numbers of `source`, or one number, put where `index` says. */
const scatter = (combine) => (dtype, x, axis, index, source) => {
  const result = tensor(dtype, x.shape, x.data.slice());
  const comes = isTensor(source) ? strided(source, index.shape, stridesOf(source.shape)).data : null;
  eachPicked(x, axis, index, (to, from) => { result.data[to] = combine(result.data[to], comes ? comes[from] : source); });
  return result;
};
const [scattered, scatterAdd] = [scatter((_, value) => value), scatter((held, value) => held + value)];

// Made ----------------------------------------------------------------------------------------------------------------

function filled(dtype, shape, value) {
  const result = tensor(dtype, shape);
  if (value !== 0) result.data.fill(Number(value));
  return result;
}
function range(dtype, start, stop, step = 1) {
  const result = tensor(dtype, [Math.max(0, Math.ceil((stop - start) / step))]);
  for (let place = 0; place < result.data.length; place += 1) result.data[place] = start + place * step;
  return result;
}
const like = (value) => (dtype, x) => filled(dtype, x.shape, value);
const triangle = (keeps) => (dtype, x, diagonal = 0) => {
  const result = tensor(dtype, x.shape, x.data.slice());
  const [rows, columns] = x.shape.slice(-2);
  for (let place = 0; place < result.data.length; place += 1) {
    if (!keeps(place % columns, Math.floor(place / columns) % rows + diagonal)) result.data[place] = 0;
  }
  return result;
};

export const PLACES = {
  "view.default": view, "_unsafe_view.default": view, "reshape.default": view, "alias.default": same, "detach.default": same, "clone.default": same,
  "lift_fresh_copy.default": same, "_to_copy.default": convert, "permute.default": permute, "transpose.int": transpose, "t.default": turn,
  "expand.default": expand, "unsqueeze.default": unsqueeze, "squeeze.default": squeeze, "squeeze.dim": squeeze, "squeeze.dims": squeeze,
  "slice.Tensor": slice, "select.int": select, "flip.default": flip, "cat.default": cat, "stack.default": stack, "repeat.default": repeat,
  "split_with_sizes.default": split, "split.Tensor": splitEvenly, "unbind.int": unbind, "constant_pad_nd.default": pad,
  "embedding.default": embedding, "index_select.default": indexSelect, "index.Tensor": pick, "gather.default": gather,
  "scatter.src": scattered, "scatter.value": scattered, "scatter_add.default": scatterAdd,
  "full.default": filled, "full_like.default": (dtype, x, value) => filled(dtype, x.shape, value), "scalar_tensor.default": (dtype, value) => filled(dtype, [], value),
  "zeros.default": (dtype, shape) => filled(dtype, shape, 0), "ones.default": (dtype, shape) => filled(dtype, shape, 1), "empty.memory_format": (dtype, shape) => filled(dtype, shape, 0),
  "zeros_like.default": like(0), "ones_like.default": like(1), "new_zeros.default": (dtype, _, shape) => filled(dtype, shape, 0), "fill.Scalar": (dtype, x, value) => filled(dtype, x.shape, value),
  "arange.default": (dtype, stop) => range(dtype, 0, stop), "arange.start": range, "arange.start_step": range,
  "tril.default": triangle((column, last) => column <= last), "triu.default": triangle((column, first) => column >= first),
};
