// data.js: what the page was given. A manifest (JSON) says what there is; blocks (base64) hold the numbers.
// A block is decoded when it is first asked for, so a long text costs nothing until its layer is opened.

/**
 * @typedef {{text: string, id: number, kind: "special"|"word"|"subword", segment: number}} Token
 * @typedef {{scale: number, mask: "full"|"causal"}} Recipe
 * @typedef {{name: string, layer: number, kind: string, query: string, key: string, recipe: Recipe, max_error?: number}} Entry
 * @typedef {{dtype: "float32"|"float16", shape: number[]}} Shape
 * @typedef {{model: any, texts: string[], tokens: Token[], attentions: Entry[], blocks: Record<string, Shape>, show: any}} Manifest
 * @typedef {{manifest: Manifest, block: (name: string) => Float32Array}} Source
 */

/** The newest manifest version that this page can read. */
const VERSION = 1;

/** A fault that is told to the reader in one plain sentence. */
export class Problem extends Error {}

/** Number types: bytes per number, and how to read one (always little-endian). */
const DTYPES = {
  float32: [4, (view, at) => view.getFloat32(at, true)],
  float16: [2, (view, at) => fromHalf(view.getUint16(at, true))],
};

/**
 * Reads the data that stands inside `root` itself, so that several views can share a page.
 * @param {Element} root
 * @returns {Source}
 */
export function inlineSource(root) {
  const manifest = readManifest(root.querySelector("script.pellucid-manifest"));
  const scripts = new Map([...root.querySelectorAll("script[data-block]")].map((s) => [s.getAttribute("data-block"), s]));
  const decoded = new Map();
  const block = (name) => {
    if (!decoded.has(name)) decoded.set(name, decode(name, scripts.get(name), manifest.blocks[name]));
    return decoded.get(name);
  };
  return { manifest, block };
}

/** @returns {Manifest} */
function readManifest(script) {
  if (!script) throw new Problem("This page holds no data: its manifest is missing.");
  let manifest;
  try {
    manifest = JSON.parse(script.textContent);
  } catch {
    throw new Problem("The data of this page is damaged: its manifest is not valid JSON.");
  }
  if (manifest?.format !== "pellucid-view") throw new Problem("The data of this page is not a pellucid view.");
  if (manifest.version > VERSION) {
    const known = `this page can read up to version ${VERSION}`;
    throw new Problem(`This data has version ${manifest.version}, and ${known}: a newer pellucid can draw it.`);
  }
  if (!manifest.tokens?.length) throw new Problem("There is nothing to draw: the text has no tokens.");
  if (!manifest.attentions?.length) throw new Problem("There is nothing to draw: no attention was recorded.");
  return manifest;
}

/** Base64 text -> numbers, checked against the shape that the manifest promises. */
function decode(name, script, shape) {
  if (!script || !shape) throw new Problem(`The block ${name} is missing from this page.`);
  const dtype = DTYPES[shape.dtype];
  if (!dtype) throw new Problem(`The block ${name} has the number type ${shape.dtype}, which this page cannot read.`);
  const [size, read] = dtype;
  const view = new DataView(bytesOf(name, script.textContent).buffer);
  const count = shape.shape.reduce((product, side) => product * side, 1);
  if (view.byteLength !== count * size) {
    throw new Problem(`The block ${name} is damaged: it has ${view.byteLength} bytes and should have ${count * size}.`);
  }
  return Float32Array.from({ length: count }, (_, place) => read(view, place * size));
}

function bytesOf(name, base64) {
  let binary;
  try {
    binary = atob(base64.trim());
  } catch {
    throw new Problem(`The block ${name} is damaged: it is not valid base64.`);
  }
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place++) bytes[place] = binary.charCodeAt(place);
  return bytes;
}

/**
 * Half precision: 1 bit of sign, 5 of exponent, 10 of fraction.
 * @param {number} bits
 */
export function fromHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
