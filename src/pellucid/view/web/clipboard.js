// clipboard.js: copies text to the clipboard. Where a browser or a frame forbids it, the text is shown in a field, to be copied by hand.
import { button, make } from "./dom.js";

/** How long a button confirms a copy, in milliseconds. */
const CONFIRMED = 1600;

/**
 * A button that copies the result of `text` when pressed.
 * @param {string} label
 * @param {() => string} text
 * @param {Record<string, any>} [attributes]
 */
export function copyButton(label, text, attributes = {}) {
  const element = button(label, async () => {
    const done = await toClipboard(text(), element.parentElement);
    element.textContent = done ? "copied" : "copy it from the field";
    setTimeout(() => (element.textContent = label), CONFIRMED);
  }, attributes);
  return element;
}

/**
 * @param {string} text
 * @param {Element} beside the parent of the field if the clipboard is not available
 * @returns {Promise<boolean>} whether it was copied
 */
export async function toClipboard(text, beside) {
  beside.querySelector("textarea.copy")?.remove();
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyFromField(text, beside); // no permission, or not a secure context
  }
}

function copyFromField(text, beside) {
  const field = make("textarea", { class: "copy", readonly: true, rows: 4, "aria-label": "text to copy with Ctrl+C" });
  field.value = text;
  beside.append(field);
  const before = document.activeElement;
  field.select();
  const done = document.execCommand?.("copy") ?? false;
  if (done) {
    field.remove();
    before?.focus?.({ preventScroll: true });
  }
  return done;
}

/** Lines of comma-separated values; values with a comma, a quote or a line end are quoted (RFC 4180). */
export function csv(lines) {
  const cell = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return lines.map((line) => line.map((value) => cell(String(value))).join(",")).join("\r\n") + "\r\n";
}
