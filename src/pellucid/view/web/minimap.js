// minimap.js: the whole text as a thin strip beside a long heads view. It shows the position of the viewport, and where in the text
// the weights of the selected token are, also outside the viewport.
import { make, prepareCanvas, setAttribute } from "./dom.js";
import { ramp, rampStep, stepColour } from "./colour.js";

const WIDTH = 14;

export class Minimap {
  /** @param {(share: number) => void} scrollTo 0 is the top of the text, 1 its end */
  constructor(scrollTo) {
    const scroll = (event) => event.buttons && scrollTo(event.offsetY / this.canvas.clientHeight);
    const title = "the whole text: click to scroll there";
    this.canvas = make("canvas", { class: "strip", "aria-hidden": "true", title, onmousedown: scroll, onmousemove: scroll });
  }

  /**
   * @param {object} picture
   * @param {number} picture.height of the strip
   * @param {number} picture.total height of the whole text
   * @param {number} picture.top first pixel in the viewport
   * @param {{at: number, weight: number}[]} picture.marks weights and their positions in the text
   * @param {import("./colour.js").Theme} picture.theme
   */
  draw({ height, total, top, marks, theme }) {
    const needed = total > height + 1;
    setAttribute(this.canvas, "hidden", !needed);
    if (!needed) return;
    const context = prepareCanvas(this.canvas, WIDTH, height);
    const scale = height / total;
    context.fillStyle = theme === "dark" ? "#ffffff18" : "#00000010";
    context.fillRect(0, top * scale, WIDTH, height * scale);
    const colours = ramp(theme);
    const largest = marks.reduce((most, { weight }) => (Number.isFinite(weight) ? Math.max(most, weight) : most), 0);
    const drawMark = ({ at, weight }) => {
      context.fillStyle = stepColour(colours, rampStep(weight, largest, "sqrt"));
      context.fillRect(3, at * scale - 1, WIDTH - 6, 2);
    };
    marks.filter(({ weight }) => weight > largest / 400).sort((a, b) => a.weight - b.weight).forEach(drawMark);
  }
}
