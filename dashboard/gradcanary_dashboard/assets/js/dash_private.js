/* What the pages use of Dash beyond its documented functions: the event of an address that Dash wrote, and the text of the
   request that opens a page. pyproject.toml bounds Dash's version for this file. */
(function () {
  "use strict";

  // Calls a function after the address became another one: by the browser's back and forward, or by a link or a choice.
  function onMove(back, forward = back) {
    window.addEventListener("popstate", back);
    window.addEventListener("_dashprivate_pushstate", forward);
  }

  // Return true if options of fetch are those of the callback that fills ``main``.
  function isOpening({ body }) {
    return typeof body === "string" && body.includes('"output":"..main.children');
  }

  window.gradcanary = Object.assign(window.gradcanary || {}, { onMove, isOpening });
})();
