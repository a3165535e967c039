/* What the browser does about incidents: the dialog of their buttons, and what is chosen of the list. The dialog lies
   outside of what a refresh fills, so that nothing is redrawn while somebody types. */
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
    const heart = document.querySelector(".heart");
    if (heart) window.dash_clientside.set_props(heart.id, { "data-news": Date.now() });
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

  // ---- what is chosen of the list: in the address

  function choose(changes) {
    window.gradcanary.go({ before: null, ...changes });
  }

  // The lists follow the address (back, forward), the field never while one types.
  function showChoices() {
    const query = new URLSearchParams(window.location.search);
    for (const list of document.querySelectorAll("select[data-filter]")) {
      list.value = query.get(list.dataset.filter) || "";
    }
    const field = document.getElementById("incidents-run");
    const wanted = query.get("run") || "";
    const keep = !field || document.activeElement === field || field.value === wanted;
    return keep ? window.dash_clientside.no_update : wanted;
  }

  // ---- clicks and keys

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && button.dataset.do) open(button);
    else if (button && button.dataset.close) close();
  });

  document.addEventListener("change", (event) => {
    const list = event.target;
    if (list.tagName === "SELECT" && list.dataset.filter) choose({ [list.dataset.filter]: list.value });
  });

  document.addEventListener("input", ({ target: field }) => {
    if (field.id === "incidents-run") window.gradcanary.atRest(field, 400, () => choose({ run: field.value.trim() }));
  });

  document.addEventListener("close", (event) => { if (event.target === dialog()) closed(); }, true);
  window.addEventListener("popstate", close);

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    incidents: { finish: finish, show_choices: showChoices },
  });
})();
