// app.js: assembles the page. It owns the state, passes it to the views, and redraws everything when it changes.
import { make, setAttribute } from "./dom.js";
import { inlineSource, Problem } from "./data.js";
import { Attention, blocksOf, hasNumbers } from "./attention.js";
import { createStore, firstState, fromHash, NO_TOKEN, toHash, tokensOf } from "./state.js";
import { headChips, layerStepper, pairFilter, sideSwitch, viewSwitch } from "./controls.js";
import { Legend, Readout } from "./readout.js";
import { makeHeader } from "./header.js";
import { makePrecomputer } from "./idle.js";
import { connectToHost } from "./host.js";
import { listen } from "./keyboard.js";
import { filterTokens } from "./tokens.js";
import { headsView } from "./heads.js";
import { matrixView } from "./matrix.js";
import { gridView } from "./grid.js";
import { neuronView } from "./neuron.js";
import { lensView } from "./lens.js";
import { tensorView } from "./tensor.js";
import { diffView } from "./diff.js";

/**
 * Each view is a module that exports one of these; add a new one to VIEWS here and in view/data.py.
 * @typedef {{name: string, label: string, key: string, create: (page: Page) => View, available?: (manifest: any) => boolean}} ViewModule
 *
 * @typedef {object} View
 * @property {HTMLElement} element shown while the view is chosen
 * @property {import("./controls.js").Control[]} controls the view's own part of the toolbar
 * @property {() => void} draw draws page.state(); called at most once per frame, with its blocks loaded
 * @property {() => string[]} legend what was drawn and what was left out; called after drawing
 * @property {(right: number, down: number) => void} move handles an arrow key
 * @property {() => string[]} [requiredBlocks] the blocks that it draws; by default those of the chosen attention
 * @property {string[]} [sharedControls] which of SHARED_CONTROLS it uses; by default all
 * @property {() => {words: (Node|string)[], value?: string, note?: string}} [readout] by default a weight of the chosen attention
 * @property {() => string|(Node|string)[]} [provenance] what the numbers are and their error; by default of the chosen attention
 * @property {() => void} [clearHover] called when the view is hidden, which sends no pointer event: clears the selection unless it is pinned
 *
 * @typedef {object} Page the interface for views
 * @property {import("./data.js").Manifest} manifest
 * @property {import("./data.js").Source} source
 * @property {() => {query: import("./data.js").Token[], key: import("./data.js").Token[]}} tokens of the chosen attention: its queries and its keys
 * @property {() => {query: number[], key: number[]}} shown the tokens that pass the pair filter
 * @property {() => import("./state.js").State} state
 * @property {(patch: Partial<import("./state.js").State> & Record<string, any>) => void} set
 * @property {() => void} settle draws pending changes now
 * @property {() => import("./data.js").Entry} entry the chosen attention's entry in the manifest
 * @property {() => Attention} attention the numbers of the chosen attention, whose blocks must be loaded
 * @property {() => string[]} blocks the blocks that it is computed from
 * @property {(act: () => void) => void} whenDrawn acts once all pending changes are drawn: now, or after their blocks are loaded
 * @property {() => boolean} ready whether the blocks of the chosen attention are loaded
 * @property {() => import("./colour.js").Theme} theme
 * @property {() => View} view the chosen view
 * @property {ViewModule[]} views all views of this page
 */
const VIEWS = [headsView, matrixView, gridView, neuronView, lensView, tensorView, diffView];

/** The controls that views share, in toolbar order. */
const SHARED_CONTROLS = { side: sideSwitch, layer: layerStepper, pair: pairFilter, heads: headChips };

/** The number of attentions whose computed results are cached. */
const MAX_CACHED = 6;

/**
 * Fills `root` with the page. Any problem with the data is shown as a message, never as a blank page.
 * @param {HTMLElement} root
 * @param {(root: HTMLElement) => import("./data.js").Source} [sourceOf] by default reads the data inside `root`
 */
export function mount(root, sourceOf = inlineSource) {
  for (const drawn of root.querySelectorAll(":scope > :not(script, noscript)")) drawn.remove(); // left by a browser's save
  for (const name in root.dataset) delete root.dataset[name];
  try {
    start(root, sourceOf(root));
  } catch (error) {
    root.append(errorMessage(error));
  }
}

