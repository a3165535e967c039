/* Keys of the pages: "/" leads to the filter, Escape out of it, "?" lists what keys do. While one types they are letters,
   with Ctrl, Alt or Meta the browser's. */
(function () {
  "use strict";

  const { element } = window.gradcanary;
  const KEYS = [
    ["/", "To the filter"],
    ["Esc", "Empty the filter; once more, out of it"],
    ["\u2190  \u2192", "On a figure: the crosshair from point to point, read out; with Shift ten"],
    ["\u2191  \u2193", "On the heatmap: the layer above, below"],
    ["Space  Enter", "On the heatmap: the layer's trend, its page"],
    ["?", "This list"],
  ];

  function filter() {
    return Array.from(document.querySelectorAll("main input[type=search]")).find((field) => field.getClientRects().length);
  }

  function help() {
    const listed = KEYS.flatMap(([keys, words]) => {
      const shown = keys.split("  ").map((key) => element("kbd", {}, key));
      return [element("dt", {}, ...shown), element("dd", {}, words)];
    });
    const heading = element("h2", { id: "key-help-title" }, "Keyboard");
    const close = element("form", { method: "dialog" }, element("button", { class: "do" }, "Close"));
    const named = { id: "key-help", "aria-labelledby": "key-help-title" };
    const dialog = element("dialog", named, heading, element("dl", {}, ...listed), close);
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (target.matches("input, textarea, select")) {
      // The browser empties a field of this type.
      if (key === "Escape" && target.type === "search" && !target.value) target.blur();
    } else if (key === "?") {
      help();
    } else if (key === "/" && filter()) {
      event.preventDefault();
      filter().focus();
      filter().select();
    }
  });

  document.addEventListener("click", (event) => { if (event.target.closest("#keys")) help(); });
})();
