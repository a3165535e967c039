/* What one takes along: the address of what is shown, a figure as a picture that Plotly makes in the browser. */
{
  const { copy, on, step } = window.gradcanary;
  const TITLE_PX = 34;
  const LINE_PX = 18; // each line of a title after the first; Plotly moves all of them up by half of it
  const LETTER_PX = 8;
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

  // ---- a picture

  function lines(text, width) {
    const most = Math.max(20, Math.floor(width / LETTER_PX));
    const pieces = text.split(/(?<= )/).flatMap((word) => word.match(new RegExp(`[^]{1,${most}}`, "gu")));
    return pieces.reduce((found, piece) => {
      const last = found.length - 1;
      if ((found[last] + piece).trimEnd().length > most) return [...found, piece];
      return [...found.slice(0, last), found[last] + piece];
    }, [""]).filter(Boolean);
  }

  // The colours of a heatmap with their numbers (figures.color_bar); what has no colour there is the paper.
  function bar({ marker, ...trace }, x, paper, outlinecolor) {
    const colorscale = marker.colorscale.map(([place, shade]) => [place, shade ?? paper]);
    return { ...trace, x: [x], marker: { ...marker, colorscale, colorbar: { ...marker.colorbar, outlinecolor } } };
  }

  function painted(plot, title) {
    const { layout } = plot;
    const [ink, paper, grid] = [colour("--ink"), colour("--card"), colour("--grid")];
    const isNamed = plot.data.filter((trace) => trace.name).length > 1;
    const data = plot.data.map((trace) => ({ ...trace, showlegend: isNamed && Boolean(trace.name) }));
    const titled = lines(title, plot.clientWidth);
    const above = TITLE_PX + LINE_PX * (titled.length - 1);
    if (layout.meta?.bar) data.push(bar(layout.meta.bar, layout.xaxis.range[0], paper, grid));
    const named = { text: titled.map(escaped).join("<br>"), x: 0.01, xanchor: "left", yref: "container", y: 0.99, yanchor: "top", pad: { t: (above - TITLE_PX) / 2 }, font: { size: 14 } };
    return {
      data,
      layout: {
        ...layout,
        title: named,
        width: plot.clientWidth,
        height: plot.clientHeight + above,
        margin: { ...layout.margin, t: layout.margin.t + above },
        paper_bgcolor: paper,
        plot_bgcolor: layout.meta?.bar ? colour("--unsampled") : paper,
        font: { ...layout.font, color: ink, family: getComputedStyle(document.body).fontFamily },
        xaxis: { ...layout.xaxis, gridcolor: grid },
        yaxis: { ...layout.yaxis, gridcolor: grid },
        showlegend: isNamed,
      },
      config: { staticPlot: true },
    };
  }

  // What is drawn: in words above it, and in the name of the file.
  function subject(button, id) {
    const heading = button.closest(".card")?.querySelector("h2")?.textContent ?? "";
    const stat = new URLSearchParams(window.location.search).get("stat") || "absmax";
    const runs = document.querySelector(".compared-runs");
    if (runs) {
      const drawn = id === "compare-stat" ? [document.querySelector("#compare-layer .layer").textContent, stat] : null;
      const { names, file } = runs.dataset;
      return { words: [names, ...(drawn || [heading])], name: ["compare", file, ...(drawn || [id.replace(/^compare-/, "")])] };
    }
    const [, , run, , layer] = window.location.pathname.split("/").map(decodeURIComponent);
    // A metric's id is made of a hash: its name is what its heading says.
    const named = id.startsWith("metric-") ? heading : ["heatmap", "trend"].includes(id) ? stat + "-" + id : id;
    return { words: [run, layer, heading], name: [run, layer, named] };
  }

  async function picture(button) {
    const plot = button.closest("figure").querySelector(".js-plotly-plot");
    if (!plot || !plot.layout) return;
    const [begin, end] = plot.layout.xaxis.range.map(step);
    const [first, last] = [Math.max(0, Math.ceil(begin)), Math.max(0, Math.floor(end))];
    const id = (plot.id || plot.parentElement.id || "figure").replace(/^stat-/, "");
    const { words, name: parts } = subject(button, id);
    const figure = painted(plot, [...words, `steps ${first.toLocaleString("en")} to ${last.toLocaleString("en")}`].filter(Boolean).join(" · "));
    const { width, height } = figure.layout;
    const name = [...parts, first, last].filter((part) => part !== undefined).join("-");
    const filename = name.replace(/[^\w.-]+/g, "_");
    await window.Plotly.downloadImage(figure, { format: "png", width, height, scale: SCALE, filename });
  }

  on("click", "button[data-share=address]", (button) => copy(button, address(), "Copy the address bar"));
  on("click", "button[data-share=picture]", picture);
}