function start(root, source) {
  const { manifest } = source;
  const views = VIEWS.filter((view) => view.available?.(manifest) ?? true);
  const store = createStore(startState(manifest, views), manifest, () => draw());
  const page = makePage(root, source, store, views);
  const waitingActions = [];
  let busy = false;
  let address = location.hash; // last read or written
  page.whenDrawn = (act) => {
    waitingActions.push(act);
    runWaitingActions();
  };
  const [readout, legend, precompute] = [new Readout(page), new Legend(page), makePrecomputer()];
  const sharedControls = Object.entries(SHARED_CONTROLS).map(([name, create]) => ({ name, ...create(page) }));
  const viewControl = viewSwitch(page);
  const ownControls = make("div", { class: "own" });
  const stage = make("section", { class: "stage" });
  root.append(makeHeader(root, page, () => setTheme(page.theme() === "dark" ? "light" : "dark")),
    makeToolbar([viewControl, ...sharedControls], ownControls), readout.element, stage, legend.element);

  let shown; // the view whose controls are shown

  /**
   * If drawing hid `focused`, the element with the focus, moves the focus into the view, or else to the view switch, without choosing a token.
   * Text fields are skipped: they would take the next shortcut as input.
   */
  function keepFocus(focused) {
    const isVisible = (part) => part.checkVisibility();
    if (!focused || isVisible(focused)) return;
    root.addEventListener("focusin", (event) => event.stopPropagation(), { capture: true, once: true });
    [...stage.querySelectorAll("[tabindex='0']"), ...root.querySelectorAll("[aria-pressed='true']")].find(isVisible)?.focus({ preventScroll: true });
  }

  function draw() {
    const focused = root.contains(document.activeElement) && document.activeElement;
    try {
      const view = page.view();
      if (shown !== view) shown?.clearHover?.();
      shown = view;
      drawControls(view);
      const missing = (view.requiredBlocks?.() ?? page.blocks()).filter((name) => !source.has(name));
      setBusy(missing.length > 0);
      if (missing.length) return void source.load(missing).then(draw, fail);
      if (stage.firstChild !== view.element) stage.replaceChildren(view.element);
      view.draw();
      setPrintSize(stage);
      readout.draw();
      legend.draw(view.legend());
      if (page.ready()) precompute(page.attention(), store.get().heads);
    } catch (error) {
      fail(error);
    } finally {
      keepFocus(focused);
    }
    // The hashchange event comes after the address has changed: until it is handled, the new address is not overwritten.
    if (address === location.hash) {
      updateAddress(store.get(), manifest);
      address = location.hash;
    }
    if (waitingActions.length) {
      runWaitingActions();
      store.settle(); // draws what the actions have set
    }
  }

  function setBusy(now) {
    busy = now;
    setAttribute(stage, "aria-busy", now);
  }

  function runWaitingActions() {
    while (waitingActions.length && !busy) {
      store.settle(); // pending changes may first have to load blocks
      if (!busy) waitingActions.shift()?.();
    }
  }

  function drawControls(view) {
    const state = store.get();
    viewControl.draw(state);
    for (const control of sharedControls) {
      control.draw(state);
      setAttribute(control.element, "data-unused", Boolean(view.sharedControls) && !view.sharedControls.includes(control.name));
    }
    for (const control of view.controls) control.draw?.(state);
    const elements = view.controls.map(({ element }) => element);
    if (ownControls.firstChild !== elements[0]) ownControls.replaceChildren(...elements);
  }

  function fail(error) {
    setBusy(false);
    readout.clear();
    legend.clear();
    shown?.resetControls?.();
    stage.replaceChildren(errorMessage(error));
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    draw();
  }

  setTheme(manifest.show.theme ?? preferredTheme());
  listen(root, page);
  connectToHost(root, (theme) => {
    if (!manifest.show.theme && root.dataset.theme !== theme) setTheme(theme);
  });
  function readAddress() {
    address = location.hash;
    store.set({ ...NO_TOKEN, ...hashState(manifest, views, store.get().layer) });
  }

  listenToWindow(stage, readAddress, draw, root, setTheme);
}

/** Passes the size for which the stage was drawn to the style sheet: in print it is the same, only smaller. */
function setPrintSize(stage) {
  stage.style.setProperty("--wide", stage.clientWidth);
  stage.style.setProperty("--high", window.innerHeight);
}

/** Two rows: what is shown, and with which heads. */
function makeToolbar(controls, ownControls) {
  const elements = controls.map((control) => control.element);
  const rows = [make("div", {}, ...elements.slice(0, -1)), make("div", {}, ...elements.slice(-1), ownControls)];
  return make("nav", { class: "toolbar", "aria-label": "view options" }, ...rows);
}

/** @returns {Page} */
function makePage(root, source, store, views) {
  const { manifest } = source;
  const made = new Map();
  const cache = new Map();
  const entry = () => manifest.attentions[store.get().layer];
  const page = {
    manifest, source, views, entry, state: store.get, set: store.set, settle: store.settle,
    theme: () => root.dataset.theme,
    tokens: () => tokensOf(entry(), manifest),
    shown: () => filterTokens(page.tokens(), store.get().pair),
    blocks: () => blocksOf(entry()),
    ready: () => hasNumbers(entry()) && page.blocks().every(source.has),
    attention: () => cached(cache, store.get().layer, () => new Attention(source, entry())),
    view() {
      const module = views.find((view) => view.name === store.get().view) ?? views[0];
      if (!made.has(module)) made.set(module, module.create(page));
      return made.get(module);
    },
  };
  return page;
}

/** Returns an entry of a cache, creating it if necessary; the least recently used one is evicted. */
function cached(cache, index, create) {
  const value = cache.get(index) ?? create();
  cache.delete(index);
  cache.set(index, value);
  if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
  return value;
}

function startState(manifest, views) {
  const first = firstState(manifest);
  return { ...first, ...hashState(manifest, views, first.layer) };
}

function hashState(manifest, views, layer) {
  return fromHash(location.hash, manifest, views.map((view) => view.name), layer);
}

/** Keeps the state in the address, unless several views share the page, or a frame may not change its address. */
function updateAddress(state, manifest) {
  const hash = toHash(state, manifest);
  if (hash === location.hash || document.querySelectorAll(".pellucid").length > 1) return;
  try {
    history.replaceState(null, "", hash);
  } catch {
    // the page works without an address of its own
  }
}

function listenToWindow(stage, readAddress, draw, root, setTheme) {
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(stage);
  window.addEventListener("hashchange", readAddress);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => "host" in root.dataset || setTheme(preferredTheme()));
  let screenTheme; // the theme to restore after printing, which is always light
  window.addEventListener("beforeprint", () => {
    screenTheme = root.dataset.theme;
    root.dataset.printing = ""; // lists expand
    setTheme("light");
  });
  window.addEventListener("afterprint", () => {
    delete root.dataset.printing;
    setTheme(screenTheme);
  });
}

function preferredTheme() {
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** The message for an error, as an element. */
function errorMessage(error) {
  const text = error instanceof Problem ? error.message : `This page could not be drawn: ${error.message}.`;
  return make("p", { class: "problem", role: "alert" }, text);
}
