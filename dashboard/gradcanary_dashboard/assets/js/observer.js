/* One observer and one clock for all scripts: what a refresh writes into an attribute is drawn by the script that knows it. */
(function () {
  "use strict";

  const TICK_MS = 100;

  const drawers = new Map(); // attribute -> draw(element, text)
  const drawn = new WeakMap(); // element -> the text of its attribute that was drawn last
  const watchers = []; // functions to call after each change of the page
  const timed = []; // { act, wait_ms, due }

  // A script that fails keeps no other from its work.
  function attempt(act, ...given) {
    try {
      act(...given);
    } catch (error) {
      console.error(error);
    }
  }

  function drawChanged() {
    for (const [attribute, draw] of drawers) {
      for (const element of document.querySelectorAll(`[${attribute}]`)) {
        const text = element.getAttribute(attribute);
        if (drawn.get(element) === text) continue;
        drawn.set(element, text);
        attempt(draw, element, text);
      }
    }
    watchers.forEach((act) => attempt(act));
  }

  // Calls draw(element, text) for each element of which the attribute became another one; an element has one such attribute.
  function onAttribute(attribute, draw) {
    drawers.set(attribute, draw);
  }

  function onChange(act) {
    watchers.push(act);
  }

  function every(wait_ms, act) {
    timed.push({ act, wait_ms, due: 0 });
  }

  const attributeFilter = ["data-drawn", "data-figure", "data-panels", "data-rows", "data-shown"];
  new MutationObserver(drawChanged).observe(document.documentElement, { childList: true, subtree: true, attributeFilter });

  setInterval(() => {
    const now = performance.now();
    for (const each of timed) {
      if (now < each.due) continue;
      each.due = now + each.wait_ms;
      attempt(each.act);
    }
  }, TICK_MS);

  window.gradcanary = Object.assign(window.gradcanary || {}, { onAttribute, onChange, every });
})();
