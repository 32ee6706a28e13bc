// controls.js: the toolbar. Each control is created once and has a `draw` that updates it from the state.
import { button, make, setAttribute } from "./dom.js";
import { headColour, headDash } from "./colour.js";
import { clampedStep } from "./selection.js";
import { chooseHead, groupIndices, groupOf, NO_TOKEN, THRESHOLDS, toggleHead } from "./state.js";
import { hasPair, PAIRS } from "./tokens.js";

/** The names of the colour scales. */
export const SCALES = { sqrt: "square root", linear: "linear" };

/** @typedef {{element: HTMLElement, draw?: (state: import("./state.js").State) => void}} Control one without `draw` is drawn by its view */

/**
 * A row of buttons, one of which is chosen.
 * @param {string} name
 * @param {Record<string, string>} choices value -> label
 * @param {(value: string) => void} choose
 * @param {(state: import("./state.js").State) => string} chosen
 * @returns {Control}
 */
export function segmentedControl(name, choices, choose, chosen) {
  const buttons = Object.entries(choices).map(([value, label]) =>
    button(label, () => choose(value), { class: null, "data-value": value }));
  const element = make("div", { class: "segments", role: "group", "aria-label": name }, ...buttons);
  return { element, draw: (state) => buttons.forEach((button) => setAttribute(button, "aria-pressed", button.dataset.value === chosen(state))) };
}

/**
 * The same as a drop-down list after its name; label: its accessible name.
 * @param {string} name
 * @param {string} label
 * @param {Record<string, string>} choices value -> words
 * @param {(value: string) => void} choose
 * @param {(state: import("./state.js").State) => string} chosen
 * @returns {Control}
 */
export function dropDown(name, label, choices, choose, chosen) {
  const select = make("select", { "aria-label": label, onchange: () => choose(select.value) },
    ...Object.entries(choices).map(([value, words]) => make("option", { value }, words)));
  const element = make("label", { class: "field" }, make("span", { class: "name" }, name), select);
  return { element, draw: (state) => (select.value = chosen(state)) };
}

/** @param {import("./app.js").Page} page @returns {Control} */
export function viewSwitch(page) {
  const labels = Object.fromEntries(page.views.map((view) => [view.name, view.label]));
  return segmentedControl("view", labels, (view) => page.set({ view }), (state) => state.view);
}

/** @returns {Control} */
export function pairFilter(page) {
  const control = segmentedControl("pair: which text attends to which", PAIRS, (pair) => page.set({ pair, ...NO_TOKEN }), (state) => state.pair);
  const draw = (state) => {
    const { queries, keys } = page.manifest.attentions[state.layer];
    control.element.hidden = queries !== keys || !hasPair(page.tokens().query);
    control.draw(state);
  };
  return { element: control.element, draw };
}

/** Chooses between the encoder's, the decoder's and cross-attention, in a model that has them. */
export function sideSwitch(page) {
  const { attentions } = page.manifest;
  const groups = [...new Set(attentions.map(groupOf))];
  const choose = (group) => {
    const here = attentions[page.state().layer].layer;
    const indices = groupIndices(page.manifest, group);
    page.set({ layer: indices.find((index) => attentions[index].layer >= here) ?? indices.at(-1) });
  };
  const control = segmentedControl("attention", Object.fromEntries(groups.map((group) => [group, group || "text"])), choose,
    (state) => groupOf(attentions[state.layer]));
  control.element.hidden = groups.length < 2;
  return control;
}

