/* What chooses the runs of the list: it is written into the address, and follows that. */
(function () {
  "use strict";

  const KEYS = ["text", "state", "sort", "archived"];

  function control(key) {
    return key === "text" ? document.getElementById("runs-filter") : document.querySelector(`[data-list="${key}"]`);
  }

  function chosen(key) {
    const element = control(key);
    if (key === "archived") return element.getAttribute("aria-pressed") === "true" ? "1" : "";
    return element.value.trim();
  }

  // Another choice begins at its first page.
  function apply() {
    window.gradcanary.go({ after: null, ...Object.fromEntries(KEYS.map((key) => [key, chosen(key)])) });
  }

  function follow() {
    if (!control("text")) return;
    const query = new URLSearchParams(window.location.search);
    const field = control("text");
    const text = query.get("text") || "";
    if (document.activeElement !== field && field.value !== text) {
      window.dash_clientside.set_props("runs-filter", { value: text });
    }
    for (const key of ["state", "sort"]) control(key).value = query.get(key) || "";
    control("archived").setAttribute("aria-pressed", String(query.get("archived") === "1"));
  }

  document.addEventListener("input", ({ target: field }) => {
    if (field.id === "runs-filter") window.gradcanary.atRest(field, 250, apply);
  });

  document.addEventListener("change", (event) => {
    if (event.target.matches("select[data-list]")) apply();
  });

  document.addEventListener("click", (event) => {
    const archive = event.target.closest("button[data-list]");
    if (archive) {
      archive.setAttribute("aria-pressed", String(archive.getAttribute("aria-pressed") !== "true"));
      apply();
    }
    if (event.target.closest(".pages a")) window.scrollTo(0, 0);
  });

  window.gradcanary.onMove(() => setTimeout(follow));
})();
