// Operators that sum over axes: products of matrices, sums, softmax, norms.
import { axesLast, fromFront, reshaped, sizeOf, spread, tensor } from "./tensors.js";

// Products ------------------------------------------------------------------------------------------------------------

/** `x @ y` of matrices (rows, inner) and (inner, columns), added to what is at `to`. */
function multiplyInto(to, toStart, x, xStart, y, yStart, rows, inner, columns) {
  const sums = new Float64Array(columns);
  for (let row = 0; row < rows; row += 1) {
    sums.fill(0);
    for (let i = 0; i < inner; i += 1) {
      const factor = x[xStart + row * inner + i];
      if (factor === 0) continue;
      const first = yStart + i * columns;
      for (let column = 0; column < columns; column += 1) sums[column] += factor * y[first + column];
    }
    to.set(sums, toStart + row * columns);
  }
}

/** (B, rows, inner) times (B, inner, columns). */
function bmm(dtype, x, y) {
  const [batch, rows, inner] = x.shape;
  const columns = y.shape[2];
  if (y.shape[0] !== batch || y.shape[1] !== inner) throw new Error(`cannot multiply (${x.shape}) by (${y.shape})`);
  const result = tensor(dtype, [batch, rows, columns]);
  for (let one = 0; one < batch; one += 1) {
    multiplyInto(result.data, one * rows * columns, x.data, one * rows * inner, y.data, one * inner * columns, rows, inner, columns);
  }
  return result;
}
const one = (x) => reshaped(x, [1, ...x.shape]);
const mm = (dtype, x, y) => reshaped(bmm(dtype, one(x), one(y)), [x.shape[0], y.shape[1]]);

/** `beta * added + alpha * product`. */
function plus(added, product, beta, alpha) {
  const [from, { data }] = [spread(added, product.shape).data, product];
  for (let place = 0; place < data.length; place += 1) data[place] = alpha * data[place] + (beta === 0 ? 0 : beta * from[place]);
  return product;
}
const addmm = (dtype, added, x, y, beta, alpha) => plus(added, mm(dtype, x, y), beta, alpha);
const baddbmm = (dtype, added, x, y, beta, alpha) => plus(added, bmm(dtype, x, y), beta, alpha);
const mv = (dtype, x, y) => reshaped(mm(dtype, x, reshaped(y, [-1, 1])), [x.shape[0]]);
const dot = (dtype, x, y) => reshaped(mm(dtype, reshaped(x, [1, -1]), reshaped(y, [-1, 1])), []);

// Over axes -----------------------------------------------------------------------------------------------------------

/** One number for each row. compute(data, first, width). */
function reduced(dtype, x, axes, keep, compute) {
  const { moved, outer, keptShape, width } = axesLast(x, axes);
  const result = tensor(dtype, keep ? keptShape : outer);
  for (let row = 0; row < result.data.length; row += 1) result.data[row] = compute(moved.data, row * width, width);
  return result;
}

function total(data, first, width) {
  let sum = 0;
  for (let i = first; i < first + width; i += 1) sum += data[i];
  return sum;
}
const product = (data, first, width) => data.subarray(first, first + width).reduce((result, value) => result * value, 1);
const mean = (data, first, width) => total(data, first, width) / width;
function largest(data, first, width) {
  let best = -Infinity;
  for (let i = first; i < first + width; i += 1) if (!(data[i] <= best)) best = data[i];
  return best;
}
function smallest(data, first, width) {
  let best = Infinity;
  for (let i = first; i < first + width; i += 1) if (!(data[i] >= best)) best = data[i];
  return best;
}
const any = (data, first, width) => Number(data.subarray(first, first + width).some((value) => value !== 0));
const all = (data, first, width) => Number(data.subarray(first, first + width).every((value) => value !== 0));
const placeOf = (find) => (data, first, width) => data.subarray(first, first + width).indexOf(find(data, first, width));
function variance(data, first, width, correction) {
  const middle = mean(data, first, width);
  let sum = 0;
  for (let i = first; i < first + width; i += 1) sum += (data[i] - middle) ** 2;
  return sum / Math.max(0, width - correction);
}

