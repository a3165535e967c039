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

  // ---- what is typed is sent once the reader types no more, and never when he is elsewhere by then

  const resting = new Map(); // a field, or what it finds -> { timer, at: the address as one typed }

  function here() {
    return window.location.pathname + window.location.search;
  }

  // Does something about an element once nothing more is asked of it for a while.
  function atRest(element, wait_ms, act) {
    if (resting.has(element)) clearTimeout(resting.get(element).timer);
    const timer = setTimeout(() => {
      resting.delete(element);
      if (element.isConnected) act();
    }, wait_ms);
    resting.set(element, { timer, at: here() });
  }

  // The page that was left stays until the other one is there.
  function leave() {
    for (const [element, { timer, at }] of resting) {
      if (at === here()) continue;
      clearTimeout(timer);
      resting.delete(element);
    }
  }

  window.gradcanary.onMove(leave);

  window.gradcanary = Object.assign(window.gradcanary || {}, { search, page, go, open, atRest });
})();
