// statistics.js: statistics of the numbers that are drawn: minimum, maximum, mean, and a histogram.
import { make, setAttribute, prepareCanvas } from "./dom.js";
import { headColour } from "./colour.js";
import { histogram, shortest } from "./numbers.js";
import { withMinusSign } from "./tokens.js";

/** The bins of the histogram, and in pixels the width of a bin and the total height. */
const [BINS, BIN_WIDTH, HEIGHT] = [48, 5, 56];

export class StatisticsBox {
  constructor() {
    this.facts = make("dl", { class: "facts" });
    this.bars = make("canvas", { role: "img" });
    this.element = make("div", { class: "tensor-facts" }, this.facts, this.bars);
  }

  /** @param {import("./numbers.js").Statistics} facts */
  write({ min, max, mean, deviation, nan, infinite, count }) {
    const format = (value) => (Number.isFinite(value) ? withMinusSign(shortest(Number(value.toPrecision(7)))) : "none");
    const facts = { numbers: count.toLocaleString("en"), min: format(min), max: format(max), mean: format(mean),
      "standard deviation": format(deviation), NaN: nan.toLocaleString("en") };
    if (infinite) facts.infinite = infinite.toLocaleString("en");
    this.facts.replaceChildren(...Object.entries(facts).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }

  /**
   * @param {string} key identifies the picture
   * @param {Float32Array} values
   * @param {import("./numbers.js").Statistics} facts
   * @param {import("./colour.js").Theme} theme
   */
  drawHistogram(key, values, facts, theme) {
    const picture = [key, theme, window.devicePixelRatio].join();
    if (picture === this.picture) return;
    this.picture = picture;
    const counts = Number.isFinite(facts.min) ? histogram(values, facts, BINS) : [];
    const peak = Math.max(1, ...counts);
    const context = prepareCanvas(this.bars, BINS * BIN_WIDTH, HEIGHT);
    context.fillStyle = headColour(0, theme);
    counts.forEach((count, bin) => count && context.fillRect(bin * BIN_WIDTH, HEIGHT - Math.max(1, (count / peak) * HEIGHT), BIN_WIDTH - 1, HEIGHT));
    const words = counts.length ? description(counts.indexOf(peak), peak, facts) : "histogram: no finite numbers";
    setAttribute(this.bars, "aria-label", words);
    setAttribute(this.bars, "title", words);
  }
}

function description(bin, peak, { min, max }) {
  const edge = (step) => shortest(Number((min + ((max - min) * step) / BINS).toPrecision(4)));
  return `histogram: the fullest of ${BINS} bins holds ${peak} numbers, from ${edge(bin)} to ${edge(bin + 1)}`;
}
