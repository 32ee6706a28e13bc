// facts.js: statistics of the numbers that are drawn: minimum, maximum, mean, and a histogram.
import { make, mark, pen } from "./dom.js";
import { headColour } from "./colour.js";
import { histogram, shortest } from "./numbers.js";
import { minus } from "./tokens.js";

/** The bins of the histogram, and in pixels the width of a bin and the total height. */
const [STEPS, WIDE, TALL] = [48, 5, 56];

export class FactsBox {
  constructor() {
    this.facts = make("dl", { class: "facts" });
    this.bars = make("canvas", { role: "img" });
    this.element = make("div", { class: "tensor-facts" }, this.facts, this.bars);
  }

  /** @param {import("./numbers.js").Facts} facts */
  write({ least, most, mean, deviation, nan, infinite, count }) {
    const number = (value) => (Number.isFinite(value) ? minus(shortest(Number(value.toPrecision(7)))) : "none");
    const facts = { numbers: count.toLocaleString("en"), min: number(least), max: number(most), mean: number(mean),
      "standard deviation": number(deviation), NaN: nan.toLocaleString("en") };
    if (infinite) facts.infinite = infinite.toLocaleString("en");
    this.facts.replaceChildren(...Object.entries(facts).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }

  /**
   * @param {string} key identifies the picture
   * @param {Float32Array} values
   * @param {import("./numbers.js").Facts} facts
   * @param {import("./colour.js").Theme} theme
   */
  drawHistogram(key, values, facts, theme) {
    const picture = [key, theme, window.devicePixelRatio].join();
    if (picture === this.picture) return;
    this.picture = picture;
    const counts = Number.isFinite(facts.least) ? histogram(values, facts, STEPS) : [];
    const peak = Math.max(1, ...counts);
    const context = pen(this.bars, STEPS * WIDE, TALL);
    context.fillStyle = headColour(0, theme);
    counts.forEach((count, at) => count && context.fillRect(at * WIDE, TALL - Math.max(1, (count / peak) * TALL), WIDE - 1, TALL));
    const words = counts.length ? inWords(counts.indexOf(peak), peak, facts) : "histogram: no finite numbers";
    mark(this.bars, "aria-label", words);
    mark(this.bars, "title", words);
  }
}

function inWords(at, peak, { least, most }) {
  const edge = (step) => shortest(Number((least + ((most - least) * step) / STEPS).toPrecision(4)));
  return `histogram: the fullest of ${STEPS} bins holds ${peak} numbers, from ${edge(at)} to ${edge(at + 1)}`;
}
