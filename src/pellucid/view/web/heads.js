// heads.js: the heads view. Two columns of tokens, queries on the left and keys on the right, and lines between them.
import { make, prepareCanvas, scrollPageTo, scrollToBox, setAttribute } from "./dom.js";
import { headColour, headDash } from "./colour.js";
import { TokenColumn } from "./tokencolumn.js";
import { thresholdSlider } from "./controls.js";
import { clampedStep, onHomeAndEnd } from "./selection.js";
import { drawLines } from "./lines.js";
import { printedRange } from "./printing.js";
import { isMean, lineSeries } from "./lineseries.js";
import { Minimap } from "./minimap.js";
import { percent, shortened, tokenText } from "./tokens.js";

/** In pixels: the most room for words; the least for lines and for a number with its gaps; both with a bar. */
const [MAX_WORD, MIN_LINES, MIN_NUMBER, MIN_LINES_WITH_BARS, MIN_NUMBER_WITH_BAR] = [230, 130, 116, 220, 182];

const OTHER = { query: "key", key: "query" };

/** @type {import("./app.js").ViewModule} */
export const headsView = { name: "heads", label: "Heads", key: "h", create: (page) => new Heads(page) };

class Heads {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.canvas = make("canvas", { role: "img" });
    this.middle = make("div", { class: "middle" }, this.canvas);
    this.body = make("div", { class: "columns", onkeydown: onHomeAndEnd((right, down) => this.page.whenDrawn(() => this.move(right, down))) });
    this.scroller = make("div", { class: "scroller", onscroll: () => this.page.ready() && this.draw(), onmouseleave: () => this.leave() }, this.body);
    this.minimap = new Minimap((share) => (this.scroller.scrollTop = share * this.total - this.scroller.clientHeight / 2));
    this.names = { query: make("span"), key: make("span") };
    const name = (side) => make("div", { class: side }, make("b", {}, side), " ", this.names[side]);
    this.printLegend = make("p", { class: "heads-key" });
    this.element = make("div", { class: "heads" },
      make("div", { class: "columns names", "aria-hidden": "true" }, name("query"), make("div"), name("key")),
      this.scroller, this.minimap.canvas, this.printLegend);
    this.slider = thresholdSlider(page);
    this.controls = [{ element: this.slider.element }];
  }

  /** The controls on a layer without numbers. */
  resetControls() {
    this.slider.draw(this.page.state(), "");
  }

  draw() {
    const state = this.page.state();
    const { queries, keys } = this.page.entry();
    const textKey = [queries, keys].join();
    if (this.textKey !== textKey) this.wordWidth = widestWord(this.page.tokens(), this.element);
    this.textKey = textKey;
    const columnsKey = [textKey, state.pair, this.layoutMode()].join();
    if (this.columnsKey !== columnsKey) this.rebuildColumns();
    this.columnsKey = columnsKey;
    this.element.style.setProperty("--hue", headColour(state.head, this.page.theme()));
    setAttribute(this.element, "data-reading", state[state.side] !== null);
    this.scrollToPinned(state);
    const { scrollTop: top, clientHeight: height } = this.scroller;
    this.drawColumns(state, top, height);
    this.drawCanvas(state, top, height);
    const { all, drawn } = this.totals;
    this.hidden = percent(all > drawn ? 1 - drawn / all : 0);
    this.slider.draw(state, all && state.threshold ? this.hidden : "");
    this.drawPrintLegend(state);
  }

  /** The legend of the heads' lines, for print, which has no toolbar. */
  drawPrintLegend(state) {
    const key = [state.heads, this.page.theme()].join();
    this.printLegend.hidden = state.heads.length < 2 || isMean(state);
    if (this.printLegend.hidden || this.printLegendKey === key) return;
    this.printLegendKey = key;
    this.printLegend.replaceChildren(...state.heads.flatMap((head) => {
      const line = make("canvas"); // PDFs lose the dashes of a gradient
      const context = prepareCanvas(line, 24, 3);
      context.fillStyle = headColour(head, this.page.theme());
      const [on = 24, off = 0] = headDash(head, state.heads);
      for (let x = 0; x < 24; x += on + off) context.fillRect(x, 0, on, 3);
      return [line, `head ${head}`];
    }));
  }

  /** The room beside the words: "wide" for a bar and a number, "close" for a number, "stacked" for neither. */
  layoutMode() {
    const left = this.element.clientWidth - 2 * this.wordWidth;
    return left < MIN_LINES + 2 * MIN_NUMBER ? "stacked" : left < MIN_LINES_WITH_BARS + 2 * MIN_NUMBER_WITH_BAR ? "close" : "wide";
  }

  /** Rebuilds the columns for another pair filter, or an attention between other texts. */
  rebuildColumns() {
    const tokens = this.page.tokens();
    const { manifest } = this.page;
    const { queries, keys } = this.page.entry();
    const across = queries !== keys;
    this.names.query.textContent = across ? manifest.sequences[queries].name : "";
    this.names.key.textContent = across ? manifest.sequences[keys].name : "";
    const listeners = { enter: (side, index) => this.enter(side, index), press: (side, index) => this.press(side, index) };
    this.element.style.setProperty("--word", `${this.wordWidth}px`);
    const digits = String(Math.max(tokens.query.length, tokens.key.length) - 1).length;
    this.element.style.setProperty("--index", `${Math.max(26, 10 + 6 * digits)}px`);
    this.element.dataset.room = this.layoutMode();
    this.shown = this.page.shown();
    /** @type {Record<string, Map<number, number>>} the middle of each row */
    this.centres = {};
    [this.columns, this.total] = [{}, 0];
    for (const side of ["query", "key"]) {
      const column = new TokenColumn(side, tokens[side], this.shown[side], listeners, this.element.dataset.room === "stacked");
      const { tops, middle, height } = column.layout;
      this.columns[side] = column;
      this.centres[side] = new Map(this.shown[side].map((index, row) => [index, tops[row] + middle]));
      this.total = Math.max(this.total, height);
    }
    this.body.replaceChildren(this.columns.query.element, this.middle, this.columns.key.element);
    this.body.style.height = `${this.total}px`;
  }

  /** The weight between the selected token and each token of the other column; null where masked. */
  weights(state) {
    const { side, head } = state;
    const token = state[side];
    const attention = this.page.attention();
    if (token === null) return null;
    const line = side === "query" ? attention.row(head, token) : attention.column(head, token);
    const allowed = side === "query" ? (key) => attention.mayAttend(token, key) : (query) => attention.mayAttend(query, token);
    return (index) => (allowed(index) ? line[index] : null);
  }

  drawColumns(state, top, height) {
    const weight = this.weights(state);
    const other = OTHER[state.side];
    const { pinned } = state;
    this.columns[state.side].draw(top, top + height, { selected: state[state.side], other: null, pinned, weight: null });
    this.columns[other].draw(top, top + height, { selected: null, other: state[other], pinned, weight });
    const centres = this.centres[other];
    const marks = weight ? this.shown[other].map((index) => ({ at: centres.get(index), weight: weight(index) })) : [];
    this.minimap.draw({ height, total: this.total, top, marks, theme: this.page.theme() });
  }

  drawCanvas(state, top, height) {
    const { query, key } = this.centres;
    const token = state[state.side];
    const onScreen = this.shown.query.filter((index) => query.get(index) > top && query.get(index) < top + height);
    const frame = {
      width: this.middle.clientWidth, height, threshold: state.threshold, oneToken: token !== null,
      queries: token === null ? onScreen : state.side === "query" ? [token] : this.shown.query,
      keys: token !== null && state.side === "key" ? [token] : this.shown.key,
      from: (index) => query.get(index) - top, to: (index) => key.get(index) - top,
    };
    this.totals = drawLines(this.canvas, lineSeries(state, this.page.attention(), this.page.theme()), frame);
    this.partial = token === null && onScreen.length < this.shown.query.length;
    const of = token === null ? "" : ` ${state.side === "query" ? "from" : "to"} ${tokenText(this.page.tokens()[state.side], token)}`;
    const heads = `attention of layer ${this.page.entry().layer}, heads ${state.heads.join(", ")}`;
    setAttribute(this.canvas, "aria-label", `${this.totals.lines} lines${of}: ${heads}`);
  }

  /** The sentences of the legend about the picture. */
  legend() {
    const state = this.page.state();
    if (!state.heads.length) return ["No head is on: switch one on above."];
    const coloured = state.heads.includes(state.head) ? `, coloured ones head ${state.head}` : "";
    const hold = this.totals.all ? `; they carry ${this.hidden} of the weight${this.partial ? " of the rows on screen" : ""}` : "";
    return [
      isMean(state) ? `Grey lines are the mean of ${state.heads.length} heads${coloured}.` : "Wider, stronger lines are larger weights.",
      state.threshold
        ? `Lines below ${state.threshold} are hidden${hold}.`
        : "All lines are drawn.",
      this.totals.hasNegative ? "Weights below 0 have no line." : "",
      this.totals.hasAboveOne ? "Weights above 1 are drawn as 1." : "",
      this.totals.hasNonFinite ? "Some of these weights are NaN or infinite: no line is drawn for them." : "",
      state.pair === "all" ? "" : "Weights span both texts; only some of them are shown.",
      printedRange(this.scroller, this.columns.query.visibleRange(this.scroller, "queries"), this.columns.key.visibleRange(this.scroller, "keys")),
    ].filter(Boolean);
  }

  enter(side, index) {
    const state = this.page.state();
    if (!state.pinned) this.page.set({ side, [side]: index, [OTHER[side]]: null });
    else if (side !== state.side) this.page.set({ [side]: index });
  }

  leave() {
    const { pinned, side } = this.page.state();
    this.page.set(pinned ? { [OTHER[side]]: null } : { query: null, key: null });
  }

  press(side, index) {
    const state = this.page.state();
    const again = state.pinned && state.side === side && state[side] === index;
    this.page.set({ side, [side]: index, [OTHER[side]]: null, pinned: !again });
  }

  /** Arrow keys: up and down along a column, left and right between them. */
  move(right, down) {
    if (!this.shown) return;
    const state = this.page.state();
    const focused = document.activeElement?.closest(".column");
    const here = this.element.contains(focused) ? (focused.classList.contains("key") ? "key" : "query") : state.side;
    const side = right > 0 ? "key" : right < 0 ? "query" : here;
    const list = this.shown[side];
    const row = state[side] !== null ? list.indexOf(state[side]) : right ? this.rowAtSameHeight(side, state) : down > 0 ? -1 : list.length;
    const index = list[clampedStep(row, down, list.length)];
    if (state.pinned && side !== state.side) this.page.set({ [side]: index });
    else this.page.set({ side, [side]: index, [OTHER[side]]: null });
    this.reveal(side, index);
  }

  /** The index in the other column of the first token at or below the selected one's height. */
  rowAtSameHeight(side, state) {
    const height = this.centres[OTHER[side]].get(state[OTHER[side]]) ?? 0;
    return this.shown[side].findIndex((index) => this.centres[side].get(index) >= height - 1);
  }

  /** Scrolls a pinned token that was chosen elsewhere, as by the address, into view. */
  scrollToPinned({ side, pinned, ...state }) {
    const index = pinned ? state[side] : null;
    const target = `${this.columnsKey} ${side} ${index}`;
    const [y, { scrollTop: top, clientHeight: height }] = [this.centres[side].get(index), this.scroller];
    if (this.scrolledTo !== target && index !== null) y < top || y > top + height ? this.scrollTo(side, index) : this.scrollPageToRow(side, y);
    this.scrolledTo = target;
  }

  /** Scrolls a token into view and focuses it. */
  reveal(side, index) {
    this.scrollTo(side, index);
    requestAnimationFrame(() => this.columns[side].focus(index));
  }

  scrollTo(side, index) {
    const y = this.centres[side].get(index);
    scrollToBox(this.scroller, { top: y - 30, bottom: y + 30 });
    this.scrollPageToRow(side, y);
  }

  scrollPageToRow(side, y) {
    const { rowHeight, middle } = this.columns[side].layout;
    scrollPageTo(this.scroller, y - middle, y - middle + rowHeight);
  }
}

/** The width of the widest word in bold, as in a selected row, up to the most room for words. */
function widestWord({ query, key }, element) {
  const { fontSize, fontFamily } = getComputedStyle(element);
  const context = document.createElement("canvas").getContext("2d");
  context.font = `600 ${fontSize} ${fontFamily}`;
  const width = ({ text }) => context.measureText(shortened(text)).width;
  return Math.ceil(Math.min(MAX_WORD, [...query, ...key].reduce((most, token) => Math.max(most, width(token)), 40)));
}
