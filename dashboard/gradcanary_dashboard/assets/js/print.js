/* On paper a figure is as wide as the page: Plotly drew it as wide as the window was. */
(function () {
  "use strict";

  function boxes() {
    return Array.from(document.querySelectorAll(".js-plotly-plot .svg-container:has(.main-svg)"));
  }

  addEventListener("beforeprint", () => {
    for (const box of boxes()) {
      const drawings = box.querySelectorAll(".main-svg");
      const [width, height] = ["width", "height"].map((name) => drawings[0].getAttribute(name));
      box.toggleAttribute("data-printed", true);
      box.style.aspectRatio = `${width} / ${height}`;
      for (const drawing of drawings) drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    }
  });

  addEventListener("afterprint", () => {
    for (const box of boxes()) {
      box.removeAttribute("data-printed");
      box.style.aspectRatio = "";
      for (const drawing of box.querySelectorAll(".main-svg")) drawing.removeAttribute("viewBox");
    }
  });
})();