const listed = (axes) => axes === null ? [] : [axes].flat();
const over = (compute) => (dtype, x, axes = null, keep = false) => reduced(dtype, x, listed(axes), keep, compute);
const whole = (compute) => (dtype, x) => reduced(dtype, x, [], false, compute);
const withPlace = (find) => (dtypes, x, axis, keep) => [
  reduced(dtypes[0], x, [axis], keep, find), reduced(dtypes[1], x, [axis], keep, placeOf(find))];
const spreadOf = (dtype, x, axes, correction, keep) =>
  reduced(dtype, x, listed(axes), keep, (data, first, width) => variance(data, first, width, correction ?? 1));

/** As many numbers as there were. compute(from, first, width, to) writes a row. */
function alongRow(dtype, x, axis, compute) {
  const { moved, width, back } = axesLast(x, [axis]);
  const result = tensor(dtype, moved.shape);
  for (let first = 0; first < moved.data.length; first += width) compute(moved.data, first, width, result.data);
  return fromFront(axis, x.shape.length) === x.shape.length - 1 ? result : back(result);
}

function softmax(from, first, width, to) {
  const top = largest(from, first, width);
  let sum = 0;
  for (let i = first; i < first + width; i += 1) sum += to[i] = Math.exp(from[i] - top);
  for (let i = first; i < first + width; i += 1) to[i] /= sum;
}
function logSoftmax(from, first, width, to) {
  const top = largest(from, first, width);
  let sum = 0;
  for (let i = first; i < first + width; i += 1) sum += Math.exp(from[i] - top);
  for (let i = first; i < first + width; i += 1) to[i] = from[i] - top - Math.log(sum);
}
function runningSum(from, first, width, to) {
  let sum = 0;
  for (let i = first; i < first + width; i += 1) to[i] = sum += from[i];
}
const along = (compute) => (dtype, x, axis) => x.shape.length ? alongRow(dtype, x, axis, compute) : alongRow(dtype, reshaped(x, [1]), 0, compute);

/** The normed numbers, each row's mean and what its distances from it were multiplied by. */
function layerNorm(dtypes, x, shape, weight, bias, epsilon) {
  const axes = shape.map((_, place) => place - shape.length);
  const middle = reduced(dtypes[1], x, axes, true, mean);
  const scale = reduced(dtypes[2], x, axes, true, (from, first, width) => 1 / Math.sqrt(variance(from, first, width, 0) + epsilon));
  const result = tensor(dtypes[0], x.shape);
  const width = sizeOf(shape);
  for (let row = 0; row < scale.data.length; row += 1) {
    const [mid, factor, first] = [middle.data[row], scale.data[row], row * width];
    for (let column = 0; column < width; column += 1) {
      const normed = (x.data[first + column] - mid) * factor;
      result.data[first + column] = normed * (weight ? weight.data[column] : 1) + (bias ? bias.data[column] : 0);
    }
  }
  return [result, middle, scale];
}

export const PRODUCTS = {
  "bmm.default": bmm, "mm.default": mm, "addmm.default": addmm, "baddbmm.default": baddbmm, "mv.default": mv, "dot.default": dot,
  "sum.default": whole(total), "sum.dim_IntList": over(total), "mean.default": whole(mean), "mean.dim": over(mean), "prod.default": whole(product), "prod.dim_int": over(product),
  "amax.default": over(largest), "amin.default": over(smallest), "max.default": whole(largest), "min.default": whole(smallest),
  "max.dim": withPlace(largest), "min.dim": withPlace(smallest), "argmax.default": over(placeOf(largest)), "argmin.default": over(placeOf(smallest)),
  "any.default": whole(any), "any.dim": over(any), "any.dims": over(any), "all.default": whole(all), "all.dim": over(all), "all.dims": over(all),
  "var.correction": spreadOf, "var.dim": (dtype, x, axes, unbiased, keep) => spreadOf(dtype, x, axes, Number(unbiased), keep),
  "_softmax.default": along(softmax), "_log_softmax.default": along(logSoftmax), "cumsum.default": along(runningSum),
  "native_layer_norm.default": layerNorm,
};
