// matrix.js: the matrix view. All weights of one head as a heat map: a row is a query, a column is a key.
import { make, mark } from "./dom.js";
import { SCALES, scaleSwitch } from "./controls.js";
import { Cell } from "./hand.js";
import { Ends, Heat } from "./heat.js";
import { hatch } from "./heatmap.js";
import { onSheet } from "./paper.js";
import { exact, inWords, tokenLabel, tokenTitle } from "./tokens.js";

/** The smallest and the largest side of a cell, and the least distance between two labels, in pixels. */
const CELL = { least: 2, most: 34, label: 18, tall: 900 };

/** The axis of the picture for queries and for keys. */
const AXES = { query: "row", key: "column" };

/** The colour of NaN, in the light and the dark theme. */
const NOT_A_NUMBER = [196, 38, 54];

/** @type {import("./app.js").ViewModule} */
export const matrixView = { name: "matrix", label: "Matrix", key: "m", create: (page) => new Matrix(page) };

class Matrix {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.current = { query: make("div", { class: "current query" }), key: make("div", { class: "current key" }) };
    this.cross = { query: make("div", { class: "cross across" }), key: make("div", { class: "cross down" }) };
    this.sum = make("div", { class: "sum" });
    this.sides = { query: make("span"), key: make("span") };
    this.cell = new Cell(() => this.hand(), (cell) => this.take(cell));
    this.heat = new Heat({ label: "weights of one head; arrow keys move the selected cell", kind: "sheet", ...this.cell.pointer });
    this.heat.plot.append(this.cross.query, this.cross.key, this.sum);
    this.heat.element.append(this.current.key, this.current.query);
    for (const [axis, line] of Object.entries(AXES)) this.heat.axes[line].after(this.sides[axis]);
    this.element = make("div", { class: "matrix" }, this.heat.element);
    this.ends = new Ends();
    this.blank();
    this.controls = [scaleSwitch(page), { element: this.ends.element }];
  }

  /** The controls on a layer without numbers. */
  blank() {
    this.ends.element.hidden = true;
  }

  /** The active cell, by the indices of its tokens among those shown. */
  hand() {
    const { query, key, pinned } = this.page.state();
    const place = (list, token) => (token === null ? null : list.indexOf(token));
    return { row: place(this.shown.query, query), column: place(this.shown.key, key), pinned };
  }

  take({ row, column, pinned }) {
    this.page.set({ side: "query", query: this.shown.query[row] ?? null, key: this.shown.key[column] ?? null, pinned });
  }

  draw() {
    const state = this.page.state();
    this.shown = this.page.shown();
    const { query, key } = this.shown;
    const room = this.element.clientWidth - this.heat.labels.row.offsetWidth - 72;
    const most = Math.min(CELL.most, Math.max(CELL.label, CELL.tall / query.length));
    this.side = Math.max(CELL.least, Math.floor(Math.min(most, room / key.length)));
    const picture = [state.layer, state.head, state.pair].join();
    const opens = this.picture === undefined;
    if (picture !== this.picture) this.read(state);
    this.picture = picture;
    this.heat.draw({ key: picture, rows: query.length, columns: key.length, value: this.value, largest: this.largest, signed: false, odd: NOT_A_NUMBER,
      scale: state.scale, names: { row: (place) => this.name("query", place), column: (place) => this.name("key", place) },
      axes: { row: "query", column: "key" }, room: key.length * this.side, height: query.length * this.side, most: this.side,
      finish: (context, width, height) => this.finish(context, width, height) },
    { row: null, column: null, pinned: state.pinned, theme: this.page.theme(), description: this.inWords(state) });
    if (opens && state.pinned) this.lift(state); // it comes from the address
    this.ends.element.hidden = !this.largest;
    this.ends.draw(this.largest, false, this.page.theme());
    this.drawCross(state);
  }

  /** Reads the weights of another head, or of other tokens. */
  read({ head }) {
    const { query, key } = this.shown;
    const attention = this.page.attention();
    const rows = query.map((index) => attention.row(head, index));
    this.broken = rows.some((row) => key.some((index) => !Number.isFinite(row[index])));
    this.below = rows.some((row) => key.some((index) => row[index] < 0 && row[index] > -Infinity));
    this.largest = rows.reduce((most, row) => key.reduce((best, index) => (row[index] > best && row[index] < Infinity ? row[index] : best), most), 0);
    this.value = (y, x) => {
      if (!attention.sees(query[y], key[x])) return Infinity;
      const weight = rows[y][key[x]];
      return Number.isFinite(weight) ? weight : NaN;
    };
    const { queries, keys } = this.page.entry();
    const names = { query: queries, key: keys };
    for (const axis of ["query", "key"]) this.sides[axis].textContent = queries === keys ? "" : ` ${this.page.manifest.sequences[names[axis]].name}`;
  }

  /** The name of a token. */
  name(axis, place) {
    const [tokens, index] = [this.page.tokens()[axis], this.shown[axis][place]];
    return make("span", { title: tokenTitle(tokens, index) }, tokenLabel(tokens[index]));
  }

  /** Hatches masked cells, and clears the gaps between cells. */
  finish(context, width, height) {
    hatch(context, width, height);
    this.gaps("key").forEach((gap, place) => gap && context.clearRect(place * this.side - gap / 2, 0, gap, height));
    this.gaps("query").forEach((gap, place) => gap && context.clearRect(0, place * this.side - gap / 2, width, gap));
  }

  /** A wide gap between the two texts, a narrow one between large cells. */
  gaps(axis) {
    const [tokens, indices] = [this.page.tokens()[axis], this.shown[axis]];
    return indices.map((index, place) => {
      if (!place) return 0;
      return tokens[indices[place - 1]].segment !== tokens[index].segment ? 3 : this.side >= 14 ? 1 : 0;
    });
  }

  /** Marks the row and the column of the active cell, names both, and sums the row. */
  drawCross(state) {
    const { query, key, head } = state;
    mark(this.heat.element, "data-reading", query !== null || key !== null);
    for (const axis of ["query", "key"]) this.drawBand(axis, this.shown[axis].indexOf(state[axis]));
    const row = query === null ? null : this.page.attention().row(head, query);
    this.sum.hidden = !row;
    if (row) this.drawSum(row, this.shown.query.indexOf(query));
  }

  inWords({ query, key, head }) {
    const tokens = this.page.tokens();
    const cell = query === null || key === null ? ""
      : `: ${inWords(tokens.query, query)} to ${inWords(tokens.key, key)} ${this.page.attention().row(head, query)[key].toPrecision(3)}`;
    return `weights of layer ${this.page.layerName()}, head ${head}${cell}`;
  }

  drawBand(axis, place) {
    const band = this.cross[axis];
    band.hidden = place < 0;
    band.style[axis === "query" ? "top" : "left"] = `${place * this.side}px`;
    band.style[axis === "query" ? "height" : "width"] = `${this.side}px`;
    this.current[axis].replaceChildren(...(place < 0 ? [] : [this.heat.label(AXES[axis], place)]));
    for (const label of this.heat.labels[AXES[axis]].children) { // those that would show behind it
      const distance = Math.abs(Number(label.dataset.place) - place) * this.side;
      label.style.visibility = place >= 0 && distance > 0 && distance < CELL.label ? "hidden" : "";
    }
  }

  drawSum(row, place) {
    const sum = this.shown.key.reduce((total, index) => total + row[index], 0);
    this.sum.textContent = `Σ ${sum.toFixed(4)}`;
    this.sum.style.top = `${(place + 0.5) * this.side}px`;
  }

  /** The sentences of the legend about the picture. */
  legend() {
    const { scale, head, pair } = this.page.state();
    return [
      this.largest ? `Colours run from 0 to ${exact(this.largest)}, the largest weight shown of head ${head},`
        + ` on a ${SCALES[scale]} scale.` : `No finite weight shown of head ${head} is above 0.`,
      pair === "all" ? "" : "Weights span both texts; only some of them are shown.",
      this.page.attention().stored || this.broken || pair !== "all" ? "" : "Each row adds up to 1.",
      maskInWords(this.page.entry().recipe),
      this.broken ? "Red cells are NaN or infinite." : "",
      this.below ? "Weights below 0 are drawn as 0." : "",
      onSheet(this.element, this.inSight()),
    ].filter(Boolean);
  }

  /** The visible columns. */
  inSight() {
    const left = this.element.getBoundingClientRect().left - this.heat.plot.getBoundingClientRect().left;
    const { length: count } = this.shown.key;
    const [from, to] = [left, left + this.element.clientWidth].map((edge) => Math.min(count, Math.max(0, edge / this.side)));
    return { name: "columns", from, to, count, of: `the ${count} keys` };
  }

  /** Arrow keys move the cell. */
  move(right, down) {
    if (!this.shown) return;
    this.cell.move({ right, down, rows: this.shown.query.length, columns: this.shown.key.length }, this.heat);
  }

  /** Goes to a token that was found. */
  reveal(_side, query) {
    this.lift({ query, key: null });
  }

  /** Scrolls a cell into view; of an active row or column, its start. */
  lift(cell) {
    const [row, column] = ["query", "key"].map((axis) => Math.max(0, this.shown[axis].indexOf(cell[axis])));
    this.heat.lift(row, column);
  }
}

/** What the hatched cells are. @param {import("./data.js").Recipe} recipe */
function maskInWords({ mask, window }) {
  const reason = { full: "", causal: "a token cannot attend to later tokens", window: `a token attends only to the last ${window} tokens, itself included` }[mask];
  return reason ? `Hatched cells are masked: ${reason}.` : "";
}
