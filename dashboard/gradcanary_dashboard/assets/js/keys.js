/* What keys do: "?" lists what they do on the page one sees. While one types they are letters, with Ctrl, Alt or Meta
   the browser's. Names come from trainings: they are only ever written with textContent. */
(function () {
  "use strict";

  const { element, open } = window.gradcanary;

  // What one walks through with j and k, and opens with Enter: links, in the order of the page.
  const ITEMS = "main article h2 a, main article h3 a, main tbody a.layer";
  const WAYS = { r: "/", i: "/incidents", c: "/compare", s: "/settings" };
  const WAIT_MS = 1200;

  let lastG = 0;

  function isTyping(target) {
    const kind = (target.getAttribute && target.getAttribute("type")) || "text";
    const isButton = /^(button|checkbox|radio|range|submit|reset)$/.test(kind);
    return /^(TEXTAREA|SELECT)$/.test(target.tagName) || (target.tagName === "INPUT" && !isButton) || target.isContentEditable;
  }

  function visible(selector) {
    return Array.from(document.querySelectorAll(selector)).filter((one) => one.getClientRects().length);
  }

  function filter() {
    return visible("main input[type=search]")[0];
  }

  function items() {
    return visible(ITEMS);
  }

  function walk(by) {
    const all = items();
    if (!all.length) return false;
    const here = all.findIndex((one) => one === document.activeElement || one.closest("tr, article")?.contains(document.activeElement));
    const next = here < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, here + by));
    all[next].focus();
    all[next].scrollIntoView({ block: "nearest" });
    return true;
  }

  // ---- what keys do, in words

  function known() {
    const rows = [["?", "This list"], ["g then r, i, c, s", "Runs, incidents, compare, settings"]];
    if (filter()) rows.unshift(["/", "To the filter"], ["Esc", "Empty the filter; once more, out of it"]);
    if (items().length) rows.unshift(["j  k", "Next, previous in the list"], ["Enter", "Open it"]);
    if (visible(".plotted").length) {
      rows.push(["Tab to a figure", "then:"], ["\u2190  \u2192", "The crosshair from point to point, read out; with Shift ten"]);
    }
    if (visible("#heatmap").length) {
      rows.push(["\u2191  \u2193", "In the heatmap: the layer above, below"], ["Space  Enter", "Its trend, its page"]);
    }
    rows.push(["Esc", "Close this list"]);
    return rows;
  }

  function help() {
    document.getElementById("key-help")?.remove();
    const listed = element("dl", {});
    for (const [keys, words] of known()) {
      const shown = keys.split("  ").map((key) => element("kbd", {}, key));
      listed.append(element("dt", {}, ...shown), element("dd", {}, words));
    }
    const heading = element("h2", { id: "key-help-title" }, "Keyboard");
    const close = element("form", { method: "dialog" }, element("button", { class: "do" }, "Close"));
    const dialog = element("dialog", { id: "key-help", "aria-labelledby": "key-help-title" }, heading, listed, close);
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  // ---- which key is meant

  function inFilter(event) {
    const field = event.target;
    if (event.key === "Escape") {
      if (!field.value) field.blur();
      return false; // the browser empties a field of this type, as it does
    }
    if (event.key !== "ArrowDown" || !items().length) return false;
    return walk(1);
  }

  function onPage(event) {
    if (event.key === "?") { help(); return true; }
    if (event.key === "/" && filter()) { filter().focus(); filter().select(); return true; }
    if (event.key === "j" || event.key === "k") return walk(event.key === "j" ? 1 : -1);
    if (items().includes(event.target) && /^Arrow(Up|Down)$/.test(event.key)) return walk(event.key === "ArrowDown" ? 1 : -1);
    if (event.key in WAYS && Date.now() - lastG < WAIT_MS) { open(WAYS[event.key]); return true; }
    lastG = event.key === "g" ? Date.now() : 0;
    return false;
  }

  function pressed(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const target = event.target;
    const isMine = isTyping(target) ? target.matches("input[type=search]") && inFilter(event) : onPage(event);
    if (isMine) event.preventDefault();
  }

  document.addEventListener("keydown", pressed);
  document.addEventListener("click", (event) => { if (event.target.closest("#keys")) help(); });
})();
