// overview.js: the largest difference of every head between two runs, computed layer by layer in idle time.
import { Problem } from "./data.js";
import { make } from "./dom.js";
import { Ends, Heat } from "./heat.js";
import { MOST_AHEAD, ofEachRow } from "./idle.js";
import { groupOf } from "./state.js";
import { exact } from "./tokens.js";
import { twinBlocks, Twins } from "./twins.js";

/** The largest difference of every head, computed layer by layer while the page is idle. */
export class Overview {
  /**
   * @param {import("./app.js").Page} page
   * @param {{enter: (place: number, head: number) => void, press: (place: number, head: number) => void, leave: () => void}} hand
   */
  constructor(page, hand) {
    [this.page, this.source] = [page, page.source];
    const { attentions, sequences } = page.manifest;
    this.heat = new Heat({ label: "largest difference in each head; arrow keys select one", ...hand });
    this.element = make("section", { class: "diff-overview", "aria-label": "all heads" }, make("h2", {}, "All heads"),
      make("div", { class: "tensor-scroll" }, this.heat.element), (this.ends = new Ends()).element,
      this.same = make("p", { class: "quiet" }, "Both runs are identical: no weight of any head differs."));
    /** @type {Map<number, Float64Array|null>} one number per head, by index of the attention, NaN where weights are not finite; null where they cannot be compared */
    this.done = new Map();
    this.cells = attentions.reduce((sum, { heads, queries, keys }) => sum + heads * sequences[queries].tokens.length * sequences[keys].tokens.length, 0);
    this.ahead = this.cells <= MOST_AHEAD;
  }

  /** Runs until all is computed, the chosen layer first. Of long texts only chosen layers are computed. */
  async start(first) {
    this.first = first;
    if (this.running) return;
    this.running = true;
    for (let place = this.next(); place !== null; place = this.next()) await this.work(place);
    this.running = false;
  }

  next() {
    if (!this.done.has(this.first)) return this.first;
    const left = this.ahead ? this.source.manifest.attentions.findIndex((_, place) => !this.done.has(place)) : -1;
    return left < 0 ? null : left;
  }

  async work(place) {
    const twins = await this.load(place);
    const most = !twins || twins.fault() ? null : new Float64Array(twins.one.heads);
    if (most) {
      await ofEachRow(twins.one, most.keys(), (head, query) => {
        for (const value of twins.row(head, query)) {
          if (!Number.isFinite(value)) most[head] = NaN;
          else if (Math.abs(value) > most[head]) most[head] = Math.abs(value);
        }
      });
    }
    this.done.set(place, most);
    this.page.set({});
  }

  /** Both attentions at an index; null if they cannot be read, which is reported when that layer is opened. */
  async load(place) {
    const names = twinBlocks(this.source.manifest, place);
    try {
      await this.source.load(names);
      return names.length ? new Twins(this.source, place) : null;
    } catch (problem) {
      if (problem instanceof Problem) return null;
      throw problem;
    }
  }

  /** @param {{place: number, head: number}} at the head that is marked @param {boolean} chosen whether it is the chosen one */
  draw(at, chosen) {
    const { attentions } = this.page.manifest;
    const heads = Math.max(...attentions.map((entry) => entry.heads));
    const largest = [...this.done.values()].reduce((most, row) => (row ?? []).reduce((best, value) => (value > best ? value : best), most), 0);
    this.ends.element.hidden = !largest;
    this.same.hidden = [...attentions.keys()].some((place) => !this.done.get(place)?.every((value) => value === 0));
    this.ends.draw(largest, false, this.page.theme());
    const room = Math.min(20 * heads, Math.max(120, this.element.parentElement.clientWidth - 106));
    const value = (place, head) => this.done.get(place)?.[head] ?? Infinity;
    const names = { row: (place) => make("span", { class: this.done.get(place) === null ? "quiet" : null }, layerWords(attentions[place]).replace("layer ", "")), column: String };
    this.heat.draw({ key: String(this.done.size), rows: attentions.length, columns: heads, value, largest, signed: false, scale: this.page.state().scale,
      names, axes: { row: "layer", column: "head" }, room, height: 22 * attentions.length },
    { row: at.place, column: at.head, pinned: chosen, theme: this.page.theme(),
      description: `largest difference of each of ${heads} heads in ${attentions.length} layers; ${this.inWords(at)}` });
  }

  inWords({ place, head }) {
    const text = this.done.get(place)?.[head]?.toPrecision(4) ?? this.why(place);
    return `${layerWords(this.page.manifest.attentions[place])}, head ${head}: ${text}`;
  }

  /** The text of the readout about a head. */
  readout({ place, head }) {
    const value = this.done.get(place)?.[head];
    const words = [`${layerWords(this.page.manifest.attentions[place])} · head ${head} · largest difference`];
    return value === undefined ? { words, note: this.why(place) } : { words, value: exact(value) };
  }

  /** Why a head has no number. */
  why(place) {
    return this.done.has(place) ? "not comparable" : "not computed yet";
  }

  /** Whether any weight of a run is not finite. */
  broken() {
    return [...this.done.values()].some((row) => row?.some(Number.isNaN));
  }

  legend() {
    const count = this.page.manifest.attentions.length;
    const blank = [...this.done.values()].includes(null) ? " Layers that cannot be compared stay empty." : "";
    if (this.done.size === count) return `Each cell of the overview is the largest difference in any weight of that head, in the colours below it.${blank}`;
    const rest = this.ahead ? " so far" : "; with texts this long, a layer is computed when it is opened";
    return `${this.done.size} of ${count} layers of the overview are computed${rest}.`;
  }
}

/** For example "layer 3", or in an encoder-decoder "cross layer 3". */
export function layerWords(entry) {
  return `${groupOf(entry)} layer ${entry.layer}`.trim();
}
