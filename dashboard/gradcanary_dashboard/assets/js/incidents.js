/* The dialog of the buttons of incidents and silences. It lies outside of what a refresh fills: nothing is redrawn while
   somebody types. Its form is asked for as it opens. */
{
  const { on, onChange, refresh } = window.gradcanary;
  const SAID_MS = 8000;
  const hasKeys = matchMedia("(hover: hover)");

  let opener = ""; // what finds the button that opened the dialog: it may have been drawn again meanwhile
  let fading = null;

  function dialog() {
    return document.getElementById("incident-dialog");
  }

  on("click", "button[data-do]", (button) => {
    const kind = "silence" in button.dataset ? "silence" : "incident";
    opener = `button[data-do="${button.dataset.do}"][data-${kind}="${button.dataset[kind]}"]`;
    window.dash_clientside.set_props("dialog-body", { children: [] });
    window.dash_clientside.set_props("asked", { data: { do: button.dataset.do, [kind]: Number(button.dataset[kind]), at: Date.now() } });
    if (!dialog().open) dialog().showModal();
  });

  document.addEventListener("close", ({ target }) => {
    if (target === dialog()) document.querySelector(opener)?.focus({ preventScroll: true });
  }, true);

  window.addEventListener("popstate", () => dialog()?.close());

  // Once the form is there, keys go to its first field; on a phone a keyboard would cover half of it.
  onChange(() => {
    const first = dialog()?.open && dialog().querySelector("input[type=text], textarea, button");
    if (first && hasKeys.matches && [dialog(), document.body].includes(document.activeElement)) first.focus();
  });

  // Safari's keyboard covers the page, which does not become smaller.
  window.visualViewport?.addEventListener("resize", () => {
    document.documentElement.style.setProperty("--seen", window.visualViewport.height + "px");
  });

  function finish(done) {
    if (!done) return window.dash_clientside.no_update;
    dialog().close();
    refresh();
    clearTimeout(fading);
    fading = setTimeout(() => window.dash_clientside.set_props("said", { children: "" }), SAID_MS);
    return done.said;
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside, { incidents: { finish } });
}
