/* What the browser does about incidents: the dialog of their buttons. It lies outside of what a refresh fills, so that nothing
   is redrawn while somebody types. */
(function () {
  "use strict";

  let opener = null; // the button that opened the dialog, by what it does and to which incident or silence

  function dialog() {
    return document.getElementById("incident-dialog");
  }

  // ---- the dialog: its form is asked for as it opens

  function open(button) {
    const kind = "silence" in button.dataset ? "silence" : "incident";
    opener = `button[data-do="${button.dataset.do}"][data-${kind}="${button.dataset[kind]}"]`;
    const asked = { do: button.dataset.do, [kind]: Number(button.dataset[kind]), at: Date.now() };
    window.dash_clientside.set_props("dialog-body", { children: [] });
    window.dash_clientside.set_props("asked", { data: asked });
    if (!dialog().open) dialog().showModal();
  }

  // The button may have been drawn anew meanwhile.
  function closed() {
    const button = opener && document.querySelector(opener);
    if (button) button.focus({ preventScroll: true });
  }

  function close() {
    if (dialog() && dialog().open) {
      dialog().close();
      closed();
    }
  }

  let fading = null;

  function finish(done) {
    if (!done) return window.dash_clientside.no_update;
    close();
    window.gradcanary.refresh();
    clearTimeout(fading);
    fading = setTimeout(() => window.dash_clientside.set_props("said", { children: "" }), 8000);
    return done.said;
  }

  // Safari's keyboard covers the page, which does not become smaller.
  if (window.visualViewport) {
    window.visualViewport.addEventListener("resize", () => {
      document.documentElement.style.setProperty("--seen", window.visualViewport.height + "px");
    });
  }

  let answered = "";

  // What is wrong may come below what is in sight.
  function show() {
    const answer = document.getElementById("dialog-answer");
    const text = answer ? answer.textContent : "";
    if (text && text !== answered) answer.scrollIntoView({ block: "nearest" });
    answered = text;
  }

  const hasKeys = matchMedia("(hover: hover)");

  // Once the form is there, whoever uses keys is in its first field; on a phone a keyboard would cover half of it.
  window.gradcanary.onChange(() => {
    const first = dialog() && dialog().open && dialog().querySelector("input[type=text], textarea, button");
    const focused = document.activeElement;
    show();
    if (first && hasKeys.matches && (focused === dialog() || focused === document.body)) first.focus();
  });

  // ---- clicks and keys

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && button.dataset.do) open(button);
    else if (button && button.dataset.close) close();
  });

  document.addEventListener("close", (event) => { if (event.target === dialog()) closed(); }, true);
  window.addEventListener("popstate", close);

  window.dash_clientside = Object.assign({}, window.dash_clientside, { incidents: { finish } });
})();
