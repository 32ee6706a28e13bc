// lens.js: the lens view. What the model predicts if it ends after the embeddings, or after any layer.
// A column is a token of the text, a row is a layer; deeper layers are further down.
import { make } from "./dom.js";
import { SCALES, scaleSwitch } from "./controls.js";
import { CellSelection } from "./selection.js";
import { ColourBar } from "./heatmap.js";
import { exact, percent, shortened, tokenLabel, tokenNodes, visible } from "./tokens.js";
import { WordGrid } from "./wordgrid.js";

/** @type {import("./app.js").ViewModule} */
export const lensView = {
  name: "lens", label: "Lens", key: "l",
  available: (manifest) => Boolean(manifest.lens),
  create: (page) => new Lens(page),
};

/** The numbers of a lens: the k likeliest tokens after each layer, at each token. */
export class LensNumbers {
  /**
   * @param {import("./data.js").Source} source
   * @param {{lens: any, sequences: any[]}} trace the manifest itself, or its `other`
   */
  constructor(source, { lens, sequences }) {
    const { shape } = source.manifest.blocks[lens.ids];
    [this.points, this.tokens, this.k] = [lens.points, sequences.at(-1).tokens, shape[2]];
    this.ids = source.block(lens.ids);
    this.logs = source.block(lens.log_probabilities);
    this.tokensById = lens.tokens_by_id;
    this.next = lens.kind === "next token";
  }

  /** The k likeliest tokens of one cell, the likeliest first. */
  top(row, token) {
    const from = (row * this.tokens.length + token) * this.k;
    return Array.from({ length: this.k }, (_, rank) => {
      const id = this.ids[from + rank];
      return { id, text: this.tokensById[id] ?? `id ${id}`, log: this.logs[from + rank] };
    });
  }

  /** The id of the likeliest token of one cell. */
  best(row, token) {
    return this.ids[(row * this.tokens.length + token) * this.k];
  }

  /** The actual token: the next one of the text, or the token itself for masked prediction. */
  actual(token) {
    return this.tokens[token + (this.next ? 1 : 0)] ?? null;
  }
}

/** layers.3.residual.post -> layer 3 */
export function placeName(name) {
  const layer = /(?:^|\.)layers\.(\d+)\.residual\.post$/.exec(name);
  if (layer) return `layer ${layer[1]}`;
  return /(?:^|\.)embeddings\./.test(name) ? "embeddings" : name.replace(/^decoder\./, "");
}

class Lens {
  /** @param {import("./app.js").Page} page */
  constructor(page) {
    this.page = page;
    this.sharedControls = [];
    this.detail = make("aside", { class: "lens-detail", "aria-label": "the most likely tokens of the selected cell" });
    this.element = make("div", { class: "lens" });
    this.colourBar = new ColourBar();
    this.controls = [scaleSwitch(page), { element: this.colourBar.element }];
    this.cell = new CellSelection(() => this.selection(), (lens) => page.set({ lens }));
  }

  requiredBlocks() {
    const { ids, log_probabilities: logs } = this.page.manifest.lens;
    return [ids, logs];
  }

  /** The selected cell. */
  selection() {
    return { row: null, column: null, pinned: false, ...this.page.state().lens };
  }

  draw() {
    if (!this.numbers) this.fill();
    const [selection, theme] = [this.selection(), this.page.theme()];
    this.colourBar.draw(100, false, theme, " %");
    this.grid.draw({ ...selection, theme, scale: this.page.state().scale });
    this.drawDetail(selection.row ?? this.numbers.points.length - 1, selection.column ?? this.numbers.tokens.length - 1);
  }

  fill() {
    this.numbers = new LensNumbers(this.page.source, this.page.manifest);
    const { points, tokens } = this.numbers;
    this.grid = new WordGrid({
      label: `${this.page.manifest.lens.kind}: the most likely token after each layer`, columns: tokens.length,
      rows: points.map((name) => ({ name: placeName(name), title: name })),
      heading: (column) => tokenLabel(tokens[column]),
      word: (row, column) => this.word(row, column),
      ...this.cell.pointer,
    });
    this.element.replaceChildren(this.grid.element, this.detail);
    this.hits = this.countHits();
    const { row, column, pinned } = this.selection();
    if (pinned) this.grid.reveal(row, column, false); // it comes from the address
  }

  /** How often the likeliest token after the last layer is the actual one. */
  countHits() {
    const { numbers } = this;
    const known = [...numbers.tokens.keys()].filter((token) => numbers.actual(token));
    const right = known.filter((token) => numbers.actual(token).id === numbers.best(numbers.points.length - 1, token));
    return { right: right.length, all: known.length };
  }

  word(row, column) {
    const best = this.numbers.top(row, column)[0];
    const right = this.numbers.actual(column)?.id === best.id;
    const title = `${visible(best.text)}  ${percent(Math.exp(best.log))}${right ? " · as in the text" : ""}`;
    return { text: make("bdi", { class: "token" }, shortened(best.text)), share: Math.exp(best.log), mark: right ? "✓" : null, title };
  }

