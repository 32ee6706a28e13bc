// headfacts.js: facts beside the numbers of the neuron view: which heads share keys, the range of the colours, the rotation.
import { make } from "./dom.js";
import { exact } from "./tokens.js";

/**
 * For example "Heads 0 to 2 share key head 0."
 * @param {import("./attention.js").Attention} attention
 * @param {number} head
 */
export function sharing(attention, head) {
  const mine = attention.keyHead(head);
  const heads = [...Array(attention.heads).keys()].filter((other) => attention.keyHead(other) === mine);
  return heads.length > 1 ? `Heads ${heads[0]} to ${heads.at(-1)} share key head ${mine}.` : "";
}

/**
 * The largest finite absolute values of this query, of all keys of its head, and of all their products.
 * @param {import("./attention.js").Attention} attention
 * @param {number} head
 * @param {number} query
 * @returns {{query: number, key: number, product: number}}
 */
export function endsOf(attention, head, query) {
  const { size, keys } = attention;
  const from = { query: (head * attention.queries + query) * size, key: attention.keyHead(head) * keys * size };
  const ends = { query: largestOf(attention.before.query, from.query, size, 1), key: largestOf(attention.before.key, from.key, size * keys, 1), product: 0 };
  for (let place = 0; place < size; place++) {
    const mine = largestOf(attention.query, from.query + place, 1, 1);
    const theirs = largestOf(attention.key, from.key + place, keys * size - place, size);
    ends.query = Math.max(ends.query, mine);
    ends.key = Math.max(ends.key, theirs);
    ends.product = Math.max(ends.product, mine * theirs);
  }
  return ends;
}

function largestOf(numbers, from, count, step) {
  let largest = 0;
  for (let at = from; at < from + count; at += step) {
    const size = Math.abs(numbers[at]);
    if (size > largest && size < Infinity) largest = size;
  }
  return largest;
}

/**
 * How rotation produced the two numbers of one dimension; empty without rotation.
 * @param {import("./app.js").Page} page
 * @param {import("./chain.js").Steps} steps
 * @param {{query: number, key: number}} pair
 * @param {number} place the dimension
 */
export function turnsOf(page, steps, pair, place) {
  const { rotation } = page.attention().recipe;
  if (!rotation) return [];
  const table = page.source.block(rotation);
  const half = steps.query.length / 2;
  const partner = place < half ? place + half : place - half;
  return ["query", "key"].map((side) => {
    const at = pair[side] * half + (place % half);
    const [cosine, sine, before] = [table[at], table[table.length / 2 + at], steps[`${side}Before`]];
    const number = (value) => make("b", {}, exact(value));
    return make("p", { class: "neuron-turn", "data-side": side }, `${side}, rotated with dimension ${partner}: `, number(before[place]), " × cosine ", number(cosine),
      place < half ? " − " : " + ", number(before[partner]), " × sine ", number(sine), " = ", number(steps[side][place]));
  });
}
