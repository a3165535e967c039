/* What the pages use of Dash beyond its documented functions: the event of an address that Dash wrote, and the text of the
   request that opens a page. pyproject.toml bounds Dash's version for this file. */
{
  const MOVED = "_dashprivate_pushstate";

  // Goes to an address as Dash's own links do, without loading the document anew.
  function move(href) {
    window.history.pushState({}, "", href);
    window.dispatchEvent(new CustomEvent(MOVED));
  }

  // Calls a function after the address became another one: by the browser's back and forward, or by a link or a choice.
  function onMove(act) {
    for (const event of ["popstate", MOVED]) window.addEventListener(event, act);
  }

  // Return true if options of fetch are those of the callback that fills ``main``.
  function isOpening({ body }) {
    return typeof body === "string" && body.includes('"output":"..main.children');
  }

  window.gradcanary = Object.assign(window.gradcanary || {}, { move, onMove, isOpening });
}
