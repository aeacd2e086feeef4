// Tensors: numbers in row-major order with a shape. What only renames places shares the numbers, everything else copies them.

// int64 as float64: whole numbers up to 2^53, far more than there are places and tokens.
const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: Float64Array, int32: Int32Array, uint8: Uint8Array, bool: Uint8Array };

export const sizeOf = (shape) => shape.reduce((product, size) => product * size, 1);
export const isTensor = (value) => value !== null && typeof value === "object" && "data" in value;

/** A new tensor, of zeros where no numbers are given. */
export function tensor(dtype, shape, data) {
  if (!ARRAYS[dtype]) throw new Error(`numbers of the type ${dtype} are not known here`);
  const count = sizeOf(shape);
  const held = data ?? new ARRAYS[dtype](count);
  if (held.length !== count) throw new Error(`expected ${count} numbers for the shape ${shape}, got ${held.length}`);
  return { dtype, shape, data: held };
}

/** The same numbers in another shape; -1 is the size that is left over. */
export function reshaped(source, shape) {
  const rest = shape.reduce((product, size) => size === -1 ? product : product * size, 1);
  const resolved = shape.map((size) => size === -1 ? source.data.length / rest : size);
  return tensor(source.dtype, resolved, source.data);
}

/** Numbers in another type; a fraction loses what is behind its point where they are whole, and all but 0 are true. */
export function converted(source, dtype) {
  if (source.dtype === dtype) return source;
  const result = tensor(dtype, source.shape);
  const [from, to] = [source.data, result.data];
  const isInteger = dtype === "int64" || dtype === "int32";
  for (let place = 0; place < to.length; place += 1) {
    const value = from[place];
    to[place] = dtype === "bool" ? Number(value !== 0) : isInteger ? Math.trunc(value) : value;
  }
  return result;
}

/** How far apart neighbours along each axis lie. */
export function stridesOf(shape) {
  const strides = new Array(shape.length);
  let step = 1;
  for (let axis = shape.length - 1; axis >= 0; axis -= 1) {
    strides[axis] = step;
    step *= shape[axis];
  }
  return strides;
}

/** An axis counted from the front. */
export const fromFront = (axis, rank) => axis < 0 ? axis + Math.max(1, rank) : axis;

/** Call step(from, to) at the beginning of every run along the last axis: a walk with strides through numbers. */
function eachRun(shape, strides, start, step) {
  const outer = shape.length - 1;
  const counts = new Array(Math.max(0, outer)).fill(0);
  const run = shape[outer] ?? 1;
  const runs = sizeOf(shape) / run;
  let from = start;
  for (let number = 0; number < runs; number += 1) {
    step(from, number * run);
    for (let axis = outer - 1; axis >= 0; axis -= 1) {
      from += strides[axis];
      counts[axis] += 1;
      if (counts[axis] < shape[axis]) break;
      from -= strides[axis] * shape[axis];
      counts[axis] = 0;
    }
  }
}

/** A copy of numbers that lie `strides` apart, beginning at `start`: slices, transpositions, repetitions. */
export function strided(source, shape, strides, start = 0) {
  const result = tensor(source.dtype, shape);
  if (!result.data.length) return result;
  const [from, to] = [source.data, result.data];
  const [run, step] = shape.length ? [shape.at(-1), strides.at(-1)] : [1, 0];
  eachRun(shape, strides, start, (first, place) => {
    for (let i = 0; i < run; i += 1) to[place + i] = from[first + i * step];
  });
  return result;
}

/** Put numbers into `target` where they lie `strides` apart. */
export function put(target, strides, start, source) {
  const { shape, data } = source;
  if (!data.length) return;
  const [run, step] = shape.length ? [shape.at(-1), strides.at(-1)] : [1, 0];
  eachRun(shape, strides, start, (first, place) => {
    for (let i = 0; i < run; i += 1) target.data[first + i * step] = data[place + i];
  });
}

/** The shape that all are spread to. */
export function commonShape(...shapes) {
  const rank = Math.max(...shapes.map((shape) => shape.length));
  return Array.from({ length: rank }, (_, axis) => {
    const sizes = shapes.map((shape) => shape[axis - rank + shape.length] ?? 1);
    const size = sizes.find((one) => one !== 1) ?? 1;
    if (sizes.some((one) => one !== 1 && one !== size)) throw new Error(`the shapes ${shapes.map((shape) => `(${shape})`).join(" and ")} do not fit together`);
    return size;
  });
}

/** Repeat along the axes of size 1; -1 leaves the size. */
export function spread(source, shape) {
  const [missing, ownStrides] = [shape.length - source.shape.length, stridesOf(source.shape)];
  const target = shape.map((size, axis) => size === -1 ? source.shape[axis - missing] : size);
  if (target.length === source.shape.length && target.every((size, axis) => size === source.shape[axis])) return source;
  commonShape(source.shape, target);
  const strides = target.map((_, axis) => axis < missing || source.shape[axis - missing] === 1 ? 0 : ownStrides[axis - missing]);
  return strided(source, target, strides);
}

export function transposed(source, axes) {
  const ownStrides = stridesOf(source.shape);
  const order = axes.map((axis) => fromFront(axis, source.shape.length));
  return strided(source, order.map((axis) => source.shape[axis]), order.map((axis) => ownStrides[axis]));
}

/** These axes last, for what goes through them: {rows, outer: shape of the others, width, back(tensor)}. */
export function axesLast(source, axes) {
  const rank = source.shape.length;
  const inner = axes.length ? axes.map((axis) => fromFront(axis, rank)) : source.shape.map((_, axis) => axis);
  const outer = source.shape.map((_, axis) => axis).filter((axis) => !inner.includes(axis));
  const order = [...outer, ...inner];
  const moved = order.every((axis, place) => axis === place) ? source : transposed(source, order);
  const shapeOf = (which) => which.map((axis) => source.shape[axis]);
  const back = (result) => transposed(reshaped(result, shapeOf(order)), order.map((_, axis) => order.indexOf(axis)));
  const keptShape = source.shape.map((size, axis) => inner.includes(axis) ? 1 : size);
  return { moved, outer: shapeOf(outer), keptShape, width: sizeOf(shapeOf(inner)), back };
}
