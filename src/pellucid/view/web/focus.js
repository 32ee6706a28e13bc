// focus.js: the keyboard stays on the page when what it stood on goes: to the part of the view that it can walk in.

/**
 * What holds the keyboard before the page is drawn.
 * @param {Element} root
 */
export function inHand(root) {
  return root.contains(document.activeElement) ? document.activeElement : null;
}

/**
 * Where drawing took `held` away or hid it, the keyboard goes on in the view, or else in the switch of the views. It chooses no token
 * by that. A field for text is passed by: it would take the next shortcut for a letter.
 * @param {Element} root
 * @param {Element} stage
 * @param {Element|null} held
 */
export function keepInHand(root, stage, held) {
  if (!held || (held.isConnected && (held.checkVisibility?.({ visibilityProperty: true }) ?? true))) return;
  const parts = [...stage.querySelectorAll("[tabindex='0']"), ...root.querySelectorAll(".toolbar [aria-pressed='true']")];
  const unheard = (event) => event.stopPropagation();
  root.addEventListener("focusin", unheard, { capture: true });
  parts.find((part) => part.checkVisibility?.({ visibilityProperty: true }) ?? true)?.focus({ preventScroll: true });
  root.removeEventListener("focusin", unheard, { capture: true });
}
