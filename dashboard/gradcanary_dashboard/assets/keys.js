/* What keys do: "?" lists what they do on the page one sees. While one types they are letters, with Ctrl, Alt or Meta
   the browser's. Names come from trainings: they are only ever written with textContent. */
(function () {
  "use strict";

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

  function open(href) {
    window.history.pushState({}, "", href);
    window.dispatchEvent(new PopStateEvent("popstate"));
    window.scrollTo(0, 0);
  }

  // ---- the heatmap: a cursor of one cell, read out as the pointer's is

  let cell = null; // { row, column } of the heatmap

  function plot() {
    return document.querySelector("#heatmap .js-plotly-plot");
  }

  function inSight() {
    const meta = plot().layout.meta;
    const [left, right] = plot().layout.xaxis.range.map(Number);
    const last = meta.steps.length - 1;
    const place = (x) => Math.min(last, Math.max(0, Math.round((x - meta.middle) / meta.width)));
    return { meta: meta, first: place(left + meta.width / 2), last: place(right - meta.width / 2) };
  }

  function pointAt(row, column) {
    const { meta, first, last } = inSight();
    const rows = meta.names.length;
    cell = { row: Math.min(rows - 1, Math.max(0, row)), column: Math.min(last, Math.max(first, column)) };
    const at = { curveNumber: 0, xval: meta.middle + cell.column * meta.width, yval: cell.row };
    window.Plotly.Fx.hover(plot(), [at], "xy");
    mark();
    readOut((plot()._hoverdata || []).map(({ x, y, z }) => ({ x, y, z })));
    // Whoever does not see the read-out hears it when keys rest.
    clearTimeout(pointAt.said);
    pointAt.said = setTimeout(() => {
      document.getElementById("key-said").textContent = document.getElementById("readout").textContent;
    }, 250);
  }

  // A box around the cell, at least as large as one can see.
  function mark() {
    const figure = document.getElementById("heatmap");
    const box = figure.querySelector(".cell-cursor") || figure.appendChild(element("div", { class: "cell-cursor" }));
    const { xaxis, yaxis } = plot()._fullLayout;
    const [left, right] = [cell.column - 0.5, cell.column + 0.5].map((at) => xaxis.l2p(plot().layout.meta.middle + at * plot().layout.meta.width));
    const [top, bottom] = [cell.row - 0.5, cell.row + 0.5].map((at) => yaxis.l2p(at)).sort((one, other) => one - other);
    const wide = Math.max(9, right - left);
    const high = Math.max(9, bottom - top);
    const at = plot().getBoundingClientRect();
    const origin = figure.getBoundingClientRect();
    Object.assign(box.style, {
      left: at.left - origin.left + xaxis._offset + (left + right - wide) / 2 + "px",
      top: at.top - origin.top + yaxis._offset + (top + bottom - high) / 2 + "px",
      width: wide + "px",
      height: high + "px",
    });
  }

  // Plotly tells of what a pointer is over, and not of what it was told to show.
  function readOut(points) {
    window.dash_clientside.set_props("heatmap", { hoverData: points.length ? { points: points } : null });
  }

  const MOVES = {
    ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
    PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -Infinity], End: [0, Infinity],
  };

  function onHeatmap(event) {
    if (!plot() || !plot().layout.meta) return false;
    const { meta, first } = inSight();
    if (event.key in MOVES) {
      const [down, right] = MOVES[event.key];
      if (cell === null) pointAt(0, first);
      else pointAt(cell.row + down * (event.shiftKey ? 10 : 1), cell.column + right * (event.shiftKey ? 10 : 1));
      return true;
    }
    if (event.key === "Enter" && cell !== null) {
      const name = meta.layers[cell.row];
      if (!name) return false;
      const run = window.location.pathname.split("/").slice(0, 3).join("/");
      open(run + "/layers/" + encodeURIComponent(name) + steps());
      return true;
    }
    if (event.key === "Escape") {
      leave();
      return true;
    }
    return false;
  }

  function steps() {
    const query = new URLSearchParams(window.location.search);
    const kept = new URLSearchParams();
    for (const key of ["from", "to"]) if (query.has(key)) kept.set(key, query.get(key));
    return kept.toString() ? "?" + kept : "";
  }

  function leave() {
    if (cell === null) return;
    cell = null;
    document.querySelector(".cell-cursor")?.remove();
    if (plot() && plot()._fullLayout) {
      window.Plotly.Fx.unhover(plot());
      readOut([]);
    }
    document.getElementById("key-said").textContent = "";
  }

  // Plotly's own element becomes the one that keys are for, as soon as it is drawn.
  function prepare() {
    const figure = document.getElementById("heatmap");
    if (!figure || figure.tabIndex === 0) return;
    figure.tabIndex = 0;
    figure.setAttribute("role", "application");
    figure.setAttribute("aria-label", "Heatmap: arrows move over its cells, Enter opens the layer");
    figure.addEventListener("focus", () => { if (figure.matches(":focus-visible") && cell === null && plot()) pointAt(0, inSight().first); });
    figure.addEventListener("blur", leave);
  }

  // ---- what keys do, in words

  function known() {
    const rows = [["?", "This list"], ["g then r, i, c, s", "Runs, incidents, compare, settings"]];
    if (filter()) rows.unshift(["/", "To the filter"], ["Esc", "Empty the filter; once more, out of it"]);
    if (items().length) rows.unshift(["j  k", "Next, previous in the list"], ["Enter", "Open it"]);
    if (plot()) {
      rows.push(["Tab to the heatmap", "then:"], ["\u2190 \u2191 \u2192 \u2193", "From cell to cell, its value is read out; with Shift ten"]);
      rows.push(["Enter", "Open the cell's layer"], ["Esc", "Leave the cells"]);
    }
    rows.push(["Esc", "Close this list"]);
    return rows;
  }

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
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
    const isMine = target.id === "heatmap"
      ? onHeatmap(event) || onPage(event)
      : isTyping(target) ? target.matches("input[type=search]") && inFilter(event) : onPage(event);
    if (isMine) event.preventDefault();
  }

  document.addEventListener("keydown", pressed);
  document.addEventListener("click", (event) => { if (event.target.closest("#keys")) help(); });
  new MutationObserver(prepare).observe(document.documentElement, { childList: true, subtree: true });
})();
