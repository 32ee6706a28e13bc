// dialogs.js: dialogs over the page, and the help.
import { button, make } from "./dom.js";
import { shortcutsOf } from "./shortcuts.js";

/**
 * Opens a dialog, which removes itself when closed; it replaces one that is open.
 * @param {Element} root
 * @param {string} name
 * @param {...Node} content
 * @returns {HTMLDialogElement}
 */
export function openDialog(root, name, ...content) {
  const dialog = make("dialog", { class: `sheet-${name}`, tabindex: -1, "aria-label": name, onclose: () => dialog.remove(),
    onclick: (event) => event.target === dialog && dialog.close() },
    button("✕", () => dialog.close(), { class: "plain close", "aria-label": "close" }), ...content);
  root.querySelector("dialog[open]")?.close();
  root.append(dialog);
  dialog.showModal();
  dialog.focus();
  return dialog;
}

/**
 * Whether a dialog is open. Keys are then not meant for what is below it.
 * @param {ParentNode} root
 */
export function isDialogOpen(root) {
  return root.querySelector("dialog[open]") !== null;
}

/**
 * @param {Element} root
 * @param {import("./app.js").ViewModule[]} views the views of this page
 */
export function openHelp(root, views) {
  const line = ({ shown, means }) => [make("dt", {}, ...shown.split(" ").map((key) => make("kbd", {}, key))), make("dd", {}, means)];
  openDialog(root, "help", make("h2", {}, "How to read this page"),
    make("p", {}, "In every layer, each head lets each token attend to the others, with weights that add up to 1."
      + " A line, or a cell of the matrix, is one such weight."),
    make("p", {}, "Point at a token to see only its lines. Click to pin it, then point at a token on the other side to read the"
      + " weight between them. Click a head to switch it on or off; double-click it to show it alone."),
    make("dl", {}, ...shortcutsOf(views).flatMap(line)),
    make("p", { class: "quiet" }, "Tab moves from group to group; the left and right arrows move within a group of buttons."
      + " A weight shows what a head attended to, not why the model gave its answer."));
}
