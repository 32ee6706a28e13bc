// keys.js: the whole page by keyboard.
import { stepLayer } from "./controls.js";
import { openHelp, openTable } from "./dialogs.js";
import { chooseHead, NO_TOKEN } from "./state.js";

const ARROWS = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/**
 * Listens for keys that are meant for this view: pressed inside it, or anywhere when it is alone on its page.
 * @param {Element} root
 * @param {import("./app.js").Page} page
 * @param {import("./app.js").ViewModule[]} views
 */
export function listen(root, page, views) {
  const alone = document.querySelectorAll(".pellucid").length === 1;
  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (!root.contains(target) && !(alone && target === document.body)) return;
    if (target.closest("dialog") || (target.matches("input, select") && event.key !== "Escape")) return;
    if (event.key === " " && target.matches("button")) return;
    if (act(event.key, root, page, views)) event.preventDefault();
  });
}

/** @returns {boolean} was the key used? */
function act(key, root, page, views) {
  const state = page.state();
  const view = views.find((each) => each.key === key);
  const actions = {
    "[": () => stepLayer(page, -1),
    "]": () => stepLayer(page, 1),
    ",": () => stepHead(page, -1),
    ".": () => stepHead(page, 1),
    s: () => page.set({ heads: [state.head] }),
    " ": () => state[state.side] !== null && page.set({ pinned: !state.pinned }),
    t: () => openTable(root, page),
    "?": () => openHelp(root),
    Escape: () => page.set(NO_TOKEN),
  };
  page.settle(); // two keys may come within one frame
  if (ARROWS[key]) page.view().move(...ARROWS[key]);
  else if (view) page.set({ view: view.name });
  else if (actions[key]) actions[key]();
  else return false;
  return true;
}

function stepHead(page, by) {
  const count = page.manifest.model.num_attention_heads;
  page.set(chooseHead(page.state(), (page.state().head + by + count) % count));
}
