/* The address: what is chosen on a page is its query. Controls write it and follow it; links that scripts draw lead on as
   Dash's own do. */
{
  const { move, on, onMove, onChange } = window.gradcanary;
  const CONTROLS = "select[data-key], button[data-key]:not([data-once]), .field[data-key]"; // those that show what is chosen
  const TYPED_MS = 300; // after the last letter

  // The query with some changes; what is null or empty is left out.
  function search(changes) {
    const query = new URLSearchParams(window.location.search);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === "") query.delete(key);
      else query.set(key, value);
    }
    const text = query.toString();
    return text ? "?" + text : "";
  }

  // Returns whether the address is another one since.
  function go(changes) {
    const wanted = search(changes);
    if (wanted === window.location.search) return false;
    move(window.location.pathname + wanted);
    return true;
  }

  // Another page, without loading the document anew.
  function open(href) {
    move(href);
    window.scrollTo(0, 0);
  }

  on("click", ".pages a", () => window.scrollTo(0, 0)); // the same page of the dashboard, another one of its list

  on("click", "a[data-way]", (link, event) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    open(link.href);
  });

  // ---- what is typed is sent once the reader types no more, and never when he is elsewhere by then

  let typing = null; // the timer of the field in which one types

  function atRest(field, act) {
    clearTimeout(typing);
    typing = setTimeout(() => { if (field.isConnected) act(); }, TYPED_MS);
  }

  // ---- controls: each has the parameter that it sets, and may name others that its choice makes meaningless

  function choose(control, value) {
    const cleared = (control.dataset.clears || "").split(" ").filter(Boolean);
    go({ ...Object.fromEntries(cleared.map((key) => [key, null])), [control.dataset.key]: value });
  }

  on("click", "button[data-key]", (button) => {
    // A button that toggles takes its choice back when it is pressed already.
    const isBack = "toggles" in button.dataset && button.getAttribute("aria-pressed") === "true";
    choose(button, isBack ? null : button.dataset.choice);
  });

  on("change", "select[data-key]", (list) => choose(list, list.value));
  on("input", ".field[data-key]", (control, { target: field }) => atRest(field, () => choose(control, field.value)));

  // A field of which each choice is one more: the runs that are compared.
  function add(field) {
    const query = new URLSearchParams(window.location.search);
    query.append("run", field.value.trim());
    if (field.value.trim()) move("?" + query);
    window.dash_clientside.set_props(field.id, { value: "" });
  }

  on("change", "#compare-add", add);
  // A name chosen from the list, which is not yet a change of the field.
  on("input", "#compare-add", (field, { inputType }) => { if (inputType === "insertReplacementText") add(field); });

  // What the address says, and never a field while one types in it.
  function follow() {
    const query = new URLSearchParams(window.location.search);
    for (const control of document.querySelectorAll(CONTROLS)) {
      const wanted = query.get(control.dataset.key) || "";
      const field = control.querySelector("input");
      if (control.tagName === "SELECT") control.value = wanted;
      else if (control.tagName === "BUTTON") control.setAttribute("aria-pressed", String(control.dataset.choice === wanted));
      else if (document.activeElement !== field && field.value !== wanted) window.dash_clientside.set_props(field.id, { value: wanted });
    }
  }

  let followed = null; // the element of the page whose controls say what the address says

  onChange(() => {
    const state = document.querySelector(".page-state");
    if (state !== followed) follow();
    followed = state;
  });

  // The page that was left stays until the other one is there.
  onMove(() => {
    clearTimeout(typing);
    setTimeout(follow);
  });

  window.gradcanary = Object.assign(window.gradcanary || {}, { go, open });
}
