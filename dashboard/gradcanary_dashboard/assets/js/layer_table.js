/* The rows of the table of layers: drawn here, because a Dash component per cell cost more than all figures together.
   Names come from trainings: they are only ever written as text and attributes. */
(function () {
  "use strict";

  const { element, drawRows } = window.gradcanary;
  const CELLS = ["number absmax", "number norm", "state", "accumulator", "number k", "rule"];
  const drawn = new WeakMap(); // row -> the layer that it shows

  function drawButton(name) {
    const words = { title: "Draw its trend here", "aria-label": "Draw the trend of " + name };
    const icon = element("span", { class: "icon icon-trend", "aria-hidden": "true" });
    return element("button", { type: "button", class: "draw", "data-layer": name, ...words }, icon);
  }

  // A name that is too long for its column goes on behind a dot.
  function parted(name) {
    return name.split(/(?<=\.)/).flatMap((part) => [part, element("wbr", {})]);
  }

  function newRow(name, hasButtons) {
    const link = element("a", { class: "layer", title: name }, ...parted(name));
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

  window.gradcanary.onAttribute("data-layers", (body, text) => {
    drawRows(body, JSON.parse(text), (name) => newRow(name, body.dataset.draws === "true"), write);
  });
})();
