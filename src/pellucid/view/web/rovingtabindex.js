// rovingtabindex.js: makes a group of buttons a single tab stop; the arrow keys move between its buttons (roving tabindex).

const GROUPS = ".toolbar [role='group'], [data-rove]";

/** A list (data-rove) uses the up and down keys, a row the left and right ones. */
const STEPS = { row: { ArrowLeft: -1, ArrowRight: 1 }, list: { ArrowUp: -1, ArrowDown: 1 } };

/** @param {Element} root */
export function rovingTabindex(root) {
  const updateAll = () => root.querySelectorAll(GROUPS).forEach((group) => updateTabStop(group));
  updateAll();
  new MutationObserver(updateAll).observe(root.querySelector(".toolbar"),
    { subtree: true, childList: true, attributeFilter: ["aria-pressed", "aria-current", "disabled", "hidden"] });
  root.addEventListener("focusin", (event) => {
    const group = event.target.closest(GROUPS);
    if (group) updateTabStop(group, event.target);
  });
  root.addEventListener("keydown", (event) => {
    const group = event.target.matches("button") && event.target.closest(GROUPS);
    const step = group && STEPS[group.matches("[data-rove]") ? "list" : "row"][event.key];
    if (!step) return;
    const all = buttons(group);
    all[(all.indexOf(event.target) + step + all.length) % all.length].focus();
    event.preventDefault();
  });
}

function buttons(group) {
  return [...group.querySelectorAll("button:enabled")].filter((button) => !button.hidden);
}

/** Makes one button of the group the tab stop: the focused one, or else the chosen one, or else the first. */
function updateTabStop(group, focused = group.querySelector("button:focus")) {
  const all = buttons(group);
  const stop = focused ?? all.find((button) => button.matches("[aria-current='true'], [aria-pressed='true']")) ?? all[0];
  for (const button of all) if (button.tabIndex !== (button === stop ? 0 : -1)) button.tabIndex = button === stop ? 0 : -1;
}
