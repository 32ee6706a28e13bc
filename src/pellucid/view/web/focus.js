// focus.js: the keyboard stays on the page when what it stood on goes: to the part of the view that it can walk in.

/** What holds the keyboard before the page is drawn. */
export function inHand(root) {
  return root.contains(document.activeElement) ? document.activeElement : null;
}

/**
 * Where drawing hid `held`, the keyboard goes on in the view, or else in the switch of the views; it chooses no token by that. A field
 * for text is passed by: it would take the next shortcut for a letter.
 */
export function keepInHand(root, stage, held) {
  const seen = (part) => part.checkVisibility();
  if (!held || seen(held)) return;
  const unheard = (event) => event.stopPropagation();
  root.addEventListener("focusin", unheard, true);
  [...stage.querySelectorAll("[tabindex='0']"), root.querySelector("[aria-pressed='true']")].find(seen)?.focus({ preventScroll: true });
  root.removeEventListener("focusin", unheard, true);
}
