/* What scripts build pages of: an element, and children that stay the elements they are. Names come from trainings: they are
   only ever written as text and attributes. */
(function () {
  "use strict";

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // Those that follow each other already are left alone; others that were there go.
  function arrange(parent, wanted) {
    const kept = new Set(wanted);
    for (const one of Array.from(parent.children)) if (!kept.has(one)) one.remove();
    const focused = document.activeElement;
    let next = parent.firstElementChild;
    for (const one of wanted) {
      if (one === next) next = next.nextElementSibling;
      else parent.insertBefore(one, next);
    }
    // What moves loses the focus.
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  window.gradcanary = Object.assign(window.gradcanary || {}, { element, arrange });
})();
