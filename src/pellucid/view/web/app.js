// app.js: puts the page together. It owns the state, hands it to the views, and draws everything again when it changes.
import { make } from "./dom.js";
import { inlineSource, Problem } from "./data.js";
import { Attention } from "./attention.js";
import { createStore, firstState, fromHash, NO_TOKEN, toHash } from "./state.js";
import { headChips, layerStepper, pairFilter, viewSwitch } from "./controls.js";
import { Legend, Readout } from "./readout.js";
import { makeHeader } from "./header.js";
import { makeWarmer } from "./idle.js";
import { listen } from "./keys.js";
import { headsView } from "./heads.js";
import { matrixView } from "./matrix.js";

/**
 * A view is one module that exports one of these; a new one is added to VIEWS and nowhere else.
 * @typedef {{name: string, label: string, key: string, create: (page: Page) => View}} ViewModule
 *
 * @typedef {object} View
 * @property {HTMLElement} element shown while the view is chosen
 * @property {HTMLElement[]} controls its own part of the toolbar
 * @property {() => void} draw follows page.state(); called at most once per frame
 * @property {() => string[]} legend what is drawn and what is left out, after drawing
 * @property {(right: number, down: number) => void} move an arrow key
 *
 * @typedef {object} Page what a view may use
 * @property {import("./data.js").Manifest} manifest
 * @property {import("./data.js").Token[]} tokens
 * @property {() => import("./state.js").State} state
 * @property {(patch: Partial<import("./state.js").State>) => void} set
 * @property {() => void} settle draws what was set, now
 * @property {() => Attention} attention the numbers of the chosen layer
 * @property {() => number} layerName the layer's number in the model
 * @property {() => import("./colour.js").Theme} theme
 * @property {() => View} view the chosen view
 */
const VIEWS = [headsView, matrixView];

/**
 * Fills `root` with the page. Whatever is wrong with the data becomes a sentence, never a blank.
 * @param {HTMLElement} root
 * @param {import("./data.js").Source} [source] by default what stands inside `root`
 */
export function mount(root, source) {
  try {
    start(root, source ?? inlineSource(root));
  } catch (error) {
    root.append(sentence(error));
  }
}

function start(root, source) {
  const store = createStore(startState(source.manifest), () => draw());
  const page = makePage(root, source, store);
  const readout = new Readout(page);
  const legend = new Legend(page);
  const controls = [viewSwitch(page, VIEWS), layerStepper(page), pairFilter(page), headChips(page)];
  const warm = makeWarmer();
  const own = make("div", { class: "own" });
  const stage = make("section", { class: "stage" });
  root.append(makeHeader(root, page, () => switchTheme(root, draw)),
    makeToolbar(controls, own), readout.element, stage, legend.element);

  function draw() {
    const state = store.get();
    controls.forEach((control) => control.draw(state));
    try {
      const view = page.view();
      if (stage.firstChild !== view.element) stage.replaceChildren(view.element);
      if (own.firstChild !== view.controls[0]) own.replaceChildren(...view.controls);
      view.draw();
      readout.draw();
      legend.draw(view.legend());
      warm(page.attention(), state.heads);
    } catch (error) {
      stage.replaceChildren(sentence(error));
    }
    keepAddress(state, source.manifest);
  }

  setTheme(root, preferredTheme());
  draw();
  listen(root, page, VIEWS);
  followWindow(root, stage, store, source.manifest, draw);
}

/** Two rows: what is looked at, and with which heads. */
function makeToolbar(controls, own) {
  const elements = controls.map((control) => control.element);
  const rows = [make("div", {}, ...elements.slice(0, -1)), make("div", {}, ...elements.slice(-1), own)];
  return make("nav", { class: "toolbar", "aria-label": "what is shown" }, ...rows);
}

/** @returns {Page} */
function makePage(root, source, store) {
  const views = new Map();
  let attention = null;
  const page = {
    manifest: source.manifest, tokens: source.manifest.tokens, state: store.get, set: store.set, settle: store.settle,
    theme: () => root.dataset.theme,
    layerName: () => source.manifest.attentions[store.get().layer].layer,
    attention() {
      const entry = source.manifest.attentions[store.get().layer];
      if (attention?.entry !== entry) attention = new Attention(source, entry);
      return attention;
    },
    view() {
      const module = VIEWS.find((view) => view.name === store.get().view) ?? VIEWS[0];
      if (!views.has(module)) views.set(module, module.create(page));
      return views.get(module);
    },
  };
  return page;
}

function startState(manifest) {
  return { ...firstState(manifest), ...hashState(manifest) };
}

function hashState(manifest) {
  return fromHash(location.hash, manifest, VIEWS.map((view) => view.name));
}

/** A page inside another page may not own its address; then the state is simply not kept. */
function keepAddress(state, manifest) {
  const hash = toHash(state, manifest);
  if (hash === location.hash || document.querySelectorAll(".pellucid").length > 1) return;
  try {
    history.replaceState(null, "", hash);
  } catch {
    // an address that cannot be written is not needed to read the page
  }
}

function followWindow(root, stage, store, manifest, draw) {
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(stage);
  window.addEventListener("hashchange", () => store.set({ ...NO_TOKEN, ...hashState(manifest) }));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    setTheme(root, preferredTheme());
    draw();
  });
}

function preferredTheme() {
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function setTheme(root, theme) {
  root.dataset.theme = theme;
}

function switchTheme(root, draw) {
  setTheme(root, root.dataset.theme === "dark" ? "light" : "dark");
  draw();
}

/** A fault, told plainly. */
function sentence(error) {
  const text = error instanceof Problem ? error.message : `This page could not be drawn: ${error.message}.`;
  return make("p", { class: "problem", role: "alert" }, text);
}
