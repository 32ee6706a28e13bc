// matrix.js: the matrix view. All weights of one head as a heat map: a row is a query, a column is a key.
import { make, setAttribute } from "./dom.js";
import { SCALES, scaleSwitch } from "./controls.js";
import { CellSelection } from "./selection.js";
import { ColourBar, Heatmap } from "./heatmap.js";
import { hatch } from "./painting.js";
import { printedRange } from "./printing.js";
import { exact, tokenLabel, tokenText, tokenTitle } from "./tokens.js";

/** The smallest and the largest side of a cell, and the least distance between two labels, in pixels. */
const CELL = { minSide: 2, maxSide: 34, label: 18, tall: 900 };

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
    this.crosshair = { query: make("div", { class: "cross across" }), key: make("div", { class: "cross down" }) };
    this.sum = make("div", { class: "sum" });
    this.textNames = { query: make("span"), key: make("span") };
    this.cell = new CellSelection(() => this.selection(), (cell) => this.select(cell));
    this.heat = new Heatmap({ label: "weights of one head; arrow keys move the selected cell", kind: "sheet", ...this.cell.pointer });
    this.heat.plot.append(this.crosshair.query, this.crosshair.key, this.sum);
    this.heat.element.append(this.current.key, this.current.query);
    for (const [axis, line] of Object.entries(AXES)) this.heat.axes[line].after(this.textNames[axis]);
    this.element = make("div", { class: "matrix" }, this.heat.element);
    this.colourBar = new ColourBar();
    this.resetControls();
    this.controls = [scaleSwitch(page), { element: this.colourBar.element }];
  }

  /** The controls on a layer without numbers. */
  resetControls() {
    this.colourBar.element.hidden = true;
  }

  /** The selected cell, by the indices of its tokens among those shown. */
  selection() {
    const { query, key, pinned } = this.page.state();
    const indexIn = (list, token) => (token === null ? null : list.indexOf(token));
    return { row: indexIn(this.shown.query, query), column: indexIn(this.shown.key, key), pinned };
  }

  select({ row, column, pinned }) {
    this.page.set({ side: "query", query: this.shown.query[row] ?? null, key: this.shown.key[column] ?? null, pinned });
  }

  draw() {
    const state = this.page.state();
    this.shown = this.page.shown();
    const { query, key } = this.shown;
    const room = this.element.clientWidth - this.heat.labels.row.offsetWidth - 72;
    const most = Math.min(CELL.maxSide, Math.max(CELL.label, CELL.tall / query.length));
    this.side = Math.max(CELL.minSide, Math.floor(Math.min(most, room / key.length)));
    const pictureKey = [state.layer, state.head, state.pair].join();
    const isFirst = this.pictureKey === undefined;
    if (pictureKey !== this.pictureKey) this.readWeights(state);
    this.pictureKey = pictureKey;
    this.heat.draw({ key: pictureKey, rows: query.length, columns: key.length, value: this.value, largest: this.largest, signed: false, nanColour: NOT_A_NUMBER,
      scale: state.scale, names: { row: (index) => this.name("query", index), column: (index) => this.name("key", index) },
      axes: { row: "query", column: "key" }, width: key.length * this.side, height: query.length * this.side, maxSide: this.side,
      drawOver: (context, width, height) => this.drawOver(context, width, height) },
    { row: null, column: null, pinned: state.pinned, theme: this.page.theme(), description: this.describe(state) });
    if (isFirst && state.pinned) this.scrollToCell(state); // it comes from the address
    this.colourBar.element.hidden = !this.largest;
    this.colourBar.draw(this.largest, false, this.page.theme());
    this.drawCrosshair(state);
  }

  /** Reads the weights of another head, or of other tokens. */
  readWeights({ head }) {
    const { query, key } = this.shown;
    const attention = this.page.attention();
    const rows = query.map((index) => attention.row(head, index));
    this.hasNonFinite = rows.some((row) => key.some((index) => !Number.isFinite(row[index])));
    this.hasNegative = rows.some((row) => key.some((index) => row[index] < 0 && row[index] > -Infinity));
    this.largest = rows.reduce((most, row) => key.reduce((best, index) => (row[index] > best && row[index] < Infinity ? row[index] : best), most), 0);
    this.value = (y, x) => {
      if (!attention.mayAttend(query[y], key[x])) return Infinity;
      const weight = rows[y][key[x]];
      return Number.isFinite(weight) ? weight : NaN;
    };
    const { queries, keys } = this.page.entry();
    const names = { query: queries, key: keys };
    for (const axis of ["query", "key"]) this.textNames[axis].textContent = queries === keys ? "" : ` ${this.page.manifest.sequences[names[axis]].name}`;
  }

  /** The name of a token. */
  name(axis, index) {
    const [tokens, token] = [this.page.tokens()[axis], this.shown[axis][index]];
    return make("span", { title: tokenTitle(tokens, token) }, tokenLabel(tokens[token]));
  }

  /** Hatches masked cells, and clears the gaps between cells. */
  drawOver(context, width, height) {
    hatch(context, width, height);
    this.gaps("key").forEach((gap, index) => gap && context.clearRect(index * this.side - gap / 2, 0, gap, height));
    this.gaps("query").forEach((gap, index) => gap && context.clearRect(0, index * this.side - gap / 2, width, gap));
  }

  /** A wide gap between the two texts, a narrow one between large cells. */
  gaps(axis) {
    const [tokens, indices] = [this.page.tokens()[axis], this.shown[axis]];
    return indices.map((token, index) => {
      if (!index) return 0;
      return tokens[indices[index - 1]].segment !== tokens[token].segment ? 3 : this.side >= 14 ? 1 : 0;
    });
  }

  /** Marks the row and the column of the selected cell, names both, and sums the row. */
  drawCrosshair(state) {
    const { query, key, head } = state;
    setAttribute(this.heat.element, "data-reading", query !== null || key !== null);
    for (const axis of ["query", "key"]) this.drawBand(axis, this.shown[axis].indexOf(state[axis]));
    const row = query === null ? null : this.page.attention().row(head, query);
    this.sum.hidden = !row;
    if (row) this.drawSum(row, this.shown.query.indexOf(query));
  }

  describe({ query, key, head }) {
    const tokens = this.page.tokens();
    const cell = query === null || key === null ? ""
      : `: ${tokenText(tokens.query, query)} to ${tokenText(tokens.key, key)} ${this.page.attention().row(head, query)[key].toPrecision(3)}`;
    return `weights of layer ${this.page.entry().layer}, head ${head}${cell}`;
  }

  drawBand(axis, index) {
    const band = this.crosshair[axis];
    band.hidden = index < 0;
    band.style[axis === "query" ? "top" : "left"] = `${index * this.side}px`;
    band.style[axis === "query" ? "height" : "width"] = `${this.side}px`;
    this.current[axis].replaceChildren(...(index < 0 ? [] : [this.heat.label(AXES[axis], index)]));
    for (const label of this.heat.labels[AXES[axis]].children) { // those that would show behind it
      const distance = Math.abs(Number(label.dataset.place) - index) * this.side;
      label.style.visibility = index >= 0 && distance > 0 && distance < CELL.label ? "hidden" : "";
    }
  }

  drawSum(row, index) {
    const sum = this.shown.key.reduce((total, token) => total + row[token], 0);
    this.sum.textContent = `Σ ${sum.toFixed(4)}`;
    this.sum.style.top = `${(index + 0.5) * this.side}px`;
  }

  /** The sentences of the legend about the picture. */
  legend() {
    const { scale, head, pair } = this.page.state();
    return [
      this.largest ? `Colours run from 0 to ${exact(this.largest)}, the largest weight shown of head ${head},`
        + ` on a ${SCALES[scale]} scale.` : `No finite weight shown of head ${head} is above 0.`,
      pair === "all" ? "" : "Weights span both texts; only some of them are shown.",
      this.page.attention().stored || this.hasNonFinite || pair !== "all" ? "" : "Each row adds up to 1.",
      maskInWords(this.page.entry().recipe),
      this.hasNonFinite ? "Red cells are NaN or infinite." : "",
      this.hasNegative ? "Weights below 0 are drawn as 0." : "",
      printedRange(this.element, this.visibleRange()),
    ].filter(Boolean);
  }

  /** The visible columns. */
  visibleRange() {
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
    this.scrollToCell({ query, key: null });
  }

  /** Scrolls a cell into view; of a selected row or column, its start. */
  scrollToCell(cell) {
    const [row, column] = ["query", "key"].map((axis) => Math.max(0, this.shown[axis].indexOf(cell[axis])));
    this.heat.scrollToCell(row, column);
  }
}

/** What the hatched cells are. @param {import("./data.js").Recipe} recipe */
function maskInWords({ mask, window }) {
  const reason = { full: "", causal: "a token cannot attend to later tokens", window: `a token attends only to the last ${window} tokens, itself included` }[mask];
  return reason ? `Hatched cells are masked: ${reason}.` : "";
}
