/* Choices of forms: buttons of which one is pressed (forms.choice). */
(function () {
  "use strict";

  document.addEventListener("click", (event) => {
    const pressed = event.target.closest("button[data-of]");
    if (!pressed) return;
    for (const one of pressed.parentElement.children) one.setAttribute("aria-pressed", String(one === pressed));
    window.dash_clientside.set_props(pressed.dataset.of, { data: pressed.dataset.value });
  });
})();
