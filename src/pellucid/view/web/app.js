// app.js: puts the page together. It owns the state, hands it to the views, and draws everything again when it changes.
import { make, mark } from "./dom.js";
import { inlineSource, Problem } from "./data.js";
import { Attention, blocksOf, hasNumbers } from "./attention.js";
import { createStore, firstState, fromHash, NO_TOKEN, toHash, tokensOf } from "./state.js";
import { headChips, layerStepper, pairFilter, sideSwitch, viewSwitch } from "./controls.js";
import { Legend, Readout } from "./readout.js";
import { makeHeader } from "./header.js";
import { makeWarmer } from "./idle.js";
import { answerHost } from "./host.js";
import { listen } from "./keys.js";
import { chosenTokens } from "./tokens.js";
import { headsView } from "./heads.js";
import { matrixView } from "./matrix.js";
import { gridView } from "./grid.js";
import { neuronView } from "./neuron.js";
import { lensView } from "./lens.js";
import { tensorView } from "./tensor.js";
import { diffView } from "./diff.js";

/**
 * A view is one module that exports one of these; a new one is added to VIEWS here and in view/data.py.
 * @typedef {{name: string, label: string, key: string, create: (page: Page) => View, available?: (manifest: any) => boolean}} ViewModule
 *
 * @typedef {object} View
 * @property {HTMLElement} element shown while the view is chosen
 * @property {import("./controls.js").Control[]} controls its own part of the toolbar
 * @property {() => void} draw follows page.state(); called at most once per frame, when its blocks are loaded
 * @property {() => string[]} legend what is drawn and what is left out, after drawing
 * @property {(right: number, down: number) => void} move an arrow key
 * @property {() => string[]} [needs] the blocks that it draws from; by default those of the chosen attention
 * @property {string[]} [common] which of COMMON it uses; by default all
 * @property {() => {words: (Node|string)[], value?: string, note?: string}} [readout] by default a weight of the chosen attention
 * @property {() => string|(Node|string)[]} [truth] what the numbers are and how exact; by default about the chosen attention
 * @property {() => void} [exit] it goes from the stage, of which no pointer tells it: what is not pinned is let go
 *
 * @typedef {object} Page what a view may use
 * @property {import("./data.js").Manifest} manifest
 * @property {import("./data.js").Source} source
 * @property {() => {query: import("./data.js").Token[], key: import("./data.js").Token[]}} tokens of the chosen attention: those that look, and those that are looked at
 * @property {() => {query: number[], key: number[]}} shown the tokens that the pair filter leaves
 * @property {() => import("./state.js").State} state
 * @property {(patch: Partial<import("./state.js").State> & Record<string, any>) => void} set
 * @property {() => void} settle draws what was set, now
 * @property {() => import("./data.js").Entry} entry the chosen attention, as the manifest has it
 * @property {() => Attention} attention its numbers
 * @property {(place: number) => Attention} attentionAt those of any attention; its blocks must be loaded
 * @property {(place: number) => string[]} blocksOf the blocks that it is computed from
 * @property {(act: () => void) => void} whenDrawn acts when all that was set is drawn: now, or once its blocks are loaded
 * @property {() => boolean} ready are the blocks of the chosen attention loaded?
 * @property {() => number} layerName the layer's number in the model
 * @property {() => import("./colour.js").Theme} theme
 * @property {() => View} view the chosen view
 * @property {ViewModule[]} views all views of this page
 */
const VIEWS = [headsView, matrixView, gridView, neuronView, lensView, tensorView, diffView];

/** The controls that views share, in the order of the toolbar. */
const COMMON = { side: sideSwitch, layer: layerStepper, pair: pairFilter, heads: headChips };

/** So many attentions keep what was computed of them. */
const MOST_OPEN = 6;

/**
 * Fills `root` with the page. Whatever is wrong with the data becomes a sentence, never a blank.
 * @param {HTMLElement} root
 * @param {(root: HTMLElement) => import("./data.js").Source} [sourceOf] by default of what stands inside `root`
 */
export function mount(root, sourceOf = inlineSource) {
  for (const drawn of root.querySelectorAll(":scope > :not(script, noscript)")) drawn.remove(); // a browser had saved it
  for (const name in root.dataset) delete root.dataset[name];
  try {
    start(root, sourceOf(root));
  } catch (error) {
    root.append(sentence(error));
  }
}