/** Steps through the layers by their indices in the model; some may have been left out. */
export function layerStepper(page) {
  const { attentions } = page.manifest;
  const select = make("select", { "aria-label": "layer", onchange: () => page.set({ layer: Number(select.value) }) });
  const step = (by, label, sign) => button(sign, () => stepLayer(page, by), { "aria-label": label });
  const [back, on] = [step(-1, "previous layer", "‹"), step(1, "next layer", "›")];
  let listed = null;
  const draw = (state) => {
    const group = groupOf(attentions[state.layer]);
    const indices = groupIndices(page.manifest, group);
    if (group !== listed) select.replaceChildren(...indices.map((index) => make("option", { value: index }, String(attentions[index].layer))));
    listed = group;
    select.value = String(state.layer);
    setAttribute(back, "aria-disabled", state.layer === indices[0]); // a disabled button would lose the focus
    setAttribute(on, "aria-disabled", state.layer === indices.at(-1));
  };
  return { element: make("div", { class: "field" }, make("span", { class: "name" }, "Layer"), back, select, on), draw };
}

export function stepLayer(page, by) {
  const { layer } = page.state();
  const indices = groupIndices(page.manifest, groupOf(page.manifest.attentions[layer]));
  page.set({ layer: indices[clampedStep(indices.indexOf(layer), by, indices.length)] });
}

/** The weight below which no lines are drawn, and the share of the hidden weights. */
export function thresholdSlider(page) {
  const value = make("output", { "aria-live": "off" }); // the slider announces itself, and every token would change this
  const input = make("input", { type: "range", min: 0, max: THRESHOLDS.length - 1, step: 1,
    "aria-label": "threshold: lines of smaller weights are hidden", oninput: () => page.set({ threshold: THRESHOLDS[input.value] }) });
  const draw = ({ threshold }, hidden) => {
    input.value = String(THRESHOLDS.findLastIndex((step) => step <= threshold));
    value.textContent = `${threshold}${hidden ? ` hides ${hidden}` : ""}`;
    setAttribute(input, "aria-valuetext", value.textContent);
  };
  draw(page.state(), ""); // also on a layer without numbers
  return { element: make("label", { class: "field" }, make("span", { class: "name" }, "Threshold"), input, value), draw };
}

/** Chooses the colour scale. */
export function scaleSwitch(page) {
  return dropDown("Colour scale", "colour scale", SCALES, (scale) => page.set({ scale }), ({ scale }) => scale);
}

/** One chip per head: its index above its line. In the heads view a click toggles the head, in others it chooses it. */
export function headChips(page) {
  const solo = (head) => page.set({ head, heads: [head] });
  const press = (head, event) => {
    if (event.altKey) solo(head);
    else page.set(page.state().view === "heads" ? toggleHead(page.state(), head) : chooseHead(page.state(), head));
  };
  let chips = [];
  const row = make("div", { class: "chips" });
  const all = button("all", () => page.set({ heads: [...chips.keys()] }));
  const none = button("none", () => page.set({ heads: [] }));
  const draw = (state) => {
    const count = page.manifest.attentions[state.layer].heads;
    if (chips.length !== count) row.replaceChildren(...(chips = Array.from({ length: count }, (_, head) => makeChip(head, press, solo))));
    chips.forEach((chip, head) => drawChip(chip, head, state, page.theme()));
  };
  const name = make("span", { class: "name" }, "Heads");
  return { element: make("div", { class: "field chips", role: "group", "aria-label": "heads" }, name, row, all, none), draw };
}

function makeChip(head, press, solo) {
  const title = `head ${head}: click to select or toggle, double-click to show it alone`;
  const chip = button(String(head), (event) => press(head, event), { class: "chip", title, ondblclick: () => solo(head) });
  chip.append(make("i"));
  return chip;
}

function drawChip(chip, head, state, theme) {
  setAttribute(chip, "aria-pressed", state.heads.includes(head));
  setAttribute(chip, "aria-current", head === state.head);
  const colour = headColour(head, theme);
  chip.style.setProperty("--hue", colour);
  const dash = headDash(head, state.heads);
  let end = 0;
  const stops = dash.map((length, part) => `${part % 2 ? "transparent" : colour} ${end}px ${(end += length)}px`);
  chip.lastChild.style.background = dash.length ? `repeating-linear-gradient(90deg, ${stops.join(", ")})` : colour;
}
