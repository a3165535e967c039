/* What one takes along: the address of what is shown, a figure as a picture. No other host has a part in it. */
(function () {
  "use strict";

  const TITLE_PX = 34;
  const SCALE = 2;

  function escaped(text) {
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // ---- the address: with the layer that is drawn, which is else the worst at the time of reading

  function address() {
    const here = new URL(window.location.href);
    const drawn = document.querySelector("#trend-title a, #compare-layer .layer");
    if (drawn && !here.searchParams.has("layer")) here.searchParams.set("layer", drawn.textContent);
    return here.href;
  }

  function share(button) {
    const word = button.querySelector(".word");
    const before = word.dataset.before || word.textContent; // it may say "Copied" still
    word.dataset.before = before;
    window.gradcanary.copied(address()).then((done) => { word.textContent = done ? "Copied" : "Copy the address bar"; });
    setTimeout(() => { word.textContent = before; }, 1800);
  }

  // ---- a picture

  function namedSteps(plot) {
    const [first, last] = plot.layout.xaxis.range.map(window.gradcanary.step);
    return [Math.max(0, Math.ceil(first)), Math.max(0, Math.floor(last))];
  }

  function withScale(trace, meta) {
    const decades = [];
    for (let decade = Math.ceil(Math.log10(meta.ends[0])); decade <= Math.log10(meta.ends[1]); decade += 2) decades.push(decade);
    const tickvals = [...decades.map((decade) => decade * 1000), meta.zero, meta.no_data, meta.nonfinite];
    const ticktext = [...decades.map((decade) => "1e" + decade), "exact 0", "no data", "non-finite"];
    return { ...trace, showscale: true, colorbar: { tickvals, ticktext, thickness: 10, outlinewidth: 0 } };
  }

  function painted(plot, title) {
    const { layout } = plot;
    const [ink, paper, grid] = [colour("--ink"), colour("--card"), colour("--grid")];
    const isNamed = plot.data.filter((trace) => trace.name).length > 1;
    const data = plot.data.map((trace) => ({ ...trace, showlegend: isNamed && Boolean(trace.name) }));
    if (layout.meta && layout.meta.ends) data[0] = withScale(data[0], layout.meta);
    const named = { text: escaped(title), x: 0.01, xanchor: "left", yref: "container", y: 0.99, yanchor: "top", font: { size: 14 } };
    return {
      data,
      layout: {
        ...layout,
        title: named,
        width: plot.clientWidth,
        height: plot.clientHeight + TITLE_PX,
        margin: { ...layout.margin, t: layout.margin.t + TITLE_PX },
        paper_bgcolor: paper,
        plot_bgcolor: paper,
        font: { ...layout.font, color: ink, family: getComputedStyle(document.body).fontFamily },
        xaxis: { ...layout.xaxis, gridcolor: grid },
        yaxis: { ...layout.yaxis, gridcolor: grid },
        showlegend: isNamed,
      },
      config: { staticPlot: true },
    };
  }

  // By way of a data URL: Plotly's own way to a PNG goes over a blob, which the page's policy forbids.
  function rasterised(svg, width, height) {
    return new Promise((resolve, reject) => {
      const image = new Image();
      image.onerror = reject;
      image.onload = () => {
        const canvas = document.createElement("canvas");
        canvas.width = width * SCALE;
        canvas.height = height * SCALE;
        canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
        canvas.toBlob(resolve, "image/png");
      };
      image.src = svg;
    });
  }

  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // What is drawn: in words above it, and in the name of the file.
  function subject(button, id) {
    const query = new URLSearchParams(window.location.search);
    const stat = query.get("stat") || "absmax";
    const card = button.closest(".card");
    const heading = card && card.querySelector("h2");
    const what = heading ? heading.textContent : "";
    const drawn = document.querySelector("#compare-layer .layer");
    if (drawn) {
      const runs = Array.from(document.querySelectorAll(".compared-runs tbody th"), (row) => [row.querySelector(".chip b").textContent, row.querySelector("a").textContent]);
      const names = runs.map(([letter, run]) => letter + " " + run).join(", ");
      const isStat = id === "compare-stat";
      return { words: [names, ...(isStat ? [drawn.textContent, stat] : [what])], name: ["compare", ...runs.map(([, run]) => run), ...(isStat ? [drawn.textContent, stat] : [id.replace(/^compare-/, "")])] };
    }
    const [, , run, , layer] = window.location.pathname.split("/").map(decodeURIComponent);
    return { words: [run, layer, what], name: [run, layer, plainly(id, stat, what)] };
  }

  // A metric's id is made of a hash: its name is what its heading says.
  function plainly(id, stat, heading) {
    if (id === "heatmap" || id === "trend") return stat + "-" + id;
    return id.startsWith("metric-") ? heading : id;
  }

  async function picture(button) {
    const plot = button.closest("figure").querySelector(".js-plotly-plot");
    if (!plot || !plot.layout) return;
    const [first, last] = namedSteps(plot);
    const id = (plot.id || plot.parentElement.id || "figure").replace(/^stat-/, "");
    const { words, name: parts } = subject(button, id);
    const figure = painted(plot, [...words, `steps ${first.toLocaleString("en")} to ${last.toLocaleString("en")}`].filter(Boolean).join(" · "));
    const { width, height } = figure.layout;
    const svg = await window.Plotly.toImage(figure, { format: "svg", width, height });
    const name = [...parts, first, last].filter((part) => part !== undefined).join("-");
    save(await rasterised(svg, width, height), name.replace(/[^\w.-]+/g, "_") + ".png");
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-share]");
    if (!button) return;
    if (button.dataset.share === "address") share(button);
    else picture(button);
  });
})();
