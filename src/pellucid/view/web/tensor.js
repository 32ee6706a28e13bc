// tensor.js: the tensor view. Any recorded tensor: two of its axes are drawn, the others are fixed by steppers.
import { make } from "./dom.js";
import { SCALES, scaleSwitch } from "./controls.js";
import { copyButton, csv } from "./copy.js";
import { AxisPicker } from "./axes.js";
import { FactsBox } from "./facts.js";
import { around, Cell } from "./hand.js";
import { Ends, Heat } from "./heat.js";
import { factsOf, firstCut, shortest, Slice, span } from "./numbers.js";
import { TensorList } from "./tensorlist.js";
import { exact, inNodes, tokenLabel } from "./tokens.js";

/** The most rows and columns of a table, the most numbers copied, the height of the picture in pixels. */
const [ROWS, COLUMNS, COPIED, TALL] = [24, 10, 250_000, 560];

/** The axes of tokens. */
const TOKEN_AXES = ["seq", "tokens", "queries", "query", "source", "keys", "key"];

/** @type {import("./app.js").ViewModule} */
export const tensorView = {
  name: "tensor", label: "Tensor", key: "x",
  available: (manifest) => Boolean(manifest.tensors?.length),
  create: (page) => new TensorView(page),
};

class TensorView {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.common = [];
    this.byName = new Map(page.manifest.tensors.map((tensor) => [tensor.name, tensor]));
    /** @type {Map<string, import("./numbers.js").Cut>} the last chosen slice of each tensor */
    this.cuts = new Map();
    this.list = new TensorList(page.manifest.tensors, (name) => this.shape(name).join(" × "), (name) => this.choose(name));
    this.axes = new AxisPicker((cut) => this.recut(cut));
    this.cell = new Cell(() => this.hand(), (cell) => this.take(cell));
    this.heat = new Heat({ label: "the numbers; arrow keys move the selected cell", ...this.cell.pointer, leave: () => this.exit() });
    this.facts = new FactsBox();
    this.copies = make("p", { class: "copies" }, copyButton("copy as NumPy", () => this.slice.numpy(), { class: "plain framed" }),
      copyButton("as CSV", () => this.csv(), { class: "plain framed" }), copyButton("as Python", () => this.python(), { class: "plain framed" }));
    this.heading = make("h2", {});
    this.main = make("div", { class: "tensor-main" }, this.heading, this.axes.element,
      make("div", { class: "tensor-scroll" }, this.heat.element), this.facts.element, this.copies);
    this.element = make("div", { class: "tensor" }, this.list.element, this.main);
    this.ends = new Ends();
    this.controls = [scaleSwitch(page), { element: this.ends.element }];
  }

  /** The tensor, its slice (null for the first) and the active cell. */
  hand() {
    return { name: this.page.manifest.tensors[0].name, cut: null, row: null, column: null, pinned: false, ...this.page.state().tensor };
  }

  set(patch) {
    this.page.set({ tensor: { ...this.hand(), ...patch } });
  }

  /** Activates a cell of what is drawn; does nothing while another tensor or slice is loading. */
  take(cell) {
    if (this.drawn === this.cutName(this.hand())) this.set(cell);
  }

  choose(name) {
    this.set({ name, cut: this.cuts.get(name) ?? null, row: null, column: null, pinned: false });
  }

  recut(cut) {
    this.set({ cut, row: null, column: null, pinned: false });
  }

  needs() {
    return [this.byName.get(this.hand().name).block];
  }

  shape(name) {
    return this.page.manifest.blocks[this.byName.get(name).block].shape;
  }

  draw() {
    const hand = this.hand();
    const { scale } = this.page.state();
    this.cutOut(hand);
    this.list.draw(hand.name);
    this.axes.draw(this.tensor.axes, this.slice);
    const signed = this.shownFacts.least < 0;
    const largest = Math.max(Math.abs(this.shownFacts.least), Math.abs(this.shownFacts.most));
    this.largest = Number.isFinite(largest) ? largest : 0;
    this.ends.draw(this.largest, signed, this.page.theme());
    const room = Math.max(160, this.main.clientWidth - 150);
    const sheet = { key: this.drawn, rows: this.slice.rows, columns: this.slice.columns, value: (row, column) => this.slice.at(row, column),
      largest: this.largest, signed, scale, names: { row: (at) => this.label("rows", at), column: (at) => this.label("columns", at) },
      axes: { row: this.axisName("rows"), column: this.axisName("columns") }, room, height: TALL };
    this.heat.draw(sheet, { ...hand, theme: this.page.theme(), description: this.inWords() });
    this.facts.drawHistogram(this.drawn, this.flat, this.shownFacts, this.page.theme());
  }

  /** Updates the slice that is drawn and its statistics, when another one is chosen. */
  cutOut({ name, cut }) {
    this.tensor = this.byName.get(name);
    this.cuts.set(name, cut);
    const drawn = this.cutName({ name, cut });
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const values = this.page.source.block(this.tensor.block);
    this.slice = new Slice(this.tensor, this.shape(name), values, cut ?? firstCut(this.shape(name)));
    this.flat = Float32Array.from({ length: this.slice.rows * this.slice.columns }, (_, at) =>
      this.slice.at(Math.floor(at / this.slice.columns), at % this.slice.columns));
    this.shownFacts = factsOf(this.flat);
    if (this.whole?.name !== name) this.whole = { name, ...factsOf(values) };
    this.heading.textContent = name;
    this.facts.write(this.shownFacts);
    for (const button of this.copies.querySelectorAll("button:not(:last-of-type)")) button.disabled = this.shownFacts.count > COPIED;
  }

  cutName({ name, cut }) {
    return JSON.stringify([name, cut]);
  }

  /** The tokens along an axis, if it is one of tokens. */
  tokensOf(axis) {
    const { sequences } = this.page.manifest;
    const name = axis === null ? "" : this.tensor.axes[axis];
    if (!TOKEN_AXES.includes(name)) return null;
    const first = this.tensor.name.startsWith("encoder.") || (/cross_attention/.test(this.tensor.name) && ["source", "keys", "key"].includes(name));
    return (first ? sequences.slice(0, 1) : sequences).findLast(({ tokens }) => tokens.length === this.slice.shape[axis])?.tokens ?? null;
  }

  axisName(which) {
    const axis = this.slice.cut[which];
    return axis === null ? "" : this.tensor.axes[axis];
  }

  label(which, at) {
    const tokens = this.tokensOf(this.slice.cut[which]);
    return tokens ? tokenLabel(tokens[at]) : this.slice.cut[which] === null ? "" : String(at);
  }

  /** The active number, as a sentence. */
  inWords() {
    const { row, column } = this.hand();
    if (row === null) return `${this.tensor.name}: ${this.slice.rows} × ${this.slice.columns} numbers${span(this.shownFacts)}`;
    return `${this.tensor.name} ${this.places(row, column)}: ${shortest(this.slice.at(row, column))}`;
  }

  places(row, column) {
    return `[${this.slice.places(row, column).join(", ")}]`;
  }

  /** The text of the readout. */
  readout() {
    const { row, column, pinned } = this.hand();
    if (row === null) return { words: [`${this.tensor.name} · point at a cell to read its number`] };
    const cell = { rows: row, columns: column };
    const at = ["rows", "columns"].flatMap((which) => {
      const tokens = this.tokensOf(this.slice.cut[which]);
      return tokens ? [` · ${this.axisName(which)} `, ...inNodes(tokens, cell[which])] : [];
    });
    return {
      words: [`${this.tensor.name} `, make("b", {}, this.places(row, column)), ...at], value: exact(this.slice.at(row, column)),
      note: pinned ? "pinned" : "",
    };
  }

  /** The sentences of the legend about the picture. */
  legend() {
    const signed = this.shownFacts.least < 0;
    const end = shortest(Number(this.largest.toPrecision(7)));
    const { count, nan, infinite } = this.whole;
    const scale = SCALES[this.page.state().scale];
    const odd = `${nan ? `, ${nan.toLocaleString("en")} NaN` : ""}${infinite ? `, ${infinite.toLocaleString("en")} infinite` : ""}`;
    return [
      `Colours run from ${signed ? `−${end} (blue) through 0 to ${end} (orange)` : `0 to ${end}`}, on a ${scale} scale.`,
      this.heat.pooling(),
      this.shownFacts.nan ? "NaN is black (white on a dark page)." : "", this.shownFacts.infinite ? "Cells of infinite numbers are empty." : "",
      this.shownFacts.count < count ? `The whole tensor holds ${count.toLocaleString("en")} numbers${span(this.whole)}${odd}.` : "",
      this.shownFacts.count > COPIED ? `At most ${COPIED.toLocaleString("en")} numbers can be copied: copy the Python expression instead.` : "",
    ].filter(Boolean);
  }

  /** The sentence below the legend. */
  truth() {
    return `Numbers${this.page.manifest.other ? " of this run, not of the other," : ""} as the model computed them, stored here as ${this.page.manifest.blocks[this.tensor.block].dtype}.`;
  }

  python() {
    if (!this.slice) return "";
    const { row, column } = this.hand();
    return this.slice.python(row, column);
  }

  csv() {
    const name = (which, at) => this.tokensOf(this.slice.cut[which])?.[at].text ?? String(at);
    const head = ["", ...Array.from({ length: this.slice.columns }, (_, at) => name("columns", at))];
    return csv([head, ...Array.from({ length: this.slice.rows }, (_, row) => [name("rows", row), ...this.slice.row(row).map(shortest)])]);
  }

  /** @returns {import("./table.js").Table} the numbers around the active cell */
  table() {
    if (!this.slice) return null;
    const { row, column } = this.hand();
    const [rows, columns] = [around(row, ROWS, this.slice.rows), around(column, COLUMNS, this.slice.columns)];
    const left = this.shownFacts.count - rows.length * columns.length;
    const rest = left ? ` ${left.toLocaleString("en")} more numbers are left out: move the selected cell to see others, or copy all as CSV.` : "";
    const name = (which) => (at) => make("span", {}, this.label(which, at), this.tokensOf(this.slice.cut[which]) ? make("small", {}, ` ${at}`) : "");
    return {
      title: this.tensor.name,
      caption: [`${this.slice.python()}: rows follow the axis ${this.axisName("rows") || "–"}, columns the axis ${this.axisName("columns") || "–"}.${rest}`],
      columns: columns.map(name("columns")), rows: rows.map((at) => ({ name: name("rows")(at), cells: columns.map((place) => exact(this.slice.at(at, place))) })),
    };
  }

  pin() {
    this.cell.pin();
  }

  release() {
    this.set({ row: null, column: null, pinned: false });
  }

  exit() {
    const { row, pinned } = this.hand();
    if (row !== null && !pinned) this.release();
  }

  /** The same point of the next layer that has it. */
  stepLayer(by) {
    if (!this.slice) return;
    const found = /layers\.(\d+)\./.exec(this.tensor.name);
    const name = found && this.tensor.name.replace(found[0], `layers.${Number(found[1]) + by}.`);
    if (!this.byName.has(name)) return;
    if (this.shape(name).join() !== this.slice.shape.join()) return this.choose(name);
    this.set({ name });
  }

  stepHead(by) {
    if (!this.slice) return;
    const axis = this.tensor.axes.findIndex((name) => name.includes("heads"));
    const { cut, shape } = this.slice;
    if (axis >= 0 && axis !== cut.rows && axis !== cut.columns) {
      this.set({ cut: { ...cut, fixed: cut.fixed.with(axis, (cut.fixed[axis] + by + shape[axis]) % shape[axis]) } });
    }
  }

  /** The search of this view is the filter of its list. */
  search() {
    this.list.filter.focus();
    this.list.filter.select();
  }

  /** Arrow keys move the cell. */
  move(right, down) {
    if (!this.slice) return;
    this.cell.move({ right, down, rows: this.slice.rows, columns: this.slice.columns }, this.heat);
  }
}
