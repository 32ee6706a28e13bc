// rove.js: a group of buttons is one stop of the Tab key; the arrows go from button to button.

const GROUPS = ".toolbar [role='group'], [data-rove]";

/** A list (data-rove) is walked up and down, a row left and right. */
const STEPS = { row: { ArrowLeft: -1, ArrowRight: 1 }, list: { ArrowUp: -1, ArrowDown: 1 } };

/** @param {Element} root */
export function roveGroups(root) {
  const tidyAll = () => root.querySelectorAll(GROUPS).forEach((group) => tidy(group));
  tidyAll();
  new MutationObserver(tidyAll).observe(root.querySelector(".toolbar"),
    { subtree: true, childList: true, attributeFilter: ["aria-pressed", "aria-current", "disabled", "hidden"] });
  root.addEventListener("focusin", (event) => {
    const group = event.target.closest(GROUPS);
    if (group) tidy(group, event.target);
  });
  root.addEventListener("keydown", (event) => {
    const group = event.target.matches("button") && event.target.closest(GROUPS);
    const by = group && STEPS[group.matches("[data-rove]") ? "list" : "row"][event.key];
    if (!by) return;
    const all = buttons(group);
    all[(all.indexOf(event.target) + by + all.length) % all.length].focus();
    event.preventDefault();
  });
}

function buttons(group) {
  return [...group.querySelectorAll("button:enabled")].filter((button) => !button.hidden);
}

/** One button of the group can be reached: the one in hand, or else the chosen one, or else the first. */
function tidy(group, now = group.querySelector("button:focus")) {
  const all = buttons(group);
  const stop = now ?? all.find((button) => button.matches("[aria-current='true'], [aria-pressed='true']")) ?? all[0];
  for (const button of all) if (button.tabIndex !== (button === stop ? 0 : -1)) button.tabIndex = button === stop ? 0 : -1;
}
