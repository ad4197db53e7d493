(() => {
  "use strict";
  const copyBySelection = (source) => {
    const range = document.createRange();
    range.selectNodeContents(source);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
    return document.execCommand("copy");
  };
  for (const button of document.querySelectorAll("button[data-copy]")) {
    const source = document.getElementById(button.dataset.copy);
    if (!source) continue;
    button.hidden = false;
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      let done = false;
      try {
        await navigator.clipboard.writeText(source.textContent);
        done = true;
      } catch {
        done = copyBySelection(source);
      }
      button.textContent = done ? "Copied" : "Selected";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
  });
})();
