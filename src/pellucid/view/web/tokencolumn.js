// tokencolumn.js: one column of tokens in the heads view, as a listbox.
// Only the rows on screen exist as elements, so 2,000 tokens cost no more than 40.
import { make, setAttribute, syncChildren } from "./dom.js";
import { boxesBefore } from "./printing.js";
import { tokenLabel, tokenTitle } from "./tokens.js";

/** @typedef {{tops: number[], height: number, rowHeight: number, middle: number}} Layout the positions of the tokens of a column, in pixels */

/**
 * Places tokens one below another, with a gap between texts.
 * @param {import("./data.js").Token[]} tokens
 * @param {number[]} indices the tokens shown
 * @param {boolean} stacked whether a number is below its word instead of beside it
 * @returns {Layout}
 */
function layoutOf(tokens, indices, stacked) {
  const rowHeight = stacked ? 40 : indices.length <= 24 ? 30 : indices.length <= 64 ? 26 : 22;
  const tops = [];
  let height = 0;
  indices.forEach((index, row) => {
    if (row && tokens[index].segment !== tokens[indices[row - 1]].segment) height += 22;
    tops.push(height);
    height += rowHeight;
  });
  return { tops, height, rowHeight, middle: stacked ? 13 : rowHeight / 2 };
}

export class TokenColumn {
  /**
   * @param {"query"|"key"} side
   * @param {import("./data.js").Token[]} tokens
   * @param {number[]} indices the tokens shown
   * @param {{enter: (side: string, index: number) => void, press: (side: string, index: number) => void}} listeners
   * @param {boolean} [stacked] whether a number is below its word instead of beside it
   */
  constructor(side, tokens, indices, listeners, stacked = false) {
    [this.tokens, this.indices, this.layout] = [tokens, indices, layoutOf(tokens, indices, stacked)];
    /** @type {Map<number, HTMLElement>} */
    this.rows = new Map();
    this.repeated = repeated(tokens.map((token) => token.text));
    const rowOf = (event) => event.target.closest(".row");
    const forward = (action) => (event) => rowOf(event) && action(side, Number(rowOf(event).dataset.index));
    this.element = make("div", {
      class: `column ${side}`, role: "listbox",
      "aria-label": side === "query" ? "queries: tokens that attend" : "keys: tokens attended to",
      onmouseover: forward(listeners.enter), onclick: forward(listeners.press),
      onfocusin: (event) => rowOf(event)?.matches(":focus-visible") && forward(listeners.enter)(event),
    });
    this.element.style.height = `${this.layout.height}px`;
  }

  /**
   * @param {number} from first pixel on screen
   * @param {number} to last pixel on screen
   * @param {{selected: number|null, other: number|null, pinned: boolean, weight: ((index: number) => number|null)|null}} state
   *   `weight` is the weight between the selected token and each token of this column, null where masked
   */
  draw(from, to, state) {
    const { tops, rowHeight } = this.layout;
    const tabStop = state.selected ?? state.other ?? this.tabStop ?? this.indices[0];
    const shown = this.indices.filter((index, row) => (tops[row] + 2 * rowHeight > from && tops[row] - rowHeight < to) || index === tabStop);
    syncChildren(this.element, this.rows, shown, (index) => this.makeRow(index));
    const largest = state.weight ? Math.max(0, ...this.indices.map(state.weight).filter(Number.isFinite)) : 0;
    for (const index of shown) this.drawRow(this.rows.get(index), index, state, largest, tabStop);
    this.tabStop = tabStop;
  }

  makeRow(index) {
    const [title, row] = [tokenTitle(this.tokens, index), this.indices.indexOf(index)];
    const element = make("div", { class: "row", role: "option", "data-index": index, title, "aria-posinset": row + 1, "aria-setsize": this.indices.length },
      tokenLabel(this.tokens[index]), make("span", { class: "bar" }), make("span", { class: "number" }));
    setAttribute(element, "data-repeated", this.repeated.has(this.tokens[index].text));
    element.style.top = `${this.layout.tops[row]}px`;
    element.style.height = `${this.layout.rowHeight}px`;
    return element;
  }

  drawRow(element, index, state, largest, tabStop) {
    const weight = state.weight?.(index) ?? null;
    setAttribute(element, "tabindex", index === tabStop ? 0 : -1);
    setAttribute(element, "aria-selected", index === state.selected);
    setAttribute(element, "data-other", index === state.other);
    setAttribute(element, "data-pinned", state.pinned && index === state.selected);
    setAttribute(element, "data-unseen", Boolean(state.weight) && weight === null);
    const number = weight !== null ? weight.toFixed(6) : state.weight ? "masked" : "";
    if (element.lastChild.textContent !== number) element.lastChild.textContent = number;
    element.style.setProperty("--weight", weight > 0 && weight < Infinity && largest > 0 ? weight / largest : 0);
  }

  /** The visible rows of a column inside `scroller`. */
  visibleRange(scroller, name) {
    const { tops, rowHeight } = this.layout;
    const { scrollTop: top, clientHeight: height } = scroller;
    const [from, to] = [top, top + height].map((edge) => boxesBefore(edge, tops, () => rowHeight));
    return { name: "rows", from, to, count: tops.length, of: `the ${tops.length} ${name}` };
  }

  /** Focuses a token. */
  focus(index) {
    this.rows.get(index)?.focus({ preventScroll: true });
  }
}

/** The texts that occur more than once; while one of them is selected, their rows show their indices. */
function repeated(texts) {
  const seen = new Set();
  return new Set(texts.filter((text) => seen.has(text) || !seen.add(text)));
}
