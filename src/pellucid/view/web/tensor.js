// tensor.js: the tensor view. Any recorded tensor: two of its axes are drawn, the others are fixed by steppers.
import { make } from "./dom.js";
import { SCALES, scaleSwitch } from "./controls.js";
import { copyButton, csv } from "./clipboard.js";
import { AxisPicker } from "./axispicker.js";
import { StatisticsBox } from "./statistics.js";
import { CellSelection, windowAround } from "./selection.js";
import { ColourBar, Heatmap } from "./heatmap.js";
import { defaultSlicing, rangeText, shortest, Slice, statisticsOf } from "./numbers.js";
import { TensorList } from "./tensorlist.js";
import { exact, numberedName, tokenLabel, tokenNodes } from "./tokens.js";

/** The most rows and columns of a table, the most numbers copied, the height of the picture in pixels. */
const [TABLE_ROWS, TABLE_COLUMNS, MAX_COPIED, MAX_HEIGHT] = [24, 10, 250_000, 560];

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
    this.sharedControls = [];
    this.byName = new Map(page.manifest.tensors.map((tensor) => [tensor.name, tensor]));
    /** @type {Map<string, import("./numbers.js").Slicing>} the last chosen slice of each tensor */
    this.slicings = new Map();
    this.list = new TensorList(page.manifest.tensors, (name) => this.shape(name).join(" × "), (name) => this.choose(name));
    this.axes = new AxisPicker((slicing) => this.setSlicing(slicing));
    this.cell = new CellSelection(() => this.selection(), (cell) => this.select(cell));
    this.heat = new Heatmap({ label: "the numbers; arrow keys move the selected cell", ...this.cell.pointer, leave: () => this.clearHover() });
    this.statistics = new StatisticsBox();
    this.copies = make("p", { class: "copies" }, copyButton("copy as NumPy", () => this.slice.numpy(), { class: "plain framed" }),
      copyButton("as CSV", () => this.csv(), { class: "plain framed" }), copyButton("as Python", () => this.python(), { class: "plain framed" }));
    this.heading = make("h2", {});
    this.main = make("div", { class: "tensor-main" }, this.heading, this.axes.element,
      make("div", { class: "tensor-scroll" }, this.heat.element), this.statistics.element, this.copies);
    this.element = make("div", { class: "tensor" }, this.list.element, this.main);
    this.colourBar = new ColourBar();
    this.controls = [scaleSwitch(page), { element: this.colourBar.element }];
  }

  /** The tensor, its slice (null for the first) and the selected cell. */
  selection() {
    return { name: this.page.manifest.tensors[0].name, slicing: null, row: null, column: null, pinned: false, ...this.page.state().tensor };
  }

  set(patch) {
    this.page.set({ tensor: { ...this.selection(), ...patch } });
  }

  /** Selects a cell of what is drawn; does nothing while another tensor or slice is loading. */
  select(cell) {
    if (this.sliceKey === this.sliceKeyOf(this.selection())) this.set(cell);
  }

  choose(name) {
    this.set({ name, slicing: this.slicings.get(name) ?? null, row: null, column: null, pinned: false });
  }

  setSlicing(slicing) {
    this.set({ slicing, row: null, column: null, pinned: false });
  }

  requiredBlocks() {
    return [this.byName.get(this.selection().name).block];
  }

  shape(name) {
    return this.page.manifest.blocks[this.byName.get(name).block].shape;
  }

  draw() {
    const selection = this.selection();
    const { scale } = this.page.state();
    this.updateSlice(selection);
    this.list.draw(selection.name);
    this.axes.draw(this.tensor.axes, this.slice);
    const signed = this.sliceStatistics.min < 0;
    const largest = Math.max(Math.abs(this.sliceStatistics.min), Math.abs(this.sliceStatistics.max));
    this.largest = Number.isFinite(largest) ? largest : 0;
    this.colourBar.draw(this.largest, signed, this.page.theme());
    const width = Math.max(160, this.main.clientWidth - 150);
    const data = { key: this.sliceKey, rows: this.slice.rows, columns: this.slice.columns, value: (row, column) => this.slice.at(row, column),
      largest: this.largest, signed, scale, names: { row: (at) => this.label("rows", at), column: (at) => this.label("columns", at) },
      axes: { row: this.axisName("rows"), column: this.axisName("columns") }, width, height: MAX_HEIGHT };
    this.heat.draw(data, { ...selection, theme: this.page.theme(), description: this.describe() });
    this.statistics.drawHistogram(this.sliceKey, this.flat, this.sliceStatistics, this.page.theme());
  }

  /** Updates the slice that is drawn and its statistics, when another one is chosen. */
  updateSlice({ name, slicing }) {
    this.tensor = this.byName.get(name);
    this.slicings.set(name, slicing);
    const sliceKey = this.sliceKeyOf({ name, slicing });
    if (sliceKey === this.sliceKey) return;
    this.sliceKey = sliceKey;
    const values = this.page.source.block(this.tensor.block);
    this.slice = new Slice(this.tensor, this.shape(name), values, slicing ?? defaultSlicing(this.shape(name)));
    this.flat = Float32Array.from({ length: this.slice.rows * this.slice.columns }, (_, at) =>
      this.slice.at(Math.floor(at / this.slice.columns), at % this.slice.columns));
    this.sliceStatistics = statisticsOf(this.flat);
    if (this.tensorStatistics?.name !== name) this.tensorStatistics = { name, ...statisticsOf(values) };
    this.heading.textContent = name;
    this.statistics.write(this.sliceStatistics);
    for (const button of this.copies.querySelectorAll("button:not(:last-of-type)")) button.disabled = this.sliceStatistics.count > MAX_COPIED;
  }

  sliceKeyOf({ name, slicing }) {
    return JSON.stringify([name, slicing]);
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
    const axis = this.slice.slicing[which];
    return axis === null ? "" : this.tensor.axes[axis];
  }

  label(which, at) {
    const tokens = this.tokensOf(this.slice.slicing[which]);
    return tokens ? tokenLabel(tokens[at]) : this.slice.slicing[which] === null ? "" : String(at);
  }

  /** The selected number, as a sentence. */
  describe() {
    const { row, column } = this.selection();
    if (row === null) return `${this.tensor.name}: ${this.slice.rows} × ${this.slice.columns} numbers${rangeText(this.sliceStatistics)}`;
    return `${this.tensor.name} ${this.indices(row, column)}: ${shortest(this.slice.at(row, column))}`;
  }

  indices(row, column) {
    return `[${this.slice.indices(row, column).join(", ")}]`;
  }

  /** The text of the readout. */
  readout() {
    const { row, column, pinned } = this.selection();
    if (row === null) return { words: [`${this.tensor.name} · point at a cell to read its number`] };
    const cell = { rows: row, columns: column };
    const at = ["rows", "columns"].flatMap((which) => {
      const tokens = this.tokensOf(this.slice.slicing[which]);
      return tokens ? [` · ${this.axisName(which)} `, ...tokenNodes(tokens, cell[which])] : [];
    });
    return {
      words: [`${this.tensor.name} `, make("b", {}, this.indices(row, column)), ...at], value: exact(this.slice.at(row, column)),
      note: pinned ? "pinned" : "",
    };
  }

  /** The sentences of the legend about the picture. */
  legend() {
    const signed = this.sliceStatistics.min < 0;
    const end = shortest(Number(this.largest.toPrecision(7)));
    const { count, nan, infinite } = this.tensorStatistics;
    const scale = SCALES[this.page.state().scale];
    const nonFinite = `${nan ? `, ${nan.toLocaleString("en")} NaN` : ""}${infinite ? `, ${infinite.toLocaleString("en")} infinite` : ""}`;
    return [
      `Colours run from ${signed ? `−${end} (blue) through 0 to ${end} (orange)` : `0 to ${end}`}, on a ${scale} scale.`,
      this.heat.poolingNote(),
      this.sliceStatistics.nan ? "NaN is black (white on a dark page)." : "", this.sliceStatistics.infinite ? "Cells of infinite numbers are empty." : "",
      this.sliceStatistics.count < count ? `The whole tensor holds ${count.toLocaleString("en")} numbers${rangeText(this.tensorStatistics)}${nonFinite}.` : "",
      this.sliceStatistics.count > MAX_COPIED ? `At most ${MAX_COPIED.toLocaleString("en")} numbers can be copied: copy the Python expression instead.` : "",
    ].filter(Boolean);
  }

  /** The sentence below the legend. */
  provenance() {
    return `Numbers${this.page.manifest.other ? " of this run, not of the other," : ""} as the model computed them, stored here as ${this.page.manifest.blocks[this.tensor.block].dtype}.`;
  }

  python() {
    if (!this.slice) return "";
    const { row, column } = this.selection();
    return this.slice.python(row, column);
  }

  csv() {
    const name = (which, at) => this.tokensOf(this.slice.slicing[which])?.[at].text ?? String(at);
    const head = ["", ...Array.from({ length: this.slice.columns }, (_, at) => name("columns", at))];
    return csv([head, ...Array.from({ length: this.slice.rows }, (_, row) => [name("rows", row), ...this.slice.row(row).map(shortest)])]);
  }

  /** @returns {import("./table.js").Table} the numbers around the selected cell */
  table() {
    if (!this.slice) return null;
    const { row, column } = this.selection();
    const [rows, columns] = [windowAround(row, TABLE_ROWS, this.slice.rows), windowAround(column, TABLE_COLUMNS, this.slice.columns)];
    const left = this.sliceStatistics.count - rows.length * columns.length;
    const rest = left ? ` ${left.toLocaleString("en")} more numbers are left out: move the selected cell to see others, or copy all as CSV.` : "";
    const name = (which) => (at) => (this.tokensOf(this.slice.slicing[which]) ? numberedName(this.label(which, at), at) : this.label(which, at));
    return {
      title: this.tensor.name,
      caption: [`${this.slice.python()}: rows follow the axis ${this.axisName("rows") || "–"}, columns the axis ${this.axisName("columns") || "–"}.${rest}`],
      columns: columns.map(name("columns")), rows: rows.map((at) => ({ name: name("rows")(at), cells: columns.map((index) => exact(this.slice.at(at, index))) })),
    };
  }

  pin() {
    this.cell.pin();
  }

  clearSelection() {
    this.set({ row: null, column: null, pinned: false });
  }

  clearHover() {
    const { row, pinned } = this.selection();
    if (row !== null && !pinned) this.clearSelection();
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
    const { slicing, shape } = this.slice;
    if (axis >= 0 && axis !== slicing.rows && axis !== slicing.columns) {
      this.set({ slicing: { ...slicing, fixed: slicing.fixed.with(axis, (slicing.fixed[axis] + by + shape[axis]) % shape[axis]) } });
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
