/* Forms: choices, what a click in a list is about, second questions, and what the browser does not do about keys. */
{
  const { on } = window.gradcanary;

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

  on("click", "button[data-of]", press);
  on("click", "button[data-leave]", (button) => leave(button.closest("details")));
  on("click", "button[data-store]", ({ dataset: { store, subject } }) => { if (!isBusy()) write(store, { subject, at: Date.now() }); });
  on("change", "select[data-of]", (list) => write(list.dataset.of, list.value));

  // The click of a form's button has sent it: no other page is loaded.
  on("submit", ".form", (form, event) => { if (event.submitter?.formMethod !== "dialog") event.preventDefault(); });

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
