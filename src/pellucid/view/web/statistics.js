// statistics.js: statistics of the numbers that are drawn: minimum, maximum, mean, and a histogram.
import { make, prepareCanvas, setAttribute } from "./dom.js";
import { headColour } from "./colour.js";
import { histogram, shortest } from "./numbers.js";
import { withMinusSign } from "./tokens.js";

/** The bins of the histogram, and in pixels the width of a bin and the total height. */
const [BINS, BIN_WIDTH, HEIGHT] = [48, 5, 56];

export class StatisticsBox {
  constructor() {
    this.list = make("dl", { class: "facts" });
    this.histogram = make("canvas", { role: "img" });
    this.element = make("div", { class: "tensor-facts" }, this.list, this.histogram);
  }

  /** @param {import("./numbers.js").Statistics} statistics */
  write({ min, max, mean, deviation, nan, infinite, count }) {
    const format = (value) => (Number.isFinite(value) ? withMinusSign(shortest(Number(value.toPrecision(7)))) : "none");
    const rows = { numbers: count.toLocaleString("en"), min: format(min), max: format(max), mean: format(mean),
      "standard deviation": format(deviation), NaN: nan.toLocaleString("en") };
    if (infinite) rows.infinite = infinite.toLocaleString("en");
    this.list.replaceChildren(...Object.entries(rows).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }

  /**
   * @param {string} key identifies the picture
   * @param {Float32Array} values
   * @param {import("./numbers.js").Statistics} statistics
   * @param {import("./colour.js").Theme} theme
   */
  drawHistogram(key, values, statistics, theme) {
    const pictureKey = [key, theme, window.devicePixelRatio].join();
    if (pictureKey === this.pictureKey) return;
    this.pictureKey = pictureKey;
    const counts = Number.isFinite(statistics.min) ? histogram(values, statistics, BINS) : [];
    const peak = Math.max(1, ...counts);
    const context = prepareCanvas(this.histogram, BINS * BIN_WIDTH, HEIGHT);
    context.fillStyle = headColour(0, theme);
    counts.forEach((count, bin) => count && context.fillRect(bin * BIN_WIDTH, HEIGHT - Math.max(1, (count / peak) * HEIGHT), BIN_WIDTH - 1, HEIGHT));
    const words = counts.length ? description(counts.indexOf(peak), peak, statistics) : "histogram: no finite numbers";
    setAttribute(this.histogram, "aria-label", words);
    setAttribute(this.histogram, "title", words);
  }
}

function description(bin, peak, { min, max }) {
  const edge = (step) => shortest(Number((min + ((max - min) * step) / BINS).toPrecision(4)));
  return `histogram: the fullest of ${BINS} bins holds ${peak} numbers, from ${edge(bin)} to ${edge(bin + 1)}`;
}
