"use strict";
/* Every page: the theme, which a reader may choose against the system's, and buttons that copy. */
(() => {
  const themes = ["system", "light", "dark"];
  const stored = () => {
    try { return localStorage.getItem("theme"); } catch { return null; }
  };
  const show = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };
  let theme = themes.includes(stored()) ? stored() : "system";
  show(theme);

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => { button.textContent = `Theme: ${theme}`; };
    button.hidden = false;
    name();
    button.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      try { localStorage.setItem("theme", theme); } catch { /* it holds for this page */ }
      show(theme);
      name();
    });
    for (const copy of document.querySelectorAll("[data-copy]")) {
      copy.hidden = !navigator.clipboard;
      copy.addEventListener("click", async () => {
        await navigator.clipboard.writeText(document.getElementById(copy.dataset.copy).textContent);
        copy.textContent = "Copied";
      });
    }
  });
})();
