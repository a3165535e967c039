/* What happens on a page: one observer for all scripts, as what a refresh writes into an attribute is drawn by the script
   that knows it, and events of elements that may be drawn again. */
{
  const drawers = new Map(); // attribute -> draw(element, text)
  const drawn = new WeakMap(); // element -> the text of its attribute that was drawn last
  const watchers = []; // functions to call after each change of the page

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

  // Calls act(element, event) at an event within an element that the selector finds.
  function on(type, selector, act) {
    document.addEventListener(type, (event) => {
      const element = event.target.closest?.(selector);
      if (element) act(element, event);
    });
  }

  const attributeFilter = ["datetime", "data-trees", "data-figure", "data-panels", "data-shown"];
  new MutationObserver(drawChanged).observe(document.documentElement, { childList: true, subtree: true, attributeFilter });

  window.gradcanary = Object.assign(window.gradcanary || {}, { attempt, onAttribute, onChange, on });
}