  /** The likeliest tokens of the selected cell, with the numbers as stored. */
  drawDetail(row, token) {
    const detailKey = `${row}/${token}`;
    if (detailKey === this.detailKey) return;
    this.detailKey = detailKey;
    const { numbers } = this;
    const tableRow = ({ id, text, log }, rank) => {
      const bar = make("span", { class: "lens-bar" });
      bar.style.width = `${Math.exp(log) * 100}%`;
      return make("tr", { "data-id": id }, make("td", {}, String(rank + 1)), make("th", { scope: "row", title: visible(text) }, make("bdi", { class: "token" }, shortened(text)), bar),
        make("td", {}, percent(Math.exp(log))), make("td", {}, exact(log)));
    };
    const heads = ["", "token", "probability", "log-probability"].map((name) => make(name ? "th" : "td", name ? { scope: "col" } : {}, name));
    this.detail.replaceChildren(
      make("h2", {}, `${placeName(numbers.points[row])}, at `, ...tokenNodes(numbers.tokens, token)),
      make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...numbers.top(row, token).map(tableRow))),
      make("p", { class: "quiet" }, ...this.aboutActual(row, token)));
  }

  aboutActual(row, token) {
    const actual = this.numbers.actual(token);
    if (!actual) return ["The text ends here."];
    const rank = this.numbers.top(row, token).findIndex(({ id }) => id === actual.id) + 1;
    const where = rank ? `number ${rank} in this list.` : `not among these ${this.numbers.k}.`;
    return [this.numbers.next ? "The text continues with “" : "The text has “", make("bdi", {}, shortened(actual.text)), `”: ${where}`];
  }

  /** The text of the readout. */
  readout() {
    const { row, column: token, pinned } = this.selection();
    if (row === null) return { words: ["lens · point at a cell to read its most likely tokens"] };
    const [best] = this.numbers.top(row, token);
    return {
      words: [`${placeName(this.numbers.points[row])} · at `, ...tokenNodes(this.numbers.tokens, token), " · predicts “", make("bdi", {}, shortened(best.text)), "”"],
      value: exact(best.log), note: `log-probability · ${percent(Math.exp(best.log))}${pinned ? " · pinned" : ""}`,
    };
  }

  /** The sentences of the legend about the picture. */
  legend() {
    const { lens } = this.page.manifest;
    const guess = lens.kind === "next token" ? "most likely next token" : "most likely token at that position";
    return [
      `Each cell is the ${guess}, read from the residual stream after that layer through the model’s own final norm`
        + " and output head; its shade is its probability,"
        + ` from 0 to 100 % on a ${SCALES[this.page.state().scale]} scale.`,
      `✓ marks a token that matches the text: ${this.hits.right} of ${this.hits.all} after the last layer.`,
      "Intermediate layers were not trained to be read this way.",
      this.grid.printedRange(),
    ].filter(Boolean);
  }

  /** The sentence below the legend. */
  provenance() {
    const { dtype } = this.page.manifest.blocks[this.page.manifest.lens.log_probabilities];
    return `Log-probabilities (natural logarithm) as the model computed them, stored as ${dtype}; the ${this.numbers.k} most likely tokens of each cell are kept.`;
  }

  python() {
    const { row, column } = this.selection();
    return row === null ? "" : `lens.log_probabilities[${row}, ${column}, 0]`;
  }

  /** @returns {import("./table.js").Table} the selected column, layer by layer */
  table() {
    const { numbers } = this;
    if (!numbers) return null;
    const token = this.selection().column ?? numbers.tokens.length - 1;
    const k = Math.min(5, numbers.k);
    const words = (row) => numbers.top(row, token).slice(0, k).flatMap(({ text, log }) => [visible(text), exact(log)]);
    return {
      title: "Lens",
      caption: ["At ", ...tokenNodes(numbers.tokens, token), `: the ${k} most likely tokens after each layer and their log-probabilities;`
        + " other tokens have their own tables."],
      columns: Array.from({ length: k }, (_, rank) => [`${rank + 1}`, "log-probability"]).flat(),
      rows: numbers.points.map((name, row) => ({ name: placeName(name), cells: words(row) })),
    };
  }

  /** The tokens that can be searched. */
  searchTokens() {
    return this.numbers?.tokens ?? [];
  }

  pin() {
    this.cell.pin();
  }

  clearSelection() {
    this.page.set({ lens: null });
  }

  clearHover() {
    this.cell.pointer.leave();
  }

  /** Arrow keys move the cell. */
  move(right, down) {
    if (!this.numbers) return;
    const [rows, columns] = [this.numbers.points.length, this.numbers.tokens.length];
    this.cell.move({ right, down, rows, columns, first: rows - 1 }, this.grid);
  }

  /** Goes to a token that was found. */
  reveal(_side, token) {
    const row = this.selection().row ?? this.numbers.points.length - 1;
    this.page.set({ lens: { row, column: token, pinned: false } });
    this.grid.reveal(row, token);
  }
}
