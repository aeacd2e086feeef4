// The constants of a program: numbers of 16 bits become float32, everything else stays what it is.
import { bytesOf } from "kit/blocks.js";
import { tensor } from "./tensors.js";

/** float16: a sign, 5 bits of exponent, 10 of the fraction. */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1024 + fraction) * 2 ** (exponent - 25);
}

const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => half(bits));

/** bfloat16: the upper half of a float32. */
function brains(numbers) {
  return new Float32Array(Uint32Array.from(numbers, (bits) => bits * 65536).buffer);
}

/** The bytes are little-endian, this machine may not be. */
function read(bytes, width, name) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Array.from({ length: bytes.byteLength / width }, (_, place) => Number(view[name](width * place, true)));
}

const READ = {
  float16: (bytes) => Float32Array.from(read(bytes, 2, "getUint16"), (bits) => HALVES[bits]),
  bfloat16: (bytes) => brains(read(bytes, 2, "getUint16")),
  float32: (bytes) => Float32Array.from(read(bytes, 4, "getFloat32")),
  float64: (bytes) => Float64Array.from(read(bytes, 8, "getFloat64")),
  int64: (bytes) => Float64Array.from(read(bytes, 8, "getBigInt64")),
  int32: (bytes) => Int32Array.from(read(bytes, 4, "getInt32")),
  uint8: (bytes) => bytes, bool: (bytes) => bytes,
};

/** A tensor from {dtype, shape, data}. */
export function constant({ dtype, shape, data }) {
  if (!Object.hasOwn(READ, dtype)) throw new Error(`constants of the type ${dtype} are not known here`);
  const widened = dtype === "float16" || dtype === "bfloat16" ? "float32" : dtype;
  return tensor(widened, shape, READ[dtype](bytesOf(data)));
}
