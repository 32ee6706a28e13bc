// attention.js: the arithmetic of this page. Attention weights are usually not stored, but computed here on demand:
//
//   score[i,j]  = (turn(query[i], i) · turn(key[j], j)) * scale + bias[j - i]    for every key j that query i may attend to
//   weight[i,j] = exp(score[i,j]) / sum over j of exp(score[i,j])                (softmax: the row sums to 1)
//
// Stored numbers are float32, or int16 with a factor for each head; all sums are computed in float64. Stored weights are used as they are.
import { Problem } from "./data.js";

/** The size of the cache of computed rows and columns, in numbers (80 MB). */
const CACHE_LIMIT = 1e7;

/** @typedef {{largest: number, total: number}} Norm the largest score of a query, and the sum of exp(score - largest) over its keys */

/** Whether query i may attend to key j. */
const MASKS = {
  full: () => true,
  causal: (query, key) => key <= query,
  window: (query, key, window) => key <= query && key > query - window,
};

/** One attention of the model: every row of every head, on demand. */
export class Attention {
  /**
   * @param {import("./data.js").Source} source
   * @param {import("./data.js").Entry} entry its blocks must be loaded
   */
  constructor(source, entry) {
    if (!hasNumbers(entry)) throw new Problem(omittedMessage(entry));
    this.entry = entry;
    this.heads = entry.heads;
    this.keyHeads = entry.key_heads;
    this.stored = Boolean(entry.weights);
    const { blocks } = source.manifest;
    const { shape, dtype, coding } = blocks[entry.weights ?? entry.query];
    [this.dtype, this.coding, this.queries] = [dtype, coding, shape[1]];
    [this.keys, this.size] = this.stored ? [shape[2], 0] : [blocks[entry.key].shape[1], shape[2]];
    this.recipe = entry.recipe;
    this.mask = MASKS[entry.recipe.mask];
    if (!this.mask) throw new Problem(`The mask “${entry.recipe.mask}” is unknown to this page: open it with a newer pellucid.`);
    const block = (name) => (name ? source.block(name) : null);
    this.weights = block(entry.weights);
    this.bias = block(entry.recipe.bias);
    this.rotation = block(entry.recipe.rotation);
    this.unrotated = { query: block(entry.query), key: block(entry.key) };
    this.query = this.rotated(this.unrotated.query, this.queries);
    this.key = this.rotated(this.unrotated.key, this.keys);
    this.cache = new Map();
    this.cachedNumbers = 0;
    /** @type {Norm[][]} of every head and query used so far: with it a weight needs only its own score, so a column needs no rows */
    this.norms = Array.from({ length: this.heads }, () => []);
  }

  /** Whether this query may attend to this key. */
  mayAttend(query, key) {
    return this.mask(query, key, this.recipe.window);
  }

  /** Several heads may share one set of keys. */
  keyHead(head) {
    return Math.floor((head * this.keyHeads) / this.heads);
  }

  /** The weights of one query over all keys. */
  row(head, query) {
    return this.cached(`${head}/${query}`, () => {
      if (this.stored) return this.storedRow(head, query);
      const weights = this.scores(head, query);
      this.norms[head][query] = softmax(weights);
      return weights;
    });
  }

  /** The weights of all queries on one key. */
  column(head, key) {
    return this.cached(`${head}/to/${key}`, () => {
      const weights = new Float64Array(this.queries);
      for (let query = 0; query < this.queries; query++) weights[query] = this.weight(head, query, key);
      return weights;
    });
  }

  /** One weight. */
  weight(head, query, key) {
    if (this.stored) return this.weights[(head * this.queries + query) * this.keys + key];
    const { largest, total } = this.norm(head, query);
    return Math.exp(this.score(head, query, key) - largest) / total;
  }

  /** @returns {Norm} */
  norm(head, query) {
    return (this.norms[head][query] ??= softmax(this.scores(head, query)));
  }

  storedRow(head, query) {
    const from = (head * this.queries + query) * this.keys;
    return Float64Array.from(this.weights.subarray(from, from + this.keys));
  }

  /** The mean of that row over several heads. */
  meanRow(heads, query) {
    return this.cached(`${heads}/mean/${query}`, () => meanOf(heads.map((head) => this.row(head, query))));
  }

  /** The mean of that column over several heads. */
  meanColumn(heads, key) {
    return this.cached(`${heads}/mean/to/${key}`, () => meanOf(heads.map((head) => this.column(head, key))));
  }

  /** The scores of one query with every key; -Infinity where masked. */
  scores(head, query) {
    const scores = new Float64Array(this.keys);
    for (let key = 0; key < this.keys; key++) scores[key] = this.score(head, query, key);
    return scores;
  }

