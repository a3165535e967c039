/* The address: what is chosen on a page is its query, and links that scripts draw lead on as Dash's own do. */
(function () {
  "use strict";

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

  function page() {
    return document.querySelector(".heart").id.replace(/-heart$/, "");
  }

  // Returns whether the address is another one since.
  function go(changes) {
    const wanted = search(changes);
    if (wanted === window.location.search) return false;
    window.gradcanary.askAhead(wanted);
    window.dash_clientside.set_props(page() + "-url", { search: wanted });
    return true;
  }

  // Another page, without loading the document anew.
  function open(href) {
    window.history.pushState({}, "", href);
    window.dispatchEvent(new PopStateEvent("popstate"));
    window.scrollTo(0, 0);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-way], tbody a.layer");
    if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    open(link.href);
  });

  window.gradcanary = Object.assign(window.gradcanary || {}, { search, page, go, open });
})();
