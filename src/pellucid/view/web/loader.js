// loader.js: runs first. It inflates the program and its style sheet and adds them to the page, whose content security
// policy allows both by their hashes. A browser may save the page in its current state and open it again: so it leaves no
// script element behind, and replaces an existing style.
(async () => {
  const packed = atob(document.querySelector("script.pellucid-program").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const [style, script] = (await new Response(stream).text()).split("\0");
  document.querySelector("style")?.remove();
  for (const [kind, text] of [["style", style], ["script", script]]) {
    const element = Object.assign(document.createElement(kind), { textContent: text });
    document.head.append(element);
    if (kind === "script") element.remove();
  }
})().catch(() => {
  const words = "This page cannot unpack its program: it is damaged, or the browser is older than 2023.";
  document.querySelector(".pellucid").append(Object.assign(document.createElement("p"), { role: "alert", textContent: words }));
});
