// data.js: the data of the page: a manifest (JSON) that describes it, and blocks of numbers.
// A block is decoded when it is first needed, so a long text costs nothing until its layer is opened.

/**
 * @typedef {{text: string, id: number, kind: "special"|"word"|"subword", segment: number}} Token
 * @typedef {{scale: number, mask: "full"|"causal"|"window", window?: number, bias?: string, rotation?: string}} Recipe
 * @typedef {{name: string, layer: number, kind: "self"|"cross", side: string, queries: number, keys: number, heads: number,
 *   key_heads: number, query: string|null, key: string|null, weights: string|null, thumb: string|null, beyond?: Record<string, number|string>, recipe: Recipe,
 *   max_error: number|null}} Entry
 * @typedef {{dtype: "float32"|"int16"|"uint8"|"int32", shape: number[], coding?: "sqrt", scales?: number[],
 *   deflated?: boolean}} Shape
 * @typedef {{model: any, texts: string[], sequences: {name: string, tokens: Token[]}[], attentions: Entry[], lens: any, tensors: any[],
 *   other: any, blocks: Record<string, Shape>, show: any}} Manifest
 *
 * @typedef {object} Source
 * @property {Manifest} manifest
 * @property {(name: string) => boolean} has whether the block is decoded and `block` may be called
 * @property {(names: string[]) => Promise<void>} load fetches and decodes blocks
 * @property {(name: string) => Float32Array|Int32Array|Uint8Array} block
 * @property {number} counted the number of blocks decoded so far
 */

/** The manifest version that this page reads. */
const VERSION = 3;

/** An error whose message is shown to the reader. */
export class Problem extends Error {}

/** Number types: bytes per number, and bytes -> numbers (always little-endian, as on every platform with a browser). */
const DTYPES = {
  float32: [4, (bytes) => new Float32Array(bytes.buffer)],
  int16: [2, (bytes, shape) => scaled(new Int16Array(bytes.buffer), shape.scales)],
  int32: [4, (bytes) => new Int32Array(bytes.buffer)],
  uint8: [1, (bytes, { coding }) => (coding === "sqrt" ? Float32Array.from(bytes, (byte) => (byte / 255) ** 2) : bytes)],
};

/**
 * Reads the data inside `root`, so that several views can share a page.
 * @param {Element} root
 * @returns {Source}
 */
export function inlineSource(root) {
  const scripts = new Map([...root.querySelectorAll("script[data-block]")].map((s) => [s.getAttribute("data-block"), s]));
  return createSource(root, (name) => scripts.has(name) ? bytesOf(name, scripts.get(name).textContent) : null);
}

/**
 * A source whose manifest is inside `root`, and whose blocks are read by `read`.
 * @param {Element} root
 * @param {(name: string) => Uint8Array<ArrayBuffer>|null|Promise<Uint8Array<ArrayBuffer>|null>} read the bytes of a block; null if it is not there
 * @returns {Source}
 */
export function createSource(root, read) {
  const manifest = readManifest(root.querySelector("script.pellucid-manifest")?.textContent);
  const decoded = new Map();
  const pending = new Map();
  const fetchOne = async (name) => {
    const shape = manifest.blocks[name];
    const bytes = shape ? await read(name) : null;
    if (!bytes) throw new Problem(`The block ${name} is missing from this page.`);
    decoded.set(name, decode(name, shape.deflated ? await inflate(name, bytes) : bytes, shape));
    source.counted += 1;
  };
  const loadOne = (name) => {
    if (decoded.has(name)) return null;
    if (!pending.has(name)) pending.set(name, fetchOne(name).finally(() => pending.delete(name)));
    return pending.get(name);
  };
  const source = {
    manifest, counted: 0,
    has: (name) => decoded.has(name),
    load: async (names) => void (await Promise.all(names.map(loadOne))),
    block(name) {
      if (!decoded.has(name)) throw new Problem(`The block ${name} was requested before it was loaded.`);
      return decoded.get(name);
    },
  };
  return source;
}

/**
 * @param {string|undefined} text JSON
 * @returns {Manifest}
 */
function readManifest(text) {
  if (!text) throw new Problem("This page holds no data: its manifest is missing.");
  let manifest;
  try {
    manifest = JSON.parse(text);
  } catch {
    throw new Problem("The data of this page is damaged: its manifest is not valid JSON.");
  }
  if (manifest?.format !== "pellucid-view") throw new Problem("The data of this page is not a pellucid view.");
  if (manifest.version !== VERSION) {
    const which = manifest.version > VERSION ? "open it with a newer pellucid" : "save the page again from its trace";
    throw new Problem(`This data has version ${manifest.version}, and this page reads version ${VERSION}: ${which}.`);
  }
  if (!manifest.attentions?.length) throw new Problem("There is nothing to draw: no attention was recorded.");
  if (!manifest.sequences?.every((sequence) => sequence.tokens?.length)) throw new Problem("There is nothing to draw: the text has no tokens.");
  return manifest;
}

/** Bytes -> numbers, checked against the shape in the manifest. */
function decode(name, bytes, shape) {
  const dtype = DTYPES[shape.dtype];
  if (!dtype) throw new Problem(`The block ${name} has the number type ${shape.dtype}, which this page cannot read.`);
  const [size, read] = dtype;
  const expected = size * shape.shape.reduce((product, side) => product * side, 1);
  if (bytes.byteLength !== expected) {
    throw new Problem(`The block ${name} is damaged: it has ${bytes.byteLength} bytes and should have ${expected}.`);
  }
  return read(bytes.byteOffset ? bytes.slice() : bytes, shape);
}

/** Base64 text -> bytes. */
function bytesOf(name, base64) {
  let binary;
  try {
    binary = atob(base64.trim());
  } catch {
    throw new Problem(`The block ${name} is damaged: it is not valid base64.`);
  }
  const bytes = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) bytes[index] = binary.charCodeAt(index);
  return bytes;
}

/** zlib's format (RFC 1950) -> bytes. */
async function inflate(name, bytes) {
  try {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new Problem(`The block ${name} is damaged: it cannot be unpacked.`);
  }
}

/**
 * Integers times the factor of their head. @param {Int16Array} codes, head by head @param {number[]} scales one for each head
 */
export function scaled(codes, scales) {
  const numbers = new Float32Array(codes.length);
  const each = codes.length / scales.length;
  scales.forEach((scale, head) => {
    for (let index = head * each; index < (head + 1) * each; index++) numbers[index] = codes[index] * scale;
  });
  return numbers;
}
