// keys.js: the whole page by keyboard. Tab goes from region to region, the arrows go on inside one.
import { toClipboard } from "./copy.js";
import { covered, openHelp } from "./dialogs.js";
import { roveGroups } from "./rove.js";
import { openSearch } from "./search.js";
import { shortcutsOf } from "./shortcuts.js";
import { groupOf, wereGiven } from "./state.js";
import { openTable } from "./table.js";

/**
 * Listens for keys that are meant for this view: pressed inside it, or anywhere when it is alone on its page.
 * @param {Element} root
 * @param {import("./app.js").Page} page
 * @param {import("./app.js").ViewModule[]} views
 */
export function listen(root, page, views) {
  const alone = document.querySelectorAll(".pellucid").length === 1;
  const table = shortcutsOf(views);
  const tools = {
    page, openTable: () => openTable(root, page), openHelp: () => openHelp(root, views),
    openSearch: () => openSearch(root, page), copyPython: () => copyPython(root, page),
  };
  roveGroups(root);
  document.addEventListener("keydown", (event) => {
    if (covered(root)) return;
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (!root.contains(target) && !(alone && target === document.body)) return;
    if (target.matches("input, select, textarea") && event.key !== "Escape") return;
    if (event.key === " " && target.matches("button")) return;
    const found = table.find(({ keys }) => keys.includes(event.key));
    if (!found) return;
    page.whenDrawn(() => covered(root) || found.act(tools, event.key));
    event.preventDefault();
  });
}

/** The number that the readout says, as an expression that gives it, on the clipboard. */
async function copyPython(root, page) {
  const view = page.view();
  const text = view.python ? view.python() : weightPython(page, root.querySelector(".readout-value").dataset);
  const note = root.querySelector(".readout-note");
  if (!text) note.textContent = "there is nothing here to copy as Python";
  else if (await toClipboard(text, root)) note.textContent = `copied: ${text}`;
}

function weightPython(page, { head, query, key }) {
  const entry = page.entry();
  const list = [groupOf(entry), "attention"].filter(Boolean).join("_"); // as `view` takes what is given
  const layer = wereGiven(page.manifest) ? `${list}[${entry.layer}]` : `trace["${entry.name}.weights"]`;
  return key === undefined ? "" : `${layer}[0, ${head}, ${query}, ${key}]`;
}
