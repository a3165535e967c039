/* The page that compares runs: the rows of what differs, one line under the pointer through all figures, and the field
   for one more run. Names come from trainings: they are only ever written as text and attributes. */
(function () {
  "use strict";

  const drawn = new WeakMap(); // body -> the JSON that it shows; row -> that of its difference

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  // ---- rows: kept by name, so that a refresh neither moves the focus nor loses a click

  function newRow(name) {
    const words = { "aria-label": "Draw " + name, title: "Draw it" };
    const button = element("button", { type: "button", "data-layer": name, ...words }, name);
    const cells = ["gap", "levels", "where"].map((kind) => element("td", { class: kind, role: "cell" }));
    return element("tr", { role: "row", "data-name": name }, element("td", { class: "name", role: "cell" }, button), ...cells);
  }

  function level([place, letter, text]) {
    return element("span", {}, element("b", { class: "of-" + place }, letter), " " + text);
  }

  function write(row, difference) {
    const text = JSON.stringify(difference);
    if (drawn.get(row) === text) return;
    drawn.set(row, text);
    const [, gap, levels, where] = row.cells;
    row.className = difference.chosen ? "chosen" : "";
    row.querySelector("button").setAttribute("aria-pressed", String(difference.chosen));
    gap.textContent = difference.gap;
    gap.classList.toggle("far", difference.is_far);
    levels.replaceChildren(...difference.values.map(level));
    where.textContent = difference.where + " · " + difference.accumulators;
  }

  function draw(body, differences) {
    const known = new Map(Array.from(body.rows, (row) => [row.dataset.name, row]));
    const rows = differences.map((difference) => {
      const row = known.get(difference.name) || newRow(difference.name);
      write(row, difference);
      return row;
    });
    const listed = new Set(rows);
    for (const row of Array.from(body.rows)) if (!listed.has(row)) row.remove();
    const focused = document.activeElement;
    let next = body.firstElementChild;
    for (const row of rows) {
      if (row === next) next = next.nextElementSibling;
      else body.insertBefore(row, next);
    }
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  function drawWhatIsNew() {
    const body = document.querySelector("tbody[data-differences]");
    if (!body || drawn.get(body) === body.dataset.differences) return;
    drawn.set(body, body.dataset.differences);
    draw(body, JSON.parse(body.dataset.differences));
  }

  const watched = { childList: true, subtree: true, attributes: true, attributeFilter: ["data-differences"] };
  new MutationObserver(drawWhatIsNew).observe(document.documentElement, watched);

  // ---- one step under the pointer in all figures

  let crossed = null; // the figure that the pointer is over

  function plots() {
    return Array.from(document.querySelectorAll("#compare-body .js-plotly-plot"));
  }

  function isDrawn(plot) {
    return plot.data && plot.data.length > 0 && plot.querySelector(".nsewdrag");
  }

  function uncross() {
    if (!crossed) return;
    for (const plot of plots()) if (plot !== crossed && isDrawn(plot)) window.Plotly.Fx.unhover(plot);
    for (const line of document.querySelectorAll("#compare-body .crossing")) line.remove();
    crossed = null;
  }

  function lineOf(plot) {
    return plot.querySelector(".crossing") || plot.appendChild(element("div", { class: "crossing", "aria-hidden": "true" }));
  }

  function cross(plot, left) {
    const area = plot.querySelector(".nsewdrag").getBoundingClientRect();
    const [first, last] = plot.layout.xaxis.range.map(Number);
    const step = first + ((left - area.left) / area.width) * (last - first);
    crossed = plot;
    for (const other of plots().filter(isDrawn)) {
      const inner = other.querySelector(".nsewdrag").getBoundingClientRect();
      const outer = other.getBoundingClientRect();
      const line = lineOf(other).style;
      line.left = left - outer.left + "px";
      line.top = inner.top - outer.top + "px";
      line.height = inner.height + "px";
      if (other !== plot) window.Plotly.Fx.hover(other, { xval: step }, ["xy"]);
    }
  }

  document.addEventListener("mousemove", (event) => {
    const over = event.target.closest && event.target.closest("#compare-body .nsewdrag");
    if (over && !event.buttons) cross(over.closest(".js-plotly-plot"), event.clientX);
    else uncross();
  }, { passive: true });

  document.addEventListener("mouseleave", uncross);

  // ---- one more run

  function add(field) {
    const run = field.value.trim();
    if (!run) return;
    const query = new URLSearchParams(window.location.search);
    query.append("run", run);
    window.dash_clientside.set_props("compare-add", { value: "" });
    window.dash_clientside.set_props("compare-url", { search: "?" + query });
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "compare-add") add(event.target);
  });

  document.addEventListener("input", (event) => {
    // A name chosen from the list, which is not yet a change of the field.
    if (event.target.id === "compare-add" && event.inputType === "insertReplacementText") add(event.target);
  });
})();
