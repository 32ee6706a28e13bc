// heads.js: the heads view. Two columns of tokens, queries on the left and keys on the right, and lines between them.
import { bring, lift, make, mark, pen } from "./dom.js";
import { headColour, headDash } from "./colour.js";
import { Column } from "./column.js";
import { thresholdSlider } from "./controls.js";
import { stepped, toEnds } from "./hand.js";
import { drawLines } from "./lines.js";
import { onSheet } from "./paper.js";
import { isMean, strandsOf } from "./strands.js";
import { Strip } from "./strip.js";
import { inWords, percent, shortened } from "./tokens.js";

/** In pixels: the most room for words; the least for lines and for a number with its gaps; both with a bar. */
const [MOST, LINES, NUMBER, BARRED_LINES, BARRED] = [230, 130, 116, 220, 182];

const OTHER = { query: "key", key: "query" };

/** @type {import("./app.js").ViewModule} */
export const headsView = { name: "heads", label: "Heads", key: "h", create: (page) => new Heads(page) };

class Heads {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.canvas = make("canvas", { role: "img" });
    this.middle = make("div", { class: "middle" }, this.canvas);
    this.body = make("div", { class: "columns", onkeydown: toEnds((right, down) => this.page.whenDrawn(() => this.move(right, down))) });
    this.scroller = make("div", { class: "scroller", onscroll: () => this.page.ready() && this.draw(), onmouseleave: () => this.leave() }, this.body);
    this.strip = new Strip((share) => (this.scroller.scrollTop = share * this.total - this.scroller.clientHeight / 2));
    this.names = { query: make("span"), key: make("span") };
    const name = (side) => make("div", { class: side }, make("b", {}, side), " ", this.names[side]);
    this.key = make("p", { class: "heads-key" });
    this.element = make("div", { class: "heads" },
      make("div", { class: "columns names", "aria-hidden": "true" }, name("query"), make("div"), name("key")),
      this.scroller, this.strip.canvas, this.key);
    this.slider = thresholdSlider(page);
    this.controls = [{ element: this.slider.element }];
  }

  /** The controls on a layer without numbers. */
  blank() {
    this.slider.draw(this.page.state(), "");
  }

  draw() {
    const state = this.page.state();
    const { queries, keys } = this.page.entry();
    const text = [queries, keys].join();
    if (this.text !== text) this.word = broadest(this.page.tokens(), this.element);
    this.text = text;
    const choice = [text, state.pair, this.room()].join();
    if (this.choice !== choice) this.choose();
    this.choice = choice;
    this.element.style.setProperty("--hue", headColour(state.head, this.page.theme()));
    mark(this.element, "data-reading", state[state.side] !== null);
    this.follow(state);
    const { scrollTop: top, clientHeight: height } = this.scroller;
    this.drawColumns(state, top, height);
    this.drawCanvas(state, top, height);
    const { all, drawn } = this.mass;
    this.hidden = percent(all > drawn ? 1 - drawn / all : 0);
    this.slider.draw(state, all && state.threshold ? this.hidden : "");
    this.drawKey(state);
  }

  /** The key to the heads' lines, for print, which has no toolbar. */
  drawKey(state) {
    const name = [state.heads, this.page.theme()].join();
    this.key.hidden = state.heads.length < 2 || isMean(state);
    if (this.key.hidden || this.keyName === name) return;
    this.keyName = name;
    this.key.replaceChildren(...state.heads.flatMap((head) => {
      const line = make("canvas"); // PDFs lose the dashes of a gradient
      const context = pen(line, 24, 3);
      context.fillStyle = headColour(head, this.page.theme());
      const [on = 24, off = 0] = headDash(head, state.heads);
      for (let x = 0; x < 24; x += on + off) context.fillRect(x, 0, on, 3);
      return [line, `head ${head}`];
    }));
  }

  /** The room beside the words: "wide" for a bar and a number, "close" for a number, "stacked" for neither. */
  room() {
    const left = this.element.clientWidth - 2 * this.word;
    return left < LINES + 2 * NUMBER ? "stacked" : left < BARRED_LINES + 2 * BARRED ? "close" : "wide";
  }

  /** Rebuilds the columns for another pair filter, or an attention between other texts. */
  choose() {
    const tokens = this.page.tokens();
    const { manifest } = this.page;
    const { queries, keys } = this.page.entry();
    const across = queries !== keys;
    this.names.query.textContent = across ? manifest.sequences[queries].name : "";
    this.names.key.textContent = across ? manifest.sequences[keys].name : "";
    const hand = { enter: (side, index) => this.enter(side, index), press: (side, index) => this.press(side, index) };
    this.element.style.setProperty("--word", `${this.word}px`);
    const digits = String(Math.max(tokens.query.length, tokens.key.length) - 1).length;
    this.element.style.setProperty("--place", `${Math.max(26, 10 + 6 * digits)}px`);
    this.element.dataset.room = this.room();
    this.shown = this.page.shown();
    /** @type {Record<string, Map<number, number>>} the middle of each row */
    this.places = {};
    [this.columns, this.total] = [{}, 0];
    for (const side of ["query", "key"]) {
      const column = new Column(side, tokens[side], this.shown[side], hand, this.element.dataset.room === "stacked");
      const { tops, middle, height } = column.layout;
      this.columns[side] = column;
      this.places[side] = new Map(this.shown[side].map((index, place) => [index, tops[place] + middle]));
      this.total = Math.max(this.total, height);
    }
    this.body.replaceChildren(this.columns.query.element, this.middle, this.columns.key.element);
    this.body.style.height = `${this.total}px`;
  }

  /** The weight between the active token and each token of the other column; null where masked. */
  weights(state) {
    const { side, head } = state;
    const token = state[side];
    const attention = this.page.attention();
    if (token === null) return null;
    const line = side === "query" ? attention.row(head, token) : attention.column(head, token);
    const seen = side === "query" ? (key) => attention.sees(token, key) : (query) => attention.sees(query, token);
    return (index) => (seen(index) ? line[index] : null);
  }

  drawColumns(state, top, height) {
    const weight = this.weights(state);
    const other = OTHER[state.side];
    const { pinned } = state;
    this.columns[state.side].draw(top, top + height, { active: state[state.side], other: null, pinned, weight: null });
    this.columns[other].draw(top, top + height, { active: null, other: state[other], pinned, weight });
    const places = this.places[other];
    const marks = weight ? this.shown[other].map((index) => ({ at: places.get(index), weight: weight(index) })) : [];
    this.strip.draw({ height, total: this.total, top, marks, theme: this.page.theme() });
  }

  drawCanvas(state, top, height) {
    const { query, key } = this.places;
    const token = state[state.side];
    const onScreen = this.shown.query.filter((index) => query.get(index) > top && query.get(index) < top + height);
    const frame = {
      width: this.middle.clientWidth, height, threshold: state.threshold, few: token !== null,
      queries: token === null ? onScreen : state.side === "query" ? [token] : this.shown.query,
      keys: token !== null && state.side === "key" ? [token] : this.shown.key,
      from: (index) => query.get(index) - top, to: (index) => key.get(index) - top,
    };
    this.mass = drawLines(this.canvas, strandsOf(state, this.page.attention(), this.page.theme()), frame);
    this.partial = token === null && onScreen.length < this.shown.query.length;
    const of = token === null ? "" : ` ${state.side === "query" ? "from" : "to"} ${inWords(this.page.tokens()[state.side], token)}`;
    const heads = `attention of layer ${this.page.layerName()}, heads ${state.heads.join(", ")}`;
    mark(this.canvas, "aria-label", `${this.mass.lines} lines${of}: ${heads}`);
  }

  /** The sentences of the legend about the picture. */
  legend() {
    const state = this.page.state();
    if (!state.heads.length) return ["No head is on: switch one on above."];
    const coloured = state.heads.includes(state.head) ? `, coloured ones head ${state.head}` : "";
    const hold = this.mass.all ? `; they carry ${this.hidden} of the weight${this.partial ? " of the rows on screen" : ""}` : "";
    return [
      isMean(state) ? `Grey lines are the mean of ${state.heads.length} heads${coloured}.` : "Wider, stronger lines are larger weights.",
      state.threshold
        ? `Lines below ${state.threshold} are hidden${hold}.`
        : "All lines are drawn.",
      this.mass.below ? "Weights below 0 have no line." : "",
      this.mass.above ? "Weights above 1 are drawn as 1." : "",
      this.mass.broken ? "Some of these weights are NaN or infinite: no line is drawn for them." : "",
      state.pair === "all" ? "" : "Weights span both texts; only some of them are shown.",
      onSheet(this.scroller, this.columns.query.inSight(this.scroller, "queries"), this.columns.key.inSight(this.scroller, "keys")),
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
    const place = state[side] !== null ? list.indexOf(state[side]) : right ? this.level(side, state) : down > 0 ? -1 : list.length;
    const index = list[stepped(place, down, list.length)];
    if (state.pinned && side !== state.side) this.page.set({ [side]: index });
    else this.page.set({ side, [side]: index, [OTHER[side]]: null });
    this.reveal(side, index);
  }

  /** The index in the other column of the first token at or below the active one's height. */
  level(side, state) {
    const height = this.places[OTHER[side]].get(state[OTHER[side]]) ?? 0;
    return this.shown[side].findIndex((index) => this.places[side].get(index) >= height - 1);
  }

  /** Scrolls a pinned token that was chosen elsewhere, as by the address, into view. */
  follow({ side, pinned, ...state }) {
    const index = pinned ? state[side] : null;
    const name = `${this.choice} ${side} ${index}`;
    const [place, { scrollTop: top, clientHeight: height }] = [this.places[side].get(index), this.scroller];
    if (this.followed !== name && index !== null) place < top || place > top + height ? this.scrollTo(side, index) : this.lift(side, place);
    this.followed = name;
  }

  /** Scrolls a token into view and focuses it. */
  reveal(side, index) {
    this.scrollTo(side, index);
    requestAnimationFrame(() => this.columns[side].focus(index));
  }

  scrollTo(side, index) {
    const place = this.places[side].get(index);
    bring(this.scroller, { top: place - 30, bottom: place + 30 });
    this.lift(side, place);
  }

  lift(side, place) {
    const { row, middle } = this.columns[side].layout;
    lift(this.scroller, place - middle, place - middle + row);
  }
}

/** The width of the widest word in bold, as in an active row, up to the most room for words. */
function broadest({ query, key }, element) {
  const { fontSize, fontFamily } = getComputedStyle(element);
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `600 ${fontSize} ${fontFamily}`;
  const width = ({ text }) => pen.measureText(shortened(text)).width;
  return Math.ceil(Math.min(MOST, [...query, ...key].reduce((most, token) => Math.max(most, width(token)), 40)));
}