  /** One score; -Infinity where masked. */
  score(head, query, key) {
    if (!this.mayAttend(query, key)) return -Infinity;
    const { size } = this;
    const from = (head * this.queries + query) * size;
    const to = (this.keyHead(head) * this.keys + key) * size;
    let dot = 0;
    for (let dimension = 0; dimension < size; dimension++) dot += this.query[from + dimension] * this.key[to + dimension];
    return dot * this.recipe.scale + this.biasOf(head, query, key);
  }

  /** The position bias of a score, by the distance of its two tokens. */
  biasOf(head, query, key) {
    return this.bias ? this.bias[head * (this.queries + this.keys - 1) + key - query + this.queries - 1] : 0;
  }

  /**
   * The steps of computing one weight from a query and a key, which are stored instead of weights.
   * @returns {{queryBefore: Float32Array|null, keyBefore: Float32Array|null, query: Float64Array|Float32Array,
   *   key: Float64Array|Float32Array, products: Float64Array, sum: number, scale: number, scaled: number, bias: number, score: number,
   *   allowed: boolean, largest: number, exponential: number, total: number, weight: number}}
   */
  steps(head, query, key) {
    const { size } = this;
    const at = { query: (head * this.queries + query) * size, key: (this.keyHead(head) * this.keys + key) * size };
    const part = (numbers, side) => numbers.slice(at[side], at[side] + size);
    const [left, right] = [part(this.query, "query"), part(this.key, "key")];
    const products = Float64Array.from({ length: size }, (_, dimension) => left[dimension] * right[dimension]);
    const sum = products.reduce((total, product) => total + product, 0);
    const [allowed, scale, bias] = [this.mayAttend(query, key), this.recipe.scale, this.biasOf(head, query, key)];
    const [score, { largest, total }] = [this.score(head, query, key), this.norm(head, query)];
    const exponential = Math.exp(score - largest);
    return {
      queryBefore: this.rotation && part(this.unrotated.query, "query"), keyBefore: this.rotation && part(this.unrotated.key, "key"),
      query: left, key: right, products, sum, scale, scaled: sum * scale, bias, score, allowed, largest,
      exponential, total, weight: exponential / total,
    };
  }

  /** Rotary positions: the pair (c, c + size/2) of each vector is rotated by the angle of its token's position. */
  rotated(vectors, tokens) {
    if (!this.rotation) return vectors;
    const half = this.size / 2;
    const sines = this.rotation.length / 2;
    const result = new Float64Array(vectors.length);
    for (let from = 0, row = 0; from < vectors.length; from += this.size, row++) {
      const angle = (row % tokens) * half;
      for (let dimension = 0; dimension < half; dimension++) {
        const [cosine, sine] = [this.rotation[angle + dimension], this.rotation[sines + angle + dimension]];
        const [a, b] = [vectors[from + dimension], vectors[from + half + dimension]];
        result[from + dimension] = a * cosine - b * sine;
        result[from + half + dimension] = b * cosine + a * sine;
      }
    }
    return result;
  }

  cached(key, compute) {
    let line = this.cache.get(key);
    if (line) return line;
    line = compute();
    if ((this.cachedNumbers += line.length) > CACHE_LIMIT) {
      this.cache.clear();
      this.cachedNumbers = line.length;
    }
    this.cache.set(key, line);
    return line;
  }
}

/** In place: exp(score - largest score), divided by the sum. @returns {Norm} */
function softmax(scores) {
  const largest = scores.reduce((most, score) => (score > most ? score : most), -Infinity);
  let total = 0;
  for (let key = 0; key < scores.length; key++) total += scores[key] = Math.exp(scores[key] - largest);
  for (let key = 0; key < scores.length; key++) scores[key] /= total;
  return { largest, total };
}

/** @param {Float64Array[]} lines of the same length */
function meanOf(lines) {
  const mean = new Float64Array(lines[0].length);
  for (const line of lines) line.forEach((weight, index) => (mean[index] += weight / lines.length));
  return mean;
}

/**
 * The index, out of `indices`, of the largest number; the first where none holds a number.
 * @param {Float64Array} weights
 * @param {number[]} indices
 */
export function argmax(weights, indices) {
  const larger = (one, other) => one > other || (Number.isNaN(other) && !Number.isNaN(one));
  return indices.reduce((best, index) => (larger(weights[index], weights[best]) ? index : best), indices[0]);
}

/** The message for an attention without numbers. @param {import("./data.js").Entry} entry */
export function omittedMessage({ name, thumb }) {
  return `The numbers of ${name} were left out to keep this page small${thumb ? "; its picture is in the Model view" : ""}.`;
}

/** Whether the page holds the data of the weights. @param {import("./data.js").Entry} entry */
export function hasNumbers(entry) {
  return Boolean(entry.weights || (entry.query && entry.key));
}

/** The blocks that an attention is computed from. @param {import("./data.js").Entry} entry @returns {string[]} */
export function blocksOf(entry) {
  return [entry.weights, entry.query, entry.key, entry.recipe.bias, entry.recipe.rotation].filter((name) => typeof name === "string");
}
