/* Forms: choices, what a click in a list is about, second questions, and the keys that send and leave. */
(function () {
  "use strict";

  const REST_MS = 300;

  function tell(store, data) {
    window.dash_clientside.set_props(store, { data });
  }

  // ---- a choice: buttons of which one is pressed, or a list

  function press(button) {
    for (const one of button.parentElement.children) one.setAttribute("aria-pressed", String(one === button));
    tell(button.dataset.of, button.dataset.value);
  }

  document.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT" && event.target.dataset.of) tell(event.target.dataset.of, event.target.value);
  });

  // ---- a second question: "No" and Escape take it back

  function leave(asked) {
    asked.open = false;
    asked.querySelector("summary").focus();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.of) press(button);
    else if (button.dataset.tells && !isBusy()) tell(button.dataset.tells, { about: button.dataset.about, at: Date.now() });
    else if (button.dataset.leave) leave(button.closest("details"));
  });

  // What was asked for before has not been answered; the list's buttons are no components that could be disabled.
  function isBusy() {
    return document.querySelector('.answer[aria-busy="true"]') !== null;
  }

  // ---- keys: Enter in a field sends its form; in a text of several lines with Ctrl or Cmd

  const ONE_LINE = /^(text|search|number|url|password)$/;

  function sends(event) {
    const field = event.target;
    if (event.key !== "Enter" || event.isComposing) return false;
    if (field.tagName === "TEXTAREA") return event.ctrlKey || event.metaKey;
    // Where there are suggestions Enter takes one of them.
    return field.tagName === "INPUT" && !field.list && field.type !== "search" && ONE_LINE.test(field.type);
  }

  function button(field) {
    const form = field.closest(".really, dialog, .card");
    return form && form.querySelector(".do.tone-main, .really > .do.tone-danger");
  }

  // Enter that is held down comes again and again, also as clicks of the button that has the focus.
  function isHeld(event) {
    return event.repeat && event.key === "Enter" && (sends(event) || Boolean(event.target.closest("button.do")));
  }

  document.addEventListener("keydown", (event) => {
    if (isHeld(event)) event.preventDefault();
    else if (event.key === "Escape") {
      const asked = event.target.closest("details.asking[open]");
      if (!asked) return;
      event.preventDefault(); // a dialog around it stays
      leave(asked);
    } else if (sends(event)) {
      const main = button(event.target);
      if (!main) return;
      event.preventDefault();
      if (!main.disabled) main.click();
    }
  });

  // ---- what is put together, each time one rests

  let resting = null;

  function rest(...values) {
    clearTimeout(resting);
    const store = window.dash_clientside.callback_context.outputs_list.id;
    const heart = (document.querySelector(".heart") || {}).id;
    // The store is gone with its page.
    resting = setTimeout(() => { if (heart && document.getElementById(heart)) tell(store, values); }, REST_MS);
    return window.dash_clientside.no_update;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { forms: { rest } });
})();
