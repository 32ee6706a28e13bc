// diff.js: the diff view. Two runs of a model, this one minus the other: one head as a matrix, an overview of all heads, and the lens.
import { Problem } from "./data.js";
import { make } from "./dom.js";
import { SCALES, scaleSwitch, segmentedControl } from "./controls.js";
import { LensDiff } from "./difflens.js";
import { DifferenceList } from "./difflist.js";
import { CellSelection, clampedStep, windowAround } from "./selection.js";
import { ColourBar, Heatmap } from "./heatmap.js";
import { layerLabel, Overview } from "./diffoverview.js";
import { exact, numberedName, tokenLabel, tokenNodes, tokenText } from "./tokens.js";
import { blocksOfBoth, otherEntry, WeightDiff } from "./diffweights.js";
import { otherRunNote, runNames } from "./diffruns.js";

/** The largest height in pixels, and the most rows and columns of a table. */
const [MAX_HEIGHT, MAX_TABLE] = [560, 32];

/** @type {import("./app.js").ViewModule} */
export const diffView = {
  name: "diff", label: "Diff", key: "d",
  available: (manifest) => Boolean(manifest.other),
  create: (page) => new Diff(page),
};

class Diff {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    const { manifest } = page;
    this.overview = new Overview(page, { enter: (index, head) => this.hover(index, head), press: (index, head) => this.choose(index, head),
      leave: () => this.hover(null, null) });
    const { state } = page;
    this.cells = {
      weights: new CellSelection(() => ({ row: state().query, column: state().key, pinned: state().pinned }),
        ({ row, column, pinned }) => this.select({ side: "query", query: row, key: column, pinned })),
      lens: new CellSelection(() => this.selection(), (cell) => this.set(cell)),
    };
    this.heat = new Heatmap({ label: "differences in the weights of one head; arrow keys move the selected cell", ...this.cells.weights.pointer });
    this.list = new DifferenceList(this.cells.weights.pointer.press);
    this.mismatch = make("p", { class: "problem" });
    this.weights = make("div", { class: "diff-weights" },
      this.overview.element,
      make("section", { class: "diff-head", "aria-label": "the selected head" }, this.heading = make("h2", {}), this.mismatch,
        make("div", { class: "tensor-scroll" }, this.heat.element), make("h3", {}, "Largest differences"), this.list.element));
    this.words = make("div", {});
    this.element = make("div", { class: "diff" }, runNames(manifest), this.weights, this.words);
    this.colourBar = new ColourBar();
    const which = segmentedControl("what to compare", { weights: "weights", lens: "lens" }, (of) => this.set({ of }), () => this.selection().of);
    which.element.hidden = !(manifest.lens && manifest.other.lens);
    this.controls = [which, scaleSwitch(page), { element: this.colourBar.element }];
  }

  /** The lens has no heads. */
  get sharedControls() {
    return this.selection().of === "lens" ? [] : ["side", "layer", "heads"];
  }

  /** The state of this view: weights or lens, the selected cell of the lens, the head of the overview under the pointer. */
  selection() {
    return { of: "weights", row: null, column: null, pinned: false, hovered: null, ...this.page.state().diff };
  }

  set(patch) {
    this.page.set({ diff: { ...this.selection(), ...patch } });
  }

  hover(index, head) {
    this.set({ hovered: index === null ? null : { index, head } });
  }

  /** Selects a cell or a head, instead of the head under the pointer. */
  select(patch) {
    this.page.set({ ...patch, diff: { ...this.selection(), hovered: null } });
  }

  choose(layer, head) {
    if (head < this.page.manifest.attentions[layer].heads) this.select({ layer, head, heads: [head] });
  }

  requiredBlocks() {
    const { manifest } = this.page;
    const lens = ({ ids, log_probabilities: logs }) => [ids, logs];
    if (this.selection().of === "weights") return blocksOfBoth(manifest, this.page.state().layer);
    return [...this.page.blocks(), ...lens(manifest.lens), ...lens(manifest.other.lens)];
  }

  draw() {
    const { of } = this.selection();
    this.weights.hidden = of === "lens";
    this.words.hidden = of !== "lens";
    this.colourBar.element.hidden = true;
    if (of === "lens") this.drawLens();
    else this.drawWeights();
  }

  drawLens() {
    if (!this.lens) {
      this.lens = new LensDiff(this.page, this.cells.lens);
      this.words.replaceChildren(this.lens.element);
      const { row, column, pinned } = this.selection();
      if (pinned) this.lens.grid?.reveal(row, column, false); // it comes from the address
    }
    this.lens.draw(this.selection());
    this.colourBar.element.hidden = !this.lens.grid;
    this.colourBar.draw(100, false, this.page.theme(), " %");
  }

  drawWeights() {
    const state = this.page.state();
    if (this.weightDiff?.index !== state.layer) this.weightDiff = new WeightDiff(this.page.source, state.layer);
    const mismatch = this.weightDiff.mismatch();
    this.heading.textContent = `${capitalized(layerLabel(this.page.entry()))} · head ${state.head}`;
    this.mismatch.textContent = mismatch;
    for (const element of this.weights.querySelectorAll(".diff-head > :not(h2, .problem)")) element.hidden = Boolean(mismatch);
    this.mismatch.hidden = !mismatch;
    if (!mismatch) this.drawHead(state);
    const { hovered } = this.selection();
    this.overview.draw(hovered ?? { index: state.layer, head: state.head }, !hovered);
    this.overview.start(state.layer);
  }

  drawHead(state) {
    const { one } = this.weightDiff;
    const key = `${state.layer}/${state.head}`;
    if (key !== this.key) {
      this.key = key;
      this.rows = Array.from({ length: one.queries }, (_, query) => this.weightDiff.row(state.head, query));
      const larger = (best, value) => (Number.isFinite(value) ? Math.max(best, Math.abs(value)) : best);
      this.largest = this.rows.reduce((most, row) => row.reduce(larger, most), 0);
      this.hasNonFinite = this.rows.some((row) => !row.every(Number.isFinite));
      this.list.fill(this.weightDiff, state.head, this.rows, this.page.tokens());
    }
    this.colourBar.element.hidden = !this.largest;
    this.colourBar.draw(this.largest, true, this.page.theme());
    const finite = (value) => (Number.isFinite(value) ? value : NaN);
    const value = (query, key) => (this.weightDiff.mayAttend(query, key) ? finite(this.rows[query][key]) : Infinity);
    const width = Math.max(160, this.heat.element.parentElement.clientWidth - 150);
    const names = { row: (query) => this.name("query", query), column: (key) => this.name("key", key) };
    this.heat.draw({ key, rows: one.queries, columns: one.keys, value, largest: this.largest, signed: true, scale: state.scale, names,
      axes: { row: "query", column: "key" }, width, height: MAX_HEIGHT },
    { row: state.key === null ? null : state.query, column: state.key, pinned: state.pinned, theme: this.page.theme(), description: this.describe(state) });
  }

  /** The token of this run, and that of the other run where it differs. */
  name(side, index) {
    const [own, theirs] = [this.page.tokens()[side][index], this.others(side)[index]];
    return own.text === theirs.text ? tokenLabel(own) : make("span", {}, tokenLabel(own), " | ", tokenLabel(theirs));
  }

  others(side) {
    const entry = otherEntry(this.page.manifest, this.page.state().layer);
    return this.page.manifest.other.sequences[side === "query" ? entry.queries : entry.keys].tokens;
  }

  describe({ query, key, head }) {
    const pair = query === null || key === null ? null : [tokenText(this.page.tokens().query, query), tokenText(this.page.tokens().key, key)];
    const cell = pair ? `: ${pair.join(" to ")} ${this.rows[query][key].toPrecision(3)}` : "";
    return `differences in weights, ${layerLabel(this.page.entry())}, head ${head}${cell}`;
  }

  /** The text of the readout. */
  readout() {
    const selection = this.selection();
    if (selection.of === "lens") return this.lens.readout(selection);
    const state = this.page.state();
    if (selection.hovered) return this.overview.readout(selection.hovered);
    const label = `${layerLabel(this.page.entry())} · head ${state.head} · `;
    const maskedNote = (query, key) => (this.weightDiff.mayAttend(query, key) ? "" : " · masked");
    if (this.weightDiff.mismatch()) return { words: [label, "not comparable"] };
    if (state.query === null || state.key === null) return { words: [label, "point at a cell to read its difference"] };
    const [mine, theirs] = [this.weightDiff.one, this.weightDiff.other].map((each) => each.row(state.head, state.query)[state.key]);
    return {
      words: [label, ...tokenNodes(this.page.tokens().query, state.query), " → ", ...tokenNodes(this.page.tokens().key, state.key)],
      value: exact(mine - theirs), note: `this run ${exact(mine)}, other ${exact(theirs)}${maskedNote(state.query, state.key)}${state.pinned ? " · pinned" : ""}`,
    };
  }

  /** The sentences of the legend about the picture. */
  legend() {
    if (this.selection().of === "lens") return this.lens.legend();
    if (this.weightDiff.mismatch()) return [this.overview.legend()];
    const end = exact(this.largest);
    const scale = `on a ${SCALES[this.page.state().scale]} scale.`;
    return [
      this.largest ? `This run minus the other: orange is larger in this run, blue in the other, from −${end} to ${end} ${scale}` : "",
      this.heat.poolingNote(),
      this.hasNonFinite || this.overview.hasNonFinite() ? "Cells where the weight of either run is NaN or infinite are black (white on a dark page)." : "",
      this.overview.legend(),
    ].filter(Boolean);
  }

  /** The sentence below the legend. */
  provenance() {
    const compared = this.selection().of !== "lens" && this.weightDiff?.mismatch() === "";
    return otherRunNote(this.page.manifest, compared ? ` ${this.weightDiff.provenance()}` : "");
  }

  /** @returns {import("./table.js").Table} */
  table() {
    const selection = this.selection();
    if (selection.of === "lens" && this.lens) return this.lens.table(selection.column ?? this.lens.one.tokens.length - 1);
    const { layer, head, query, key } = this.page.state();
    if (this.weightDiff?.index !== layer) return null; // unreadable: the table of attention gives the reason
    const title = `${capitalized(layerLabel(this.page.entry()))} · head ${head} · this run minus the other`;
    if (this.weightDiff.mismatch()) throw new Problem(this.weightDiff.mismatch());
    const [queries, keys] = [windowAround(query, MAX_TABLE, this.weightDiff.one.queries), windowAround(key, MAX_TABLE, this.weightDiff.one.keys)];
    const left = this.weightDiff.one.queries * this.weightDiff.one.keys - queries.length * keys.length;
    const caption = `Rows are queries, columns are keys.${left ? ` ${left.toLocaleString("en")} more cells are left out: move the selected cell to see others.` : ""}`;
    const name = (side) => (index) => numberedName(this.name(side, index), index);
    const rows = queries.map((row) => ({ name: name("query")(row), cells: keys.map((column) => exact(this.rows[row][column])) }));
    return { title, caption: [caption], columns: keys.map(name("key")), rows };
  }

  python() {
    const selection = this.selection();
    if (selection.of === "lens") return this.lens?.python(selection);
    if (selection.hovered || this.weightDiff?.mismatch() !== "") return "";
    const { layer, head, query, key } = this.page.state();
    const cell = `["${this.page.manifest.attentions[layer].name}.weights"][0, ${head}, ${query}, ${key}]`;
    return query === null || key === null ? "" : `trace${cell} - other${cell}`;
  }

  pin() {
    this.cells[this.selection().of].pin();
  }

  clearSelection() {
    this.set({ row: null, column: null, pinned: false, hovered: null });
  }

  clearHover() {
    this.set({ hovered: null, ...(this.selection().pinned ? {} : { row: null, column: null }) });
  }

  /** The tokens that can be searched; for weights, those of the page. */
  searchTokens() {
    return this.selection().of === "lens" ? this.lens?.one.tokens : null;
  }

  /** Goes to a token that was found; in the weights, to the largest difference of its row. */
  reveal(_side, token) {
    const selection = this.selection();
    if (selection.of === "lens") {
      if (!this.lens?.grid) return;
      const row = selection.row ?? this.lens.points.length - 1;
      this.set({ row, column: token, pinned: false });
      this.lens.grid.reveal(row, token);
    } else if (this.weightDiff?.mismatch() === "") {
      const key = this.rows[token].reduce((best, value, at, row) => (Math.abs(value) > Math.abs(row[best]) ? at : best), 0);
      this.select({ key });
      this.heat.reveal(token, key);
    }
  }

  /** Arrow keys move the cell; in the overview they choose a head. */
  move(right, down) {
    const [selection, state, { attentions }] = [this.selection(), this.page.state(), this.page.manifest];
    if (selection.of === "lens") {
      if (!this.lens?.grid) return;
      this.cells.lens.move({ right, down, rows: this.lens.points.length, columns: this.lens.one.tokens.length }, this.lens.grid);
    } else if (this.overview.heat.plot.contains(document.activeElement)) {
      const layer = clampedStep(state.layer, down, attentions.length);
      const head = clampedStep(state.head, right, attentions[layer].heads);
      this.choose(layer, head);
      this.overview.heat.reveal(layer, head);
    } else if (this.weightDiff?.mismatch() === "") {
      this.cells.weights.move({ right, down, rows: this.weightDiff.one.queries, columns: this.weightDiff.one.keys }, this.heat);
    }
  }
}

function capitalized(text) {
  return text[0].toUpperCase() + text.slice(1);
}
