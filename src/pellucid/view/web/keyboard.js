// keyboard.js: keyboard control of the whole page. Tab moves between regions, the arrows inside one.
import { toClipboard } from "./clipboard.js";
import { isDialogOpen, openHelp } from "./dialogs.js";
import { rovingTabindex } from "./rovingtabindex.js";
import { openSearch } from "./search.js";
import { shortcutsOf } from "./shortcuts.js";
import { groupOf, hasGivenWeights } from "./state.js";
import { openTable } from "./table.js";

/**
 * Listens for keys pressed inside this view, or anywhere if it is the only one on its page.
 * @param {Element} root
 * @param {import("./app.js").Page} page
 */
export function listen(root, page) {
  const alone = document.querySelectorAll(".pellucid").length === 1;
  const table = shortcutsOf(page.views);
  const tools = {
    page, openTable: () => openTable(root, page), openHelp: () => openHelp(root, page.views),
    openSearch: () => openSearch(root, page), copyPython: () => copyPython(root, page),
  };
  rovingTabindex(root);
  document.addEventListener("keydown", (event) => {
    if (isDialogOpen(root)) return;
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (!root.contains(target) && !(alone && target === document.body)) return;
    if (target.matches("input, select, textarea") && event.key !== "Escape") return;
    if (event.key === " " && target.matches("button")) return;
    const found = table.find(({ keys }) => keys.includes(event.key));
    if (!found) return;
    page.whenDrawn(() => isDialogOpen(root) || found.act(tools, event.key));
    event.preventDefault();
  });
}

/** Copies a Python expression for the number in the readout to the clipboard. */
async function copyPython(root, page) {
  const view = page.view();
  const text = view.python ? view.python() : weightPython(page, root.querySelector(".readout-value").dataset);
  const note = root.querySelector(".readout-note");
  if (!text) note.textContent = "there is nothing here to copy as Python";
  else if (await toClipboard(text, root)) note.textContent = `copied: ${text}`;
}

function weightPython(page, { head, query, key }) {
  const entry = page.entry();
  const list = [groupOf(entry), "attention"].filter(Boolean).join("_"); // the argument of `view`
  const layer = hasGivenWeights(page.manifest) ? `${list}[${entry.layer}]` : `trace["${entry.name}.weights"]`;
  return key === undefined ? "" : `${layer}[0, ${head}, ${query}, ${key}]`;
}
