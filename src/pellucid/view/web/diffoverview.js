// diffoverview.js: the largest difference of every head between two runs, computed layer by layer in idle time.
import { Problem } from "./data.js";
import { make } from "./dom.js";
import { ColourBar, Heatmap } from "./heatmap.js";
import { forEachRow, MAX_PRECOMPUTED } from "./idle.js";
import { groupOf } from "./state.js";
import { exact } from "./tokens.js";
import { blocksOfBoth, WeightDiff } from "./diffweights.js";

/** The largest difference of every head, computed layer by layer while the page is idle. */
export class Overview {
  /**
   * @param {import("./app.js").Page} page
   * @param {{enter: (index: number, head: number) => void, press: (index: number, head: number) => void, leave: () => void}} listeners
   */
  constructor(page, listeners) {
    this.page = page;
    const { attentions, sequences } = page.manifest;
    this.heat = new Heatmap({ label: "largest difference in each head; arrow keys select one", ...listeners });
    this.element = make("section", { class: "diff-overview", "aria-label": "all heads" }, make("h2", {}, "All heads"),
      make("div", { class: "tensor-scroll" }, this.heat.element), (this.colourBar = new ColourBar()).element,
      this.same = make("p", { class: "quiet" }, "Both runs are identical: no weight of any head differs."));
    /** @type {Map<number, Float64Array|null>} one number per head, by index of the attention, NaN where weights are not finite; null where they cannot be compared */
    this.results = new Map();
    const cells = attentions.reduce((sum, { heads, queries, keys }) => sum + heads * sequences[queries].tokens.length * sequences[keys].tokens.length, 0);
    this.computesAll = cells <= MAX_PRECOMPUTED;
  }

  /** Runs until all is computed, the chosen layer first. Of long texts only chosen layers are computed. */
  async start(first) {
    this.first = first;
    if (this.running) return;
    this.running = true;
    for (let index = this.next(); index !== null; index = this.next()) await this.compute(index);
    this.running = false;
  }

  next() {
    if (!this.results.has(this.first)) return this.first;
    const left = this.computesAll ? this.page.manifest.attentions.findIndex((_, index) => !this.results.has(index)) : -1;
    return left < 0 ? null : left;
  }

  async compute(index) {
    const weightDiff = await this.load(index);
    const most = !weightDiff || weightDiff.mismatch() ? null : new Float64Array(weightDiff.one.heads);
    if (most) {
      await forEachRow(weightDiff.one, most.keys(), (head, query) => {
        for (const value of weightDiff.row(head, query)) {
          if (!Number.isFinite(value)) most[head] = NaN;
          else if (Math.abs(value) > most[head]) most[head] = Math.abs(value);
        }
      });
    }
    this.results.set(index, most);
    this.page.set({});
  }

  /** Both attentions at an index; null if they cannot be read, which is reported when that layer is opened. */
  async load(index) {
    const { source } = this.page;
    try {
      await source.load(blocksOfBoth(source.manifest, index));
      return new WeightDiff(source, index);
    } catch (problem) {
      if (problem instanceof Problem) return null;
      throw problem;
    }
  }

  /** @param {{index: number, head: number}} marked the head that is marked @param {boolean} chosen whether it is the chosen one */
  draw(marked, chosen) {
    const { attentions } = this.page.manifest;
    const heads = Math.max(...attentions.map((entry) => entry.heads));
    const largest = [...this.results.values()].reduce((most, row) => (row ?? []).reduce((best, value) => (value > best ? value : best), most), 0);
    this.colourBar.element.hidden = !largest;
    this.same.hidden = [...attentions.keys()].some((index) => !this.results.get(index)?.every((value) => value === 0));
    this.colourBar.draw(largest, false, this.page.theme());
    const width = Math.min(20 * heads, Math.max(120, this.element.parentElement.clientWidth - 106));
    const value = (index, head) => this.results.get(index)?.[head] ?? Infinity;
    const names = { row: (index) => make("span", { class: this.results.get(index) === null ? "quiet" : null }, layerLabel(attentions[index]).replace("layer ", "")), column: String };
    this.heat.draw({ key: String(this.results.size), rows: attentions.length, columns: heads, value, largest, signed: false, scale: this.page.state().scale,
      names, axes: { row: "layer", column: "head" }, width, height: 22 * attentions.length },
    { row: marked.index, column: marked.head, pinned: chosen, theme: this.page.theme(),
      description: `largest difference of each of ${heads} heads in ${attentions.length} layers; ${this.describe(marked)}` });
  }

  describe({ index, head }) {
    const text = this.results.get(index)?.[head]?.toPrecision(4) ?? this.missingReason(index);
    return `${layerLabel(this.page.manifest.attentions[index])}, head ${head}: ${text}`;
  }

  /** The text of the readout about a head. */
  readout({ index, head }) {
    const value = this.results.get(index)?.[head];
    const words = [`${layerLabel(this.page.manifest.attentions[index])} · head ${head} · largest difference`];
    return value === undefined ? { words, note: this.missingReason(index) } : { words, value: exact(value) };
  }

  /** Why a head has no number. */
  missingReason(index) {
    return this.results.has(index) ? "not comparable" : "not computed yet";
  }

  /** Whether any weight of a run is not finite. */
  hasNonFinite() {
    return [...this.results.values()].some((row) => row?.some(Number.isNaN));
  }

  legend() {
    const count = this.page.manifest.attentions.length;
    const blank = [...this.results.values()].includes(null) ? " Layers that cannot be compared stay empty." : "";
    if (this.results.size === count) return `Each cell of the overview is the largest difference in any weight of that head, in the colours below it.${blank}`;
    const rest = this.computesAll ? " so far" : "; with texts this long, a layer is computed when it is opened";
    return `${this.results.size} of ${count} layers of the overview are computed${rest}.`;
  }
}

/** For example "layer 3", or in an encoder-decoder "cross layer 3". */
export function layerLabel(entry) {
  return `${groupOf(entry)} layer ${entry.layer}`.trim();
}