function start(root, source) {
  const { manifest } = source;
  const views = VIEWS.filter((view) => view.available?.(manifest) ?? true);
  const store = createStore(startState(manifest, views), manifest, () => draw());
  const page = makePage(root, source, store, views);
  const later = [];
  let busy = false;
  let address = location.hash; // the one that was read or written last
  page.whenDrawn = (act) => {
    later.push(act);
    actNow();
  };
  const [readout, legend, warm] = [new Readout(page), new Legend(page), makeWarmer()];
  const common = Object.entries(COMMON).map(([name, create]) => ({ name, ...create(page) }));
  const choice = viewSwitch(page, views);
  const own = make("div", { class: "own" });
  const stage = make("section", { class: "stage" });
  root.append(makeHeader(root, page, () => wear(page.theme() === "dark" ? "light" : "dark")),
    makeToolbar([choice, ...common], own), readout.element, stage, legend.element);

  let shown; // the view whose controls stand there

  /**
   * Where drawing hid `held`, the keyboard goes on in the view, or else in the switch of the views; it chooses no token by that. A
   * field for text is passed by: it would take the next shortcut for a letter.
   */
  function keepInHand(held) {
    const seen = (part) => part.checkVisibility();
    if (!held || seen(held)) return;
    root.addEventListener("focusin", (event) => event.stopPropagation(), { capture: true, once: true });
    [...stage.querySelectorAll("[tabindex='0']"), ...root.querySelectorAll("[aria-pressed='true']")].find(seen)?.focus({ preventScroll: true });
  }

  function draw() {
    const held = root.contains(document.activeElement) && document.activeElement;
    try {
      const view = page.view();
      if (shown !== view) shown?.exit?.();
      shown = view;
      drawControls(view);
      const missing = (view.needs?.() ?? page.blocksOf(store.get().layer)).filter((name) => !source.has(name));
      setBusy(missing.length > 0);
      if (missing.length) return void source.load(missing).then(draw, fail);
      if (stage.firstChild !== view.element) stage.replaceChildren(view.element);
      view.draw();
      fixOnPaper(stage);
      readout.draw();
      legend.draw(view.legend());
      if (page.ready()) warm(page.attention(), store.get().heads);
    } catch (error) {
      fail(error);
    } finally {
      keepInHand(held);
    }
    // A new address is told of only after it stands there: until then it is not written over.
    if (address === location.hash) {
      keepAddress(store.get(), manifest);
      address = location.hash;
    }
    if (later.length) {
      actNow();
      store.settle(); // what was waited for is drawn with what it waited for
    }
  }

  function setBusy(now) {
    busy = now;
    mark(stage, "aria-busy", now);
  }

  function actNow() {
    while (later.length && !busy) {
      store.settle(); // of what was chosen within this frame, blocks may have to be loaded first
      if (!busy) later.shift()?.();
    }
  }

  function drawControls(view) {
    const state = store.get();
    choice.draw(state);
    for (const control of common) {
      control.draw(state);
      mark(control.element, "data-unused", Boolean(view.common) && !view.common.includes(control.name));
    }
    for (const control of view.controls) control.draw?.(state);
    const elements = view.controls.map(({ element }) => element);
    if (own.firstChild !== elements[0]) own.replaceChildren(...elements);
  }

  function fail(error) {
    setBusy(false);
    readout.clear();
    legend.clear();
    shown?.blank?.();
    stage.replaceChildren(sentence(error));
  }

  function wear(theme) {
    root.dataset.theme = theme;
    draw();
  }

  wear(manifest.show?.theme ?? preferredTheme());
  listen(root, page, views);
  answerHost(root, (theme) => {
    if (!manifest.show?.theme && root.dataset.theme !== theme) wear(theme);
  });
  function readAddress() {
    address = location.hash;
    store.set({ ...NO_TOKEN, ...hashState(manifest, views, store.get().layer) });
  }

  followWindow(stage, readAddress, draw, root, wear);
}

/** Tells the style sheet the size for which the stage was drawn: paper shows it as it is, only smaller. */
function fixOnPaper(stage) {
  stage.style.setProperty("--wide", stage.clientWidth);
  stage.style.setProperty("--high", window.innerHeight);
}

/** Two rows: what is looked at, and with which heads. */
function makeToolbar(controls, own) {
  const elements = controls.map((control) => control.element);
  const rows = [make("div", {}, ...elements.slice(0, -1)), make("div", {}, ...elements.slice(-1), own)];
  return make("nav", { class: "toolbar", "aria-label": "what is shown" }, ...rows);
}

/** @returns {Page} */
function makePage(root, source, store, views) {
  const { manifest } = source;
  const made = new Map();
  const open = new Map();
  const entry = () => manifest.attentions[store.get().layer];
  const page = {
    manifest, source, views, entry, state: store.get, set: store.set, settle: store.settle,
    theme: () => root.dataset.theme,
    layerName: () => entry().layer,
    tokens: () => tokensOf(entry(), manifest),
    shown: () => chosenTokens(page.tokens(), store.get().pair),
    blocksOf: (place) => blocksOf(manifest.attentions[place]),
    ready: () => hasNumbers(entry()) && page.blocksOf(store.get().layer).every(source.has),
    attention: () => page.attentionAt(store.get().layer),
    attentionAt: (place) => recent(open, place, () => new Attention(source, manifest.attentions[place])),
    view() {
      const module = views.find((view) => view.name === store.get().view) ?? views[0];
      if (!made.has(module)) made.set(module, module.create(page));
      return made.get(module);
    },
  };
  return page;
}

/** Takes a thing from `open` or makes it; the one that was longest not asked for makes room. */
function recent(open, place, create) {
  const thing = open.get(place) ?? create();
  open.delete(place);
  open.set(place, thing);
  if (open.size > MOST_OPEN) open.delete(open.keys().next().value);
  return thing;
}

function startState(manifest, views) {
  const first = firstState(manifest);
  return { ...first, ...hashState(manifest, views, first.layer) };
}

function hashState(manifest, views, layer) {
  return fromHash(location.hash, manifest, views.map((view) => view.name), layer);
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

function followWindow(stage, readAddress, draw, root, wear) {
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(stage);
  window.addEventListener("hashchange", readAddress);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => "host" in root.dataset || wear(preferredTheme()));
  let worn; // paper is white, and what is drawn on it must be drawn for that
  window.addEventListener("beforeprint", () => {
    worn = root.dataset.theme;
    root.dataset.printing = ""; // lists grow
    wear("light");
  });
  window.addEventListener("afterprint", () => {
    delete root.dataset.printing;
    wear(worn);
  });
}

function preferredTheme() {
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** A fault, told plainly. */
function sentence(error) {
  const text = error instanceof Problem ? error.message : `This page could not be drawn: ${error.message}.`;
  return make("p", { class: "problem", role: "alert" }, text);
}
