// diffweights.js: the elementwise difference of two attentions of the same name, one of this run and one of the other.
import { Attention, blocksOf, hasNumbers, omittedMessage } from "./attention.js";

/** The attention of the other run with the same name; both runs have the same attentions, with as many heads. */
export function otherEntry(manifest, index) {
  return manifest.other.attentions.find((each) => each.name === manifest.attentions[index].name);
}

/** The blocks that a comparison needs. */
export function blocksOfBoth(manifest, index) {
  return [...blocksOf(manifest.attentions[index]), ...blocksOf(otherEntry(manifest, index))];
}

/** This run minus the other, for one attention. */
export class WeightDiff {
  /**
   * @param {import("./data.js").Source} source its blocks must be loaded
   * @param {number} index index in manifest.attentions
   */
  constructor(source, index) {
    this.index = index;
    this.entry = source.manifest.attentions[index];
    [this.one, this.other] = [this.entry, otherEntry(source.manifest, index)].map((entry) => (hasNumbers(entry) ? new Attention(source, entry) : null));
  }

  /** Why these two cannot be compared, in a sentence; empty if they can. */
  mismatch() {
    const { one, other } = this;
    if (!one || !other) return omittedMessage(this.entry);
    if (one.queries === other.queries && one.keys === other.keys) return "";
    const size = ({ queries, keys }) => (queries === keys ? `${keys} tokens` : `${queries} queries and ${keys} keys`);
    return `This run has ${size(one)} and the other ${size(other)}: weights can be compared only if the numbers of tokens are equal.`;
  }

  /** The error of both, in sentences. */
  provenance() {
    const { one, other } = this;
    const largest = Number(Math.max(one.entry.max_error, other.entry.max_error).toPrecision(2));
    const known = one.entry.max_error != null && other.entry.max_error != null;
    const [mine, theirs] = [one, other].map(({ stored, dtype, coding }) => [stored, dtype, coding].join());
    const how = mine === theirs
      ? "The weights of both runs come from stored numbers in the same way."
      : "The weights of the two runs are stored in different ways: equal ones may differ slightly.";
    return `${how}${known ? ` Each was compared with the weights of its own run: largest error ${largest}.` : ""}`;
  }

  /** Whether this query may attend to this key in either run; it may where an edit set a weight. */
  mayAttend(query, key) {
    return this.one.mayAttend(query, key) || this.other.mayAttend(query, key);
  }

  row(head, query) {
    const [one, other] = [this.one.row(head, query), this.other.row(head, query)];
    return one.map((weight, key) => weight - other[key]);
  }
}
