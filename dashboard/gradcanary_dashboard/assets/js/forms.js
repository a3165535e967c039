/* Forms: choices, what a click in a list is about, second questions, and what the browser does not do about keys. */
{
  function write(store, data) {
    window.dash_clientside.set_props(store, { data });
  }

  function press(button) {
    for (const one of button.parentElement.children) one.setAttribute("aria-pressed", String(one === button));
    write(button.dataset.of, button.dataset.value);
  }

  // What was asked for before has not been answered; the buttons of a list are no components that could be disabled.
  function isBusy() {
    return document.querySelector('.answer[aria-busy="true"]') !== null;
  }

  // A second question is taken back.
  function leave(asked) {
    asked.open = false;
    asked.querySelector("summary").focus();
  }

  document.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (!button) return;
    if (button.dataset.of) press(button);
    else if (button.dataset.store && !isBusy()) write(button.dataset.store, { subject: button.dataset.subject, at: Date.now() });
    else if (button.dataset.leave) leave(button.closest("details"));
  });

  document.addEventListener("change", ({ target: list }) => {
    if (list.matches("select[data-of]")) write(list.dataset.of, list.value);
  });

  // The click of a form's button has sent it: no other page is loaded.
  document.addEventListener("submit", (event) => {
    if (event.target.matches(".form") && event.submitter?.formMethod !== "dialog") event.preventDefault();
  });

  // Enter that is held down comes again and again; where there are suggestions it takes one of them.
  function isNoMore({ target: field, repeat }) {
    return repeat ? field.matches("input, button.do") : Boolean(field.form && field.list);
  }

  document.addEventListener("keydown", (event) => {
    const { key, target: field } = event;
    const asked = key === "Escape" && field.closest("details.asking[open]");
    if (asked) {
      event.preventDefault(); // a dialog around it stays
      leave(asked);
    } else if (key === "Enter" && isNoMore(event)) event.preventDefault();
    else if (key === "Enter" && (event.ctrlKey || event.metaKey) && field.matches("textarea") && !event.repeat) {
      field.form?.querySelector("[type=submit]")?.click();
    }
  });
}
