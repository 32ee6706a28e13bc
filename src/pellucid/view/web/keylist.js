// keylist.js: all keys of one query as rows: the vector, its products with the query, score and weight.
// Only the rows on screen exist as elements, so 2,000 keys cost no more than 20.
import { make, scrollPageTo, scrollToBox, setAttribute, syncChildren } from "./dom.js";
import { tokenLabel, tokenTitle, withMinusSign } from "./tokens.js";
import { paintVector } from "./vectors.js";

/** Heights of a row and of its strips, in pixels. */
const [ROW, STRIP] = [30, 14];

/**
 * @typedef {object} Picture what the rows show
 * @property {string} name identifies the numbers
 * @property {import("./data.js").Token[]} tokens
 * @property {number[]} keys in the order of the list
 * @property {number|null} selected
 * @property {number} largest the largest weight of all keys
 * @property {{key: number, product: number}} ends the numbers at the ends of both ramps
 * @property {import("./vectors.js").Appearance} appearance
 * @property {(key: number) => import("./chain.js").Steps} steps
 */

export class KeyList {
  /** @param {{press: (key: number) => void, point: (key: number|null, dimension: number|null) => void, ready: () => boolean}} listeners */
  constructor(listeners) {
    this.listeners = listeners;
    /** @type {Map<number, HTMLElement>} */
    this.rows = new Map();
    const name = (text) => make("span", {}, text);
    this.body = make("div", { class: "keylist-body", role: "listbox", "aria-label": "keys: tokens attended to",
      onclick: (event) => this.rowOf(event) && listeners.press(Number(this.rowOf(event).dataset.key)),
      onmousemove: (event) => listeners.ready() && this.point(event), onmouseleave: () => listeners.point(null, null) });
    this.names = make("div", { class: "keylist-names", "aria-hidden": "true" }, make("b", {}, "key"),
      name("key vector"), name("query × key"), name("score"), name("weight"));
    this.element = make("div", { class: "keylist scroller", onscroll: () => listeners.ready() && this.draw() }, this.names, this.body);
  }

  rowOf(event) {
    return event.target.closest(".keylist-row");
  }

  /** @param {Picture} [picture] omitted: the same as before, after scrolling */
  draw(picture = this.picture) {
    if (!picture) return;
    if (this.picture?.name !== picture.name || this.picture.keys !== picture.keys) this.clear(picture);
    this.picture = picture;
    const { scrollTop: top, clientHeight: height } = this.element;
    const [first, last] = [Math.floor(top / ROW) - 3, Math.ceil((top + height) / ROW) + 3];
    const tabStop = picture.keys.includes(picture.selected) ? picture.selected : picture.keys[0];
    const shown = picture.keys.filter((key, at) => (at >= first && at < last) || key === tabStop);
    const width = this.stripWidth();
    syncChildren(this.body, this.rows, shown, (key) => this.makeRow(key, width));
    for (const [key, element] of this.rows) {
      setAttribute(element, "tabindex", key === tabStop ? 0 : -1);
      setAttribute(element, "aria-selected", key === picture.selected);
    }
  }

  /** The visible rows. */
  visibleRange() {
    const { scrollTop: top, clientHeight } = this.element;
    const { length: count } = this.picture.keys;
    const to = Math.min(count, (top + clientHeight - this.names.offsetHeight) / ROW);
    return { name: "rows", from: top / ROW, to, count, of: `the ${count} keys` };
  }

  clear({ keys }) {
    this.rows.clear();
    this.body.replaceChildren();
    this.body.style.height = `${keys.length * ROW}px`;
  }

  /** The width of the strips in the style sheet. */
  stripWidth() {
    return this.names.children[1].clientWidth;
  }

  makeRow(key, width) {
    const { keys, tokens, steps, ends, appearance, largest } = this.picture;
    const [numbers, at] = [steps(key), keys.indexOf(key)];
    const [vector, product] = [make("canvas", { "data-part": "key" }), make("canvas", { "data-part": "product" })];
    if (width > 0) {
      paintVector(vector, numbers.key, { width, height: STRIP, end: ends.key, ...appearance });
      paintVector(product, numbers.products, { width, height: STRIP, end: ends.product, ...appearance });
    }
    const score = make("span", { class: "keylist-score" }, numbers.allowed ? fewDigits(numbers.score) : "masked");
    const weight = make("span", { class: "keylist-weight" }, make("span", { class: "bar" }), make("span", {}, numbers.weight.toFixed(6)));
    weight.style.setProperty("--weight", largest ? numbers.weight / largest : 0);
    const element = make("div", { class: "keylist-row", role: "option", "data-key": key, title: tokenTitle(tokens, key),
      "aria-posinset": at + 1, "aria-setsize": keys.length },
      make("span", { class: "keylist-token" }, tokenLabel(tokens[key]), make("small", {}, String(key))), vector, product, score, weight);
    setAttribute(element, "data-masked", !numbers.allowed);
    element.style.top = `${at * ROW}px`;
    return element;
  }

  /** The key and the index of its number under the pointer. */
  point(event) {
    const row = this.rowOf(event);
    const canvas = event.target.closest("canvas");
    if (!row || !canvas) return this.listeners.point(null, null);
    const key = Number(row.dataset.key);
    const box = canvas.getBoundingClientRect();
    const size = this.picture.steps(key).key.length;
    return this.listeners.point(key, Math.min(size - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * size))));
  }

  /** Scrolls a key into view and focuses it. */
  reveal(key, focus = true) {
    const top = this.picture.keys.indexOf(key) * ROW;
    if (top < 0) return;
    const below = top + this.names.offsetHeight;
    scrollToBox(this.element, { top, bottom: below + ROW + 2 });
    if (!focus) return;
    scrollPageTo(this.element, below, below + ROW);
    requestAnimationFrame(() => this.rows.get(key)?.focus({ preventScroll: true }));
  }
}

/** A score with few digits, to compare at a glance; the chain has all digits. */
function fewDigits(score) {
  return Number.isNaN(score) ? "NaN" : withMinusSign(score.toFixed(3));
}
