/* Where one is on a page: a new one begins at its top and has the focus, and who goes back finds the place he left. */
(function () {
  "use strict";

  const LONGEST_MS = 5000; // a page is as high again by then, or never
  const AGAIN_MS = 50;
  const scrolled = new Map(); // an entry of the history -> how far its page was scrolled

  let shown = null; // the path of the page that is there
  let wanted = null; // how far the page one goes back to was scrolled, until it is there
  let returning = null;

  // Dash's entries have no name; each gets one when it is needed.
  function entry() {
    const { state } = window.history;
    if (state && state.entry) return state.entry;
    const name = Date.now() + "-" + Math.random();
    window.history.replaceState({ ...state, entry: name }, "");
    return name;
  }

  function isReturning() {
    return wanted !== null || returning !== null;
  }

  function giveUp() {
    clearInterval(returning);
    returning = null;
  }

  // Figures come one by one, and the page becomes as high as it was; whoever moves meanwhile stays.
  function goBackTo(top) {
    const until = performance.now() + LONGEST_MS;
    const step = () => {
      window.scrollTo(0, top);
      if (Math.abs(window.scrollY - top) < 1 || performance.now() > until) giveUp();
    };
    returning = setInterval(step, AGAIN_MS);
    step();
  }

  // Of each page but the first, which the browser announces, a reader of the screen hears that it is there.
  function arrive() {
    const isFirst = shown === null;
    shown = window.location.pathname;
    giveUp();
    const main = document.getElementById("main");
    if (!isFirst && !main.contains(document.activeElement) && !document.querySelector("dialog[open]")) main.focus({ preventScroll: true });
    const top = wanted || 0;
    wanted = null;
    if (top) goBackTo(top);
    else window.scrollTo(0, 0);
  }

  // A click or a key may lead away, when it is too late to ask.
  function note() {
    if (shown === window.location.pathname && !isReturning()) scrolled.set(entry(), window.scrollY);
  }

  for (const moved of ["scroll", "click", "keydown"]) window.addEventListener(moved, note, { capture: true, passive: true });

  window.gradcanary.onMove(() => {
    const { state } = window.history;
    giveUp();
    wanted = window.location.pathname !== shown && state && scrolled.has(state.entry) ? scrolled.get(state.entry) : null;
  }, () => { wanted = null; });
  for (const moved of ["wheel", "touchstart", "keydown", "pointerdown"]) window.addEventListener(moved, giveUp, { passive: true });

  window.gradcanary = Object.assign(window.gradcanary || {}, { arrive });
})();
