/* Keys of the pages: "/" leads to the filter, Escape out of it, "?" lists what keys do (shell.KEYS). While one types they are letters,
   with Ctrl, Alt or Meta the browser's. */
{
  const { on } = window.gradcanary;

  function filter() {
    return Array.from(document.querySelectorAll("main input[type=search]")).find((field) => field.getClientRects().length);
  }

  function help() {
    document.getElementById("key-help").showModal();
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
    } else {
      document.querySelector(`main a[aria-keyshortcuts="${CSS.escape(key)}"]`)?.click(); // "[" and "]": the incident before, after
    }
  });

  on("click", "#keys", help);
  on("click", "#key-help", (dialog, { target }) => { if (target === dialog) dialog.close(); }); // beside it
}
