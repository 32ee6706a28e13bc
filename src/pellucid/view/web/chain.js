// chain.js: the computation of one weight as a chain of actual numbers, each from the one before, to be checked by hand.
import { make } from "./dom.js";
import { exact } from "./tokens.js";

/** @typedef {ReturnType<import("./attention.js").Attention["steps"]>} Steps */

/** Formats a number with nine digits, and masked scores as a sign. */
function formatted(number) {
  return number === -Infinity ? "−∞" : exact(number);
}

/** A number, named for the tests. A sign before it stays on its line: U+00A0 prevents a break. */
function step(name, number) {
  return make("b", { "data-step": name }, formatted(number));
}

export class Chain {
  constructor() {
    this.element = make("ol", { class: "chain" });
  }

  /**
   * @param {Steps} steps
   * @param {{head: number, distance: number, biased: boolean}} about biased: whether the model adds a bias by distance
   */
  draw(steps, about) {
    const links = [this.sum(steps), this.scaled(steps)];
    if (about.biased) links.push(this.biased(steps, about));
    if (!steps.allowed) links.push(this.link(make("b", { "data-step": "masked" }, "−∞"), "the mask excludes this pair, whatever its score"));
    links.push(this.exponential(steps), this.weight(steps));
    this.element.replaceChildren(...links);
  }

  link(number, ...words) {
    return make("li", { class: "chain-link" }, number, make("span", { class: "chain-words" }, ...words));
  }

  sum({ sum, products }) {
    return this.link(step("sum", sum), `the sum of the ${products.length} products`);
  }

  scaled({ scaled, scale }) {
    return this.link(step("scaled", scaled), "×\u00a0", step("scale", scale), ", the scale");
  }

  biased({ scaled, bias }, { head, distance }) {
    return this.link(step("score", scaled + bias), "+\u00a0", step("bias", bias), `, the bias of head ${head} for distance ${distance}`);
  }

  /** The start of softmax: subtracting the largest score changes no weight and keeps numbers small. */
  exponential({ exponential, largest }) {
    return this.link(step("exponential", exponential), "e to the power of the score −\u00a0", step("largest", largest), ", the largest in the row");
  }

  weight({ total, weight }) {
    return this.link(step("weight", weight), "÷\u00a0", step("total", total), ", the sum of these over all keys: the weight");
  }
}
