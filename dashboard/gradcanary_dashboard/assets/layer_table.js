/* The rows of the table of layers: drawn here, because a Dash component per cell cost more than all figures together.
   Names come from trainings: they are only ever written as text and attributes. */
(function () {
  "use strict";

  const CELLS = ["number absmax", "number norm", "state", "accumulator", "number k", "rule"];
  const drawn = new WeakMap(); // row or body -> what it shows

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function drawButton(name) {
    const words = { title: "Draw its trend here", "aria-label": "Draw the trend of " + name };
    const icon = element("span", { class: "icon icon-trend", "aria-hidden": "true" });
    return element("button", { type: "button", class: "draw", "data-layer": name, ...words }, icon);
  }

  function newRow(name, hasButtons) {
    const link = element("a", { class: "layer", title: name }, name);
    const first = element("td", { class: "name", role: "cell" }, ...(hasButtons ? [drawButton(name), link] : [link]));
    const others = CELLS.map((kind) => element("td", { class: kind, role: "cell" }));
    return element("tr", { role: "row", "data-name": name }, first, ...others);
  }

  function write(row, layer) {
    const before = drawn.get(row) || { texts: [] };
    drawn.set(row, layer);
    const tone = "tone-" + layer.tone + (layer.chosen ? " chosen" : "");
    if (row.className !== tone) row.className = tone;
    if (before.href !== layer.href) row.querySelector("a").setAttribute("href", layer.href);
    const button = before.chosen === layer.chosen ? null : row.querySelector("button");
    if (button) button.setAttribute("aria-pressed", String(layer.chosen));
    layer.texts.forEach((text, place) => {
      if (before.texts[place] !== text) row.cells[place + 1].textContent = text;
    });
  }

  // Rows move to their new places one by one: those that follow each other already are left alone.
  function arrange(body, rows) {
    let next = body.firstElementChild;
    for (const row of rows) {
      if (row === next) next = next.nextElementSibling;
      else body.insertBefore(row, next);
    }
  }

  // A row that moves loses the focus.
  function keepingFocus(change) {
    const focused = document.activeElement;
    change();
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  function draw(body, layers) {
    const known = new Map(Array.from(body.rows, (row) => [row.dataset.name, row]));
    const rows = layers.map((layer) => {
      const row = known.get(layer.name) || newRow(layer.name, body.dataset.draws === "true");
      write(row, layer);
      return row;
    });
    const listed = new Set(rows);
    for (const row of Array.from(body.rows)) if (!listed.has(row)) row.remove();
    keepingFocus(() => arrange(body, rows));
  }

  function drawWhatIsNew() {
    for (const body of document.querySelectorAll("tbody[data-layers]")) {
      const layers = body.dataset.layers;
      if (drawn.get(body) === layers) continue;
      drawn.set(body, layers);
      draw(body, JSON.parse(layers));
    }
  }

  // A plain click on a name leads on without loading the page anew, as Dash's own links do.
  function follow(event) {
    const link = event.target.closest("tbody a.layer");
    if (!link || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    window.history.pushState({}, "", link.href);
    window.dispatchEvent(new PopStateEvent("popstate"));
    window.scrollTo(0, 0);
  }

  document.addEventListener("click", follow);
  const watched = { childList: true, subtree: true, attributes: true, attributeFilter: ["data-layers"] };
  new MutationObserver(drawWhatIsNew).observe(document.documentElement, watched);
})();
