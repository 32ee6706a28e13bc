// difflens.js: where the predictions of two runs differ, after the embeddings and every layer.
import { Problem } from "./data.js";
import { make } from "./dom.js";
import { SCALES } from "./controls.js";
import { LensNumbers, placeName } from "./lens.js";
import { exact, percent, shortened, tokenLabel, tokenNodes, visible } from "./tokens.js";
import { WordGrid } from "./wordgrid.js";

export class LensDiff {
  /**
   * @param {import("./app.js").Page} page its lens blocks must be loaded
   * @param {import("./selection.js").CellSelection} cell
   */
  constructor(page, cell) {
    this.page = page;
    this.one = new LensNumbers(page.source, page.manifest);
    this.other = new LensNumbers(page.source, page.manifest.other);
    const { tokens } = this.one;
    this.points = this.one.points.filter((name) => this.other.points.includes(name));
    /** The row of each of these points in both lenses. */
    this.rows = this.points.map((name) => [this.one, this.other].map(({ points }) => points.indexOf(name)));
    this.differ = this.mismatch() ? 0 : this.countDiffering();
    this.grid = this.mismatch() ? null : new WordGrid({
      label: "where the most likely tokens differ", columns: tokens.length, rows: this.points.map((name) => ({ name: placeName(name), title: name })),
      heading: (column) => tokenLabel(tokens[column]), word: (row, column) => this.word(row, column), ...cell.pointer,
    });
    this.element = make("div", { class: "diff-lens" }, this.grid?.element ?? make("p", { class: "problem" }, this.mismatch()));
  }

  /** The number of cells whose likeliest tokens differ. */
  countDiffering() {
    const differ = ([one, other]) => [...this.one.tokens.keys()].filter((token) => this.one.best(one, token) !== this.other.best(other, token)).length;
    return this.rows.reduce((sum, row) => sum + differ(row), 0);
  }

  mismatch() {
    const [one, other] = [this.one.tokens.length, this.other.tokens.length];
    if (one === other) return "";
    return `This run has ${one} tokens and the other ${other}: lenses can be compared position by position only if the numbers of tokens are equal.`;
  }

  /** The likeliest tokens of both runs at a cell, and the difference in probability of this run's token. */
  pair(row, column) {
    const [one, other] = [this.one, this.other].map((numbers, run) => numbers.top(this.rows[row][run], column));
    const match = other.find(({ id }) => id === one[0].id);
    const least = other.at(-1).log;
    const gap = Math.abs(Math.exp(one[0].log) - Math.exp(match?.log ?? least));
    return { one: one[0], other: other[0], match: match?.log ?? null, gap, same: one[0].id === other[0].id };
  }

  word(row, column) {
    const { one, other, gap, same } = this.pair(row, column);
    const name = ({ text }) => make("bdi", { class: "token" }, shortened(text));
    const text = make("span", {}, name(one), ...(same ? [] : [" | ", name(other)]));
    const describe = ({ text: letters, log }) => `${visible(letters)}  ${percent(Math.exp(log))}`;
    const title = same ? `both: ${visible(one.text)}` : `this run: ${describe(one)}\nthe other: ${describe(other)}`;
    return { text, share: gap, mark: same ? null : "≠", title };
  }

  draw(selection) {
    this.grid?.draw({ ...selection, theme: this.page.theme(), scale: this.page.state().scale });
  }

  readout({ row, column: token, pinned }) {
    if (!this.grid) return { words: ["the two lenses cannot be compared"] };
    if (row === null) return { words: ["lens · point at a cell to compare both runs"] };
    const { one, other, match, same } = this.pair(row, token);
    const words = [`${placeName(this.points[row])} · at `, ...tokenNodes(this.one.tokens, token), " · “", make("bdi", {}, shortened(one.text)), "”"];
    if (!same) words.push(" | “", make("bdi", {}, shortened(other.text)), "”");
    const value = match === null ? "" : exact(one.log - match);
    const note = match === null ? `not among the ${this.other.k} most likely in the other run` : "log-probability of this token, minus that in the other run";
    return { words, value, note: pinned ? `${note} · pinned` : note };
  }

  /** The Python expression for the number in the readout; empty where the other run does not store this run's token. */
  python({ row, column: token }) {
    if (!this.grid || row === null) return "";
    const [one, other] = this.rows[row];
    const rank = this.other.top(other, token).findIndex(({ id }) => id === this.one.best(one, token));
    return rank < 0 ? "" : `lens.log_probabilities[${one}, ${token}, 0] - other_lens.log_probabilities[${other}, ${token}, ${rank}]`;
  }

  legend() {
    if (!this.grid) return [];
    const cells = this.points.length * this.one.tokens.length;
    return [
      this.differ
        ? `The most likely token differs in ${this.differ} of ${cells} cells, marked ≠; this run’s token comes first.`
        : `The most likely token is the same in all ${cells} cells.`,
      "The shade shows by how much the probability of this run’s token differs,"
        + ` from 0 to 100 % on a ${SCALES[this.page.state().scale]} scale; if it is not among the`
        + " tokens kept for the other run, the least likely of those is used instead.",
      this.grid.printedRange(),
    ].filter(Boolean);
  }

  /** @returns {import("./table.js").Table} */
  table(token) {
    if (!this.grid) throw new Problem(this.mismatch());
    const line = (row) => {
      const { one, other, match } = this.pair(row, token);
      return [visible(one.text), exact(one.log), visible(other.text), exact(other.log), match === null ? "not kept" : exact(match)];
    };
    return {
      title: "Lens, both runs",
      caption: ["At ", ...tokenNodes(this.one.tokens, token), "; other tokens have their own tables."
        + " The last column is the log-probability of this run’s token in the other."],
      columns: ["this run", "log-probability", "the other", "log-probability", "this run’s token in the other"],
      rows: this.points.map((name, row) => ({ name: placeName(name), cells: line(row) })),
    };
  }
}
