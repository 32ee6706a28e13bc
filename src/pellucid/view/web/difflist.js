// difflist.js: the largest differences of one head, each as a button that goes to its cell.
import { button, make } from "./dom.js";
import { tokenNodes } from "./tokens.js";

/** How many differences are listed. */
const MAX_LISTED = 12;

export class DifferenceList {
  /** @param {(query: number, key: number) => void} go */
  constructor(go) {
    this.go = go;
    this.element = make("ol", { class: "diff-list", "data-rove": true });
  }

  /**
   * @param {import("./diffweights.js").WeightDiff} weightDiff
   * @param {number} head
   * @param {Float64Array[]} rows the differences, one row for each query
   * @param {{query: import("./data.js").Token[], key: import("./data.js").Token[]}} tokens
   */
  fill(weightDiff, head, rows, tokens) {
    const item = ({ query, key, value }, index) => {
      const [mine, theirs] = [weightDiff.one, weightDiff.other].map((each) => each.row(head, query)[key].toPrecision(4));
      const line = button("", () => this.go(query, key), { class: "plain", tabindex: index ? -1 : 0 });
      line.append(make("b", {}, signed(value)), " ", make("span", {}, ...tokenNodes(tokens.query, query), " → ", ...tokenNodes(tokens.key, key),
        make("small", {}, ` ${mine} vs ${theirs}`)));
      return make("li", {}, line);
    };
    const cells = largestOf(rows, MAX_LISTED);
    this.element.replaceChildren(...(cells.length ? cells.map(item) : [make("li", { class: "quiet" }, `There are none: ${whyNone(weightDiff, rows)}.`)]));
  }
}

/** The message where no difference is listed. */
function whyNone(weightDiff, rows) {
  if (!rows.some((row) => row.some(Number.isNaN))) return "every weight is the same";
  const others = rows.some((row, query) => row.some((value, key) => weightDiff.mayAttend(query, key) && !Number.isNaN(value)));
  return others ? "some weights are NaN or infinite, the others are the same" : "in every cell a weight is NaN or infinite";
}

/** The cells with the largest absolute values, largest first; without zeros and NaN. */
function largestOf(rows, most) {
  const found = [];
  rows.forEach((row, query) => row.forEach((value, key) => {
    if (!(Math.abs(value) > 0) || (found.length === most && Math.abs(value) <= Math.abs(found.at(-1).value))) return;
    const index = found.findIndex((each) => Math.abs(each.value) < Math.abs(value));
    found.splice(index < 0 ? found.length : index, 0, { query, key, value });
    found.length = Math.min(found.length, most);
  }));
  return found;
}

function signed(value) {
  return `${value > 0 ? "+" : "−"}${Math.abs(value).toPrecision(4)}`;
}
