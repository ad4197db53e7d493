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
  const claims = [...document.querySelectorAll(".claim")];
  const form = document.querySelector(".filter");
  const filter = () => {
    const { text, ...wanted } = Object.fromEntries(new FormData(form));
    const words = text.toLowerCase().split(/\s+/);
    for (const claim of claims) {
      const fits = Object.entries(wanted).every(([key, value]) => !value || claim.dataset[key] === value);
      claim.hidden = !(fits && words.every((word) => claim.dataset.text.includes(word)));
    }
    for (const group of document.querySelectorAll(".group")) {
      group.hidden = !group.querySelector(".claim:not([hidden])");
    }
    form.querySelector("output").textContent = `${claims.filter((c) => !c.hidden).length} of ${claims.length}`;
  };
  const arrive = () => {
    const claim = claims.find((each) => `#${each.id}` === location.hash);
    if (!claim) return;
    if (claim.hidden) form.reset();
    claim.open = true;
    claim.scrollIntoView();
  };
  if (form) {
    form.hidden = false;
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(filter));
    form.querySelector("[data-open]").addEventListener("click", () => {
      const shown = claims.filter((claim) => !claim.hidden);
      const open = shown.some((claim) => !claim.open);
      for (const claim of shown) claim.open = open;
    });
    for (const count of document.querySelectorAll(".counts a")) {
      count.addEventListener("click", (event) => {
        event.preventDefault();
        form.reset();
        form.elements.verdict.value = count.dataset.verdict;
        setTimeout(() => { filter(); form.scrollIntoView(); form.elements.verdict.focus(); });
      });
    }
    filter();
    addEventListener("hashchange", arrive);
    arrive();
  }
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
  });
})();
