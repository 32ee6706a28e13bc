// attention.js: the arithmetic of this page. As a rule attention weights are not stored; they are computed here, when looked at:
//
//   score[i,j]  = (turn(query[i], i) · turn(key[j], j)) * scale + bias[j - i]    for every key j that query i may see
//   weight[i,j] = exp(score[i,j]) / sum over j of exp(score[i,j])                (softmax: the row adds up to 1)
//
// The stored numbers are float32, or whole numbers of 16 bits with a factor for each head; all sums run in float64. Where weights were stored, they are read as they are.
import { Problem } from "./data.js";

/** Rows and columns are kept once computed, up to this many numbers (80 MB). */
const CACHE_LIMIT = 1e7;

/** @typedef {{largest: number, total: number}} Norm the largest score of a query, and the sum of exp(score - largest) over its keys */

/** May query i see key j? */
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
    if (!hasNumbers(entry)) throw new Problem(leftOut(entry));
    this.entry = entry;
    this.heads = entry.heads;
    this.keyHeads = entry.key_heads;
    this.stored = Boolean(entry.weights);
    const [queries, keys, size] = shapeOf(source.manifest.blocks, entry);
    [this.queries, this.keys, this.size] = [queries, keys, size];
    const shape = source.manifest.blocks[entry.weights ?? entry.query];
    [this.dtype, this.coding] = [shape.dtype, shape.coding];
    this.recipe = entry.recipe;
    this.mask = MASKS[entry.recipe.mask];
    if (!this.mask) throw new Problem(`The mask “${entry.recipe.mask}” is not known to this page: a newer pellucid can draw it.`);
    const block = (name) => (name ? source.block(name) : null);
    this.weights = block(entry.weights);
    this.bias = block(entry.recipe.bias);
    this.rotation = block(entry.recipe.rotation);
    this.before = { query: block(entry.query), key: block(entry.key) };
    this.query = this.turned(this.before.query, queries);
    this.key = this.turned(this.before.key, keys);
    this.lines = new Map();
    this.cells = 0;
    /** @type {Norm[][]} of every head and query that was looked at: a weight then needs its own score alone, so a column no rows */
    this.norms = Array.from({ length: this.heads }, () => []);
  }

  /** May this query look at this key at all? */
  sees(query, key) {
    return this.mask(query, key, this.recipe.window);
  }

  /** Several heads may share one set of keys. */
  keyHead(head) {
    return Math.floor((head * this.keyHeads) / this.heads);
  }

  /** The weights of one query over all keys. */
  row(head, query) {
    return this.kept(`${head}/${query}`, () => {
      if (this.stored) return this.storedRow(head, query);
      const weights = this.scores(head, query);
      this.norms[head][query] = softmax(weights);
      return weights;
    });
  }

  /** The weights that one key gets from all queries. */
  column(head, key) {
    return this.kept(`${head}/to/${key}`, () => {
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
    return this.kept(`${heads}/mean/${query}`, () => meanOf(heads.map((head) => this.row(head, query))));
  }

  /** The mean of that column over several heads. */
  meanColumn(heads, key) {
    return this.kept(`${heads}/mean/to/${key}`, () => meanOf(heads.map((head) => this.column(head, key))));
  }

  /** The scores of one query with every key; what the mask forbids is -Infinity. */
  scores(head, query) {
    const scores = new Float64Array(this.keys);
    for (let key = 0; key < this.keys; key++) scores[key] = this.score(head, query, key);
    return scores;
  }

  /** One score; -Infinity where the mask forbids it. */
  score(head, query, key) {
    if (!this.sees(query, key)) return -Infinity;
    const { size } = this;
    const from = (head * this.queries + query) * size;
    const to = (this.keyHead(head) * this.keys + key) * size;
    let dot = 0;
    for (let place = 0; place < size; place++) dot += this.query[from + place] * this.key[to + place];
    return dot * this.recipe.scale + this.biasOf(head, query, key);
  }

  /** What is added to a score for the distance of the two tokens. */
  biasOf(head, query, key) {
    return this.bias ? this.bias[head * (this.queries + this.keys - 1) + key - query + this.queries - 1] : 0;
  }

  /**
   * One weight, taken apart. Null where only weights were stored.
   * @returns {null|{queryBefore: Float32Array|null, keyBefore: Float32Array|null, query: Float64Array|Float32Array,
   *   key: Float64Array|Float32Array, products: Float64Array, sum: number, scale: number, scaled: number, bias: number, score: number,
   *   seen: boolean, largest: number, exponential: number, total: number, weight: number}}
   */
  steps(head, query, key) {
    if (!this.query || !this.key) return null;
    const { size } = this;
    const at = { query: (head * this.queries + query) * size, key: (this.keyHead(head) * this.keys + key) * size };
    const part = (numbers, side) => numbers.slice(at[side], at[side] + size);
    const [left, right] = [part(this.query, "query"), part(this.key, "key")];
    const products = Float64Array.from({ length: size }, (_, place) => left[place] * right[place]);
    const sum = products.reduce((total, product) => total + product, 0);
    const [seen, scale, bias] = [this.sees(query, key), this.recipe.scale, this.biasOf(head, query, key)];
    const [score, { largest, total }] = [this.score(head, query, key), this.norm(head, query)];
    return {
      queryBefore: this.rotation && part(this.before.query, "query"), keyBefore: this.rotation && part(this.before.key, "key"),
      query: left, key: right, products, sum, scale, scaled: sum * scale, bias, score, seen, largest,
      exponential: Math.exp(score - largest), total, weight: this.weight(head, query, key),
    };
  }

  /** Rotary positions: the pair (c, c + size/2) of each vector is turned by the angle of its token. */
  turned(vectors, tokens) {
    if (!this.rotation || !vectors) return vectors;
    const half = this.size / 2;
    const sines = this.rotation.length / 2;
    const result = new Float64Array(vectors.length);
    for (let from = 0, row = 0; from < vectors.length; from += this.size, row++) {
      const angle = (row % tokens) * half;
      for (let place = 0; place < half; place++) {
        const [cosine, sine] = [this.rotation[angle + place], this.rotation[sines + angle + place]];
        const [a, b] = [vectors[from + place], vectors[from + half + place]];
        result[from + place] = a * cosine - b * sine;
        result[from + half + place] = b * cosine + a * sine;
      }
    }
    return result;
  }

  kept(name, compute) {
    let line = this.lines.get(name);
    if (line) return line;
    line = compute();
    if ((this.cells += line.length) > CACHE_LIMIT) {
      this.lines.clear();
      this.cells = line.length;
    }
    this.lines.set(name, line);
    return line;
  }
}

/** Queries, keys and places of a vector, from whichever blocks there are. */
function shapeOf(shapes, entry) {
  if (entry.weights) return [shapes[entry.weights].shape[1], shapes[entry.weights].shape[2], shapes[entry.query]?.shape[2] ?? 0];
  return [shapes[entry.query].shape[1], shapes[entry.key].shape[1], shapes[entry.query].shape[2]];
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
  for (const line of lines) line.forEach((weight, place) => (mean[place] += weight / lines.length));
  return mean;
}

/**
 * The place of the largest number among `places`; the first of them where none holds a number.
 * @param {Float64Array} weights
 * @param {number[]} places
 */
export function strongest(weights, places) {
  const larger = (one, other) => one > other || (Number.isNaN(other) && !Number.isNaN(one));
  return places.reduce((best, place) => (larger(weights[place], weights[best]) ? place : best), places[0]);
}

/** What is said of an attention without numbers. @param {import("./data.js").Entry} entry */
export function leftOut({ name, thumb }) {
  return `The numbers of ${name} were left out to keep this page small${thumb ? "; its picture is in the view of the whole model" : ""}.`;
}

/** Does the page hold what the weights come from? @param {import("./data.js").Entry} entry */
export function hasNumbers(entry) {
  return Boolean(entry.weights || (entry.query && entry.key));
}

/** The blocks that an attention is computed from. @param {import("./data.js").Entry} entry @returns {string[]} */
export function blocksOf(entry) {
  return [entry.weights, entry.query, entry.key, entry.recipe.bias, entry.recipe.rotation].filter((name) => typeof name === "string");
}
