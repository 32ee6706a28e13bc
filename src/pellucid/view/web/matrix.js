// matrix.js: the matrix view. All weights of one head as a heat map: a row is a query, a column is a key.
import { liftCell, make, mark } from "./dom.js";
import { ramp } from "./colour.js";
import { SCALES, scaleSwitch } from "./controls.js";
import { stepped } from "./hand.js";
import { Ends } from "./heat.js";
import { paintCells } from "./heatmap.js";
import { onSheet } from "./paper.js";
import { onPointer } from "./pointer.js";
import { exact, inWords, tokenLabel, tokenTitle } from "./tokens.js";

/** Smallest and largest side of a cell, and the least distance between two labels, in pixels. */
const CELL = { least: 2, most: 34, label: 18, tall: 900 };

/** @type {import("./app.js").ViewModule} */
export const matrixView = { name: "matrix", label: "Matrix", key: "m", create: (page) => new Matrix(page) };

class Matrix {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.canvas = make("canvas", { role: "img" });
    this.labels = { query: make("div", { class: "labels query" }), key: make("div", { class: "labels key" }) };
    this.current = { query: make("div", { class: "current query" }), key: make("div", { class: "current key" }) };
    this.cross = { query: make("div", { class: "cross across" }), key: make("div", { class: "cross down" }) };
    this.sum = make("div", { class: "sum" });
    this.plot = make("div", { class: "plot", tabindex: 0, role: "group", "aria-label": "weights of one head; arrow keys move the cell",
      onclick: (event) => this.press(event), ...onPointer({ move: (event) => this.point(event), leave: () => this.leave() }) },
      this.canvas, this.cross.query, this.cross.key, this.sum);
    this.sides = { query: make("span"), key: make("span") };
    const name = (words, side, arrow) => make("div", {}, make("b", {}, words), this.sides[side], arrow);
    this.sheet = make("div", { class: "sheet" }, make("div", { class: "axes" }, name("looks at", "key", " →"), name("looks from", "query", " ↓")),
      this.labels.key, this.labels.query, this.plot, this.current.key, this.current.query);
    this.element = make("div", { class: "matrix" }, this.sheet);
    this.ends = new Ends();
    this.blank();
    this.controls = [scaleSwitch(page), { element: this.ends.element }];
  }

  /** What the controls say of a layer of which nothing can be drawn. */
  blank() {
    this.ends.element.hidden = true;
  }

  draw() {
    const state = this.page.state();
    this.shown = this.page.shown();
    const room = this.element.clientWidth - this.labels.query.offsetWidth - 72;
    const most = Math.min(CELL.most, Math.max(CELL.label, CELL.tall / this.shown.query.length));
    const side = Math.max(CELL.least, Math.floor(Math.min(most, room / this.shown.key.length)));
    const picture = [state.layer, state.head, state.pair, state.scale, side, this.page.theme(), window.devicePixelRatio].join();
    if (picture !== this.picture) this.paint(state, side);
    if (!this.picture && state.pinned) this.lift(state); // the address has named it
    this.picture = picture;
    this.ends.element.hidden = !this.largest;
    this.drawCross(state);
  }

  /** The whole heat map with its labels; not needed when only the pointer moves. */
  paint({ head, scale }, side) {
    this.side = side;
    const { query, key } = this.shown;
    const attention = this.page.attention();
    const colours = ramp(this.page.theme());
    const rows = query.map((index) => attention.row(head, index));
    this.broken = rows.some((row) => key.some((index) => !Number.isFinite(row[index])));
    this.below = rows.some((row) => key.some((index) => row[index] < 0 && row[index] > -Infinity));
    this.largest = rows.reduce((most, row) => key.reduce((best, index) => (row[index] > best && row[index] < Infinity ? row[index] : best), most), 0);
    const weight = (y, x) => (attention.sees(query[y], key[x]) ? rows[y][key[x]] : null);
    paintCells(this.canvas, { rows: query.length, columns: key.length, weight, largest: this.largest, scale, colours }, side,
      { row: this.gaps(query, "query"), column: this.gaps(key, "key") });
    const { queries, keys } = this.page.entry();
    const place = { query: queries, key: keys };
    for (const axis of ["query", "key"]) {
      this.sides[axis].textContent = queries === keys ? "" : ` ${this.page.manifest.sequences[place[axis]].name}`;
      this.writeLabels(axis);
    }
    this.ends.draw(this.largest, false, this.page.theme());
  }

  /** A broad gap between the two texts, a fine one between large cells. */
  gaps(indices, axis) {
    const tokens = this.page.tokens()[axis];
    return indices.map((index, place) => {
      if (!place) return 0;
      return tokens[indices[place - 1]].segment !== tokens[index].segment ? 3 : this.side >= 14 ? 1 : 0;
    });
  }

  writeLabels(axis) {
    const step = Math.ceil(CELL.label / this.side);
    const labels = this.shown[axis].map((index, place) => (place % step ? null : this.label(index, place, axis)));
    this.labels[axis].replaceChildren(...labels.filter(Boolean));
  }

  label(index, place, axis) {
    const attributes = { class: "label", "data-place": place, title: tokenTitle(this.page.tokens()[axis], index) };
    const element = make("div", attributes, tokenLabel(this.page.tokens()[axis][index]));
    element.style[axis === "query" ? "top" : "left"] = `${(place + 0.5) * this.side}px`;
    return element;
  }

  /** Marks the row and the column of the cell in hand, names both, and adds up the row. */
  drawCross(state) {
    const { query, key, head, pinned } = state;
    mark(this.plot, "data-pinned", pinned);
    mark(this.sheet, "data-reading", query !== null || key !== null);
    for (const axis of ["query", "key"]) this.drawBand(axis, state[axis], this.shown[axis].indexOf(state[axis]));
    const row = query === null ? null : this.page.attention().row(head, query);
    this.sum.hidden = !row;
    if (row) this.drawSum(row, this.shown.query.indexOf(query));
    const cell = row && key !== null
      ? `: ${inWords(this.page.tokens().query, query)} to ${inWords(this.page.tokens().key, key)} ${row[key].toPrecision(3)}` : "";
    mark(this.canvas, "aria-label", `weights of layer ${this.page.layerName()}, head ${head}${cell}`);
  }

  drawBand(axis, index, place) {
    const band = this.cross[axis];
    band.hidden = place < 0;
    band.style[axis === "query" ? "top" : "left"] = `${place * this.side}px`;
    band.style[axis === "query" ? "height" : "width"] = `${this.side}px`;
    this.current[axis].replaceChildren(...(place < 0 ? [] : [this.label(index, place, axis)]));
    for (const label of this.labels[axis].children) { // those that would look out from behind it
      const distance = Math.abs(Number(label.dataset.place) - place) * this.side;
      label.style.visibility = place >= 0 && distance > 0 && distance < CELL.label ? "hidden" : "";
    }
  }

  drawSum(row, place) {
    const sum = this.shown.key.reduce((total, index) => total + row[index], 0);
    this.sum.textContent = `Σ ${sum.toFixed(4)}`;
    this.sum.style.top = `${(place + 0.5) * this.side}px`;
  }

  /** What the legend says about the picture. */
  legend() {
    const { scale, head, pair } = this.page.state();
    return [
      this.largest ? `Colour runs from 0 to ${exact(this.largest)}, the largest weight shown of head ${head},`
        + ` on a ${SCALES[scale]} scale.` : `No finite weight shown of head ${head} is above 0.`,
      pair === "all" ? "" : "Weights are those over both texts; only a part of them is shown.",
      this.page.attention().stored || this.broken || pair !== "all" ? "" : "Each row adds up to 1.",
      maskInWords(this.page.entry().recipe),
      this.broken ? "Red cells are NaN or infinite." : "",
      this.below ? "Weights below 0 are drawn as 0." : "",
      onSheet(this.element, this.inSight()),
    ].filter(Boolean);
  }

  /** The columns that are in sight. */
  inSight() {
    const left = this.element.getBoundingClientRect().left - this.plot.getBoundingClientRect().left;
    const { length: count } = this.shown.key;
    const [from, to] = [left, left + this.element.clientWidth].map((edge) => Math.min(count, Math.max(0, edge / this.side)));
    return { name: "columns", from, to, count, of: `the ${count} keys` };
  }

  /**
   * The cell under the pointer.
   * @returns {{query: number, key: number, side: "query"}|null}
   */
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const query = this.shown.query[Math.floor((event.clientY - box.top) / this.side)];
    const key = this.shown.key[Math.floor((event.clientX - box.left) / this.side)];
    return query === undefined || key === undefined ? null : { query, key, side: "query" };
  }

  point(event) {
    const cell = this.at(event);
    if (cell && !this.page.state().pinned) this.page.set(cell);
  }

  leave() {
    if (!this.page.state().pinned) this.page.set({ query: null, key: null });
  }

  press(event) {
    const [cell, state] = [this.at(event), this.page.state()];
    if (cell) this.page.set({ ...cell, pinned: !(state.pinned && state.query === cell.query && state.key === cell.key) });
  }

  /** Arrow keys move the cell. */
  move(right, down) {
    if (!this.shown) return;
    const state = this.page.state();
    const step = (list, token, by) => list[stepped(token === null ? null : list.indexOf(token), by, list.length)];
    const [query, key] = [step(this.shown.query, state.query, down), step(this.shown.key, state.key, right)];
    this.page.set({ side: "query", query, key });
    this.plot.focus({ preventScroll: true });
    this.lift({ query, key });
  }

  /** Goes to a token that was searched for. */
  reveal(_side, query) {
    this.lift({ query, key: null });
  }

  /** Brings a cell into sight; where only a row or a column is in hand, its beginning. */
  lift(cell) {
    const [top, left] = ["query", "key"].map((axis) => Math.max(0, this.shown[axis].indexOf(cell[axis])) * this.side);
    liftCell(this.plot, { left, top, width: this.side, height: this.side });
  }
}

/** What the hatched cells are. @param {import("./data.js").Recipe} recipe */
function maskInWords({ mask, window }) {
  const reason = { full: "", causal: "a token does not look ahead", window: `a token looks back over ${window} tokens, its own included, and not ahead` }[mask];
  return reason ? `Hatched cells are masked: ${reason}.` : "";
}
