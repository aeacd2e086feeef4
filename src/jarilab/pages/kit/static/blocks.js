// Blocks of numbers: bytes, little end first, in base64.

const decoded = new WeakMap();

export function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < bytes.length; place += 1) bytes[place] = letters.charCodeAt(place);
  return bytes;
}

/** A text that was compressed by zlib. */
export const unpacked = (text) => new Response(new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"))).text();

/** The numbers of a Block, decoded when first asked for; fixed point (uint16) becomes 0..1. What was computed here is as it is. */
export function block(source) {
  if (ArrayBuffer.isView(source.data)) return source;
  if (!decoded.has(source)) {
    const { buffer, length } = bytesOf(source.data);
    const bits = { uint8: 8, uint16: 16, float32: 32 }[source.dtype];
    const count = 8 * length / bits;
    const wanted = source.shape.reduce((product, size) => product * size, 1);
    if (count !== wanted) throw new Error(`block: ${count} numbers for the shape ${source.shape}`);
    const view = new DataView(buffer); // the bytes are little-endian, this machine may not be
    const data = bits === 8 ? new Uint8Array(buffer) : new Float32Array(count);
    if (bits === 16) for (let place = 0; place < count; place += 1) data[place] = view.getUint16(2 * place, true) / 65535;
    if (bits === 32) for (let place = 0; place < count; place += 1) data[place] = view.getFloat32(4 * place, true);
    decoded.set(source, { data, shape: source.shape });
  }
  return decoded.get(source);
}
