// column.js: one column of tokens in the heads view, as a listbox.
// Only the rows on screen exist as elements, so 2,000 tokens cost no more than 40.
import { keepOnly, make, mark } from "./dom.js";
import { before } from "./paper.js";
import { tokenLabel, tokenTitle } from "./tokens.js";

/** @typedef {{tops: number[], height: number, row: number, middle: number}} Layout the positions of the tokens of a column, in pixels */

/**
 * Places tokens one below another, with a gap between texts.
 * @param {import("./data.js").Token[]} tokens
 * @param {number[]} indices the tokens shown
 * @param {boolean} stacked whether a number is below its word instead of beside it
 * @returns {Layout}
 */
function layOut(tokens, indices, stacked) {
  const row = stacked ? 40 : indices.length <= 24 ? 30 : indices.length <= 64 ? 26 : 22;
  const tops = [];
  let height = 0;
  indices.forEach((index, place) => {
    if (place && tokens[index].segment !== tokens[indices[place - 1]].segment) height += 22;
    tops.push(height);
    height += row;
  });
  return { tops, height, row, middle: stacked ? 13 : row / 2 };
}

export class Column {
  /**
   * @param {"query"|"key"} side
   * @param {import("./data.js").Token[]} tokens
   * @param {number[]} indices the tokens shown
   * @param {{enter: (side: string, index: number) => void, press: (side: string, index: number) => void}} hand
   * @param {boolean} [stacked] whether a number is below its word instead of beside it
   */
  constructor(side, tokens, indices, hand, stacked = false) {
    [this.tokens, this.indices, this.layout] = [tokens, indices, layOut(tokens, indices, stacked)];
    /** @type {Map<number, HTMLElement>} */
    this.rows = new Map();
    this.twins = repeated(tokens.map((token) => token.text));
    const of = (event) => event.target.closest(".row");
    const forward = (action) => (event) => of(event) && action(side, Number(of(event).dataset.index));
    this.element = make("div", {
      class: `column ${side}`, role: "listbox",
      "aria-label": side === "query" ? "queries: tokens that attend" : "keys: tokens attended to",
      onmouseover: forward(hand.enter), onclick: forward(hand.press),
      onfocusin: (event) => of(event)?.matches(":focus-visible") && forward(hand.enter)(event),
    });
    this.element.style.height = `${this.layout.height}px`;
  }

  /**
   * @param {number} from first pixel on screen
   * @param {number} to last pixel on screen
   * @param {{active: number|null, other: number|null, pinned: boolean, weight: ((index: number) => number|null)|null}} look
   *   `weight` is the weight between the active token and each token of this column, null where masked
   */
  draw(from, to, look) {
    const { tops, row } = this.layout;
    const reachable = look.active ?? look.other ?? this.reachable ?? this.indices[0];
    const shown = this.indices.filter((index, place) => (tops[place] + 2 * row > from && tops[place] - row < to) || index === reachable);
    keepOnly(this.element, this.rows, shown, (index) => this.makeRow(index));
    const largest = look.weight ? Math.max(0, ...this.indices.map(look.weight).filter(Number.isFinite)) : 0;
    for (const index of shown) this.drawRow(this.rows.get(index), index, look, largest, reachable);
    this.reachable = reachable;
  }

  makeRow(index) {
    const [title, place] = [tokenTitle(this.tokens, index), this.indices.indexOf(index)];
    const element = make("div", { class: "row", role: "option", "data-index": index, title, "aria-posinset": place + 1, "aria-setsize": this.indices.length },
      tokenLabel(this.tokens[index]), make("span", { class: "bar" }), make("span", { class: "number" }));
    mark(element, "data-twin", this.twins.has(this.tokens[index].text));
    element.style.top = `${this.layout.tops[place]}px`;
    element.style.height = `${this.layout.row}px`;
    return element;
  }

  drawRow(element, index, look, largest, reachable) {
    const weight = look.weight?.(index) ?? null;
    mark(element, "tabindex", index === reachable ? 0 : -1);
    mark(element, "aria-selected", index === look.active);
    mark(element, "data-other", index === look.other);
    mark(element, "data-pinned", look.pinned && index === look.active);
    mark(element, "data-unseen", Boolean(look.weight) && weight === null);
    const number = weight !== null ? weight.toFixed(6) : look.weight ? "masked" : "";
    if (element.lastChild.textContent !== number) element.lastChild.textContent = number;
    element.style.setProperty("--weight", weight > 0 && weight < Infinity && largest > 0 ? weight / largest : 0);
  }

  /** The visible rows of a column inside `scroller`. */
  inSight(scroller, name) {
    const { tops, row } = this.layout;
    const { scrollTop: top, clientHeight: height } = scroller;
    const [from, to] = [top, top + height].map((edge) => before(edge, tops, () => row));
    return { name: "rows", from, to, count: tops.length, of: `the ${tops.length} ${name}` };
  }

  /** Focuses a token. */
  focus(index) {
    this.rows.get(index)?.focus({ preventScroll: true });
  }
}

/** The texts that occur more than once; while one of them is active, their rows show their indices. */
function repeated(texts) {
  const seen = new Set();
  return new Set(texts.filter((text) => seen.has(text) || !seen.add(text)));
}
