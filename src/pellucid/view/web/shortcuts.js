// shortcuts.js: the table of keyboard shortcuts, from which keyboard.js acts and the help is generated, so that both agree.
import { stepLayer } from "./controls.js";
import { chooseHead, NO_TOKEN } from "./state.js";

const ARROWS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/**
 * @typedef {object} Tools the interface for shortcuts
 * @property {import("./app.js").Page} page
 * @property {() => void} openTable
 * @property {() => void} openHelp
 * @property {() => void} openSearch
 * @property {() => void} copyPython
 *
 * @typedef {object} Shortcut
 * @property {string[]} keys as the browser names them
 * @property {string} shown as the help displays them
 * @property {string} means
 * @property {(tools: Tools, key: string) => void} act
 */

/**
 * @param {import("./app.js").ViewModule[]} views the views of this page
 * @returns {Shortcut[]}
 */
export function shortcutsOf(views) {
  const [first, last] = [views[0], views.at(-1)];
  const names = views.length > 1 ? `the views: ${views.slice(0, -1).map(({ label }) => label).join(", ")} and ${last.label}` : `the view ${first.label}`;
  return [
    { keys: Object.keys(ARROWS), shown: "↑ ↓ ← →", means: "move to another token or cell", act: ({ page }, key) => page.view().move(...ARROWS[key]) },
    { keys: [" "], shown: "Space", means: "pin the token or cell, to read it against others", act: ({ page }) => pin(page) },
    { keys: ["[", "]"], shown: "[ ]", means: "previous layer, next layer", act: ({ page }, key) => layer(page, key === "[" ? -1 : 1) },
    { keys: [",", "."], shown: ", .", means: "previous head, next head", act: ({ page }, key) => head(page, key === "," ? -1 : 1) },
    { keys: ["s"], shown: "s", means: "show this head alone", act: ({ page }) => page.set({ heads: [page.state().head] }) },
    { keys: views.map(({ key }) => key), shown: views.map(({ key }) => key).join(" "), means: names,
      act: ({ page }, key) => page.set({ view: views.find((view) => view.key === key).name }) },
    { keys: ["/"], shown: "/", means: "search for a token, or for a tensor by name", act: ({ openSearch }) => openSearch() },
    { keys: ["t"], shown: "t", means: "show the numbers as a table", act: ({ openTable }) => openTable() },
    { keys: ["c"], shown: "c", means: "copy the selected number as Python", act: ({ copyPython }) => copyPython() },
    { keys: ["?"], shown: "?", means: "show this help", act: ({ openHelp }) => openHelp() },
    { keys: ["Escape"], shown: "Esc", means: "close, or clear the selection", act: ({ page }) => clearSelection(page) },
  ];
}

function pin(page) {
  const state = page.state();
  const view = page.view();
  if (view.pin) view.pin();
  else if (state[state.side] !== null) page.set({ pinned: !state.pinned });
}

function clearSelection(page) {
  page.set(NO_TOKEN);
  page.view().clearSelection?.();
}

function layer(page, by) {
  const view = page.view();
  if (view.stepLayer) view.stepLayer(by);
  else stepLayer(page, by);
}

function head(page, by) {
  const view = page.view();
  if (view.stepHead) return view.stepHead(by);
  const { layer: index, head: now } = page.state();
  const count = page.manifest.attentions[index].heads;
  return page.set(chooseHead(page.state(), (now + by + count) % count));
}
