/* What one takes along: the address of what is shown, a figure as a picture. No other host has a part in it. */
(function () {
  "use strict";

  const TITLE_PX = 34;
  const LINE_PX = 18; // each line of a title after the first; Plotly moves all of them up by half of it
  const LETTER_PX = 8;
  const LABEL_PX = 18;
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

  function namedSteps(plot) {
    const [first, last] = plot.layout.xaxis.range.map(window.gradcanary.step);
    return [Math.max(0, Math.ceil(first)), Math.max(0, Math.floor(last))];
  }

  function lines(text, width) {
    const most = Math.max(20, Math.floor(width / LETTER_PX));
    const pieces = text.split(/(?<= )/).flatMap((word) => word.match(new RegExp(`[^]{1,${most}}`, "gu")));
    return pieces.reduce((found, piece) => {
      const last = found.length - 1;
      if ((found[last] + piece).trimEnd().length > most) return [...found, piece];
      return [...found.slice(0, last), found[last] + piece];
    }, [""]).filter(Boolean);
  }

  // The colours of the values, and apart from them those of cells without one: each label has room, at any height.
  function bar(trace, meta, height, { paper, grid, x }) {
    const codes = meta.told.map((value) => Math.round(1000 * Math.log10(value)));
    const [low, high] = [codes[0], codes[codes.length - 1]];
    const label = ((high - low) * LABEL_PX) / (height - 4 * LABEL_PX); // codes that a label is high
    const stops = trace.colorscale.map(([place, shade]) => [trace.zmin + place * (trace.zmax - trace.zmin), shade]);
    const zero = stops.findLast(([code]) => code < meta.zero)[1];
    const bands = [
      [low - 2.5 * label, low - 1.5 * label, stops[0][1]],
      [low - 1.5 * label, low - 0.5 * label, zero],
      [low - 0.5 * label, low, paper],
      [high, high + 0.5 * label, paper],
      [high + 0.5 * label, high + 1.5 * label, stops[stops.length - 1][1]],
    ].map(([from, to, shade]) => [[from, shade], [to, shade]]);
    const shades = [...bands.slice(0, 3).flat(), ...stops.filter(([code]) => code > low - 0.5 && code < high + 0.5), ...bands.slice(3).flat()];
    const [first, last] = [shades[0][0], shades[shades.length - 1][0]];
    const ticks = [...ticksOf(meta, codes, label), [low - 2 * label, "no data"], [low - label, "exact 0"], [high + label, "non-finite"]];
    const colorbar = { tickvals: ticks.map(([code]) => code), ticktext: ticks.map(([, text]) => text), thickness: 10, outlinewidth: 1, outlinecolor: grid, ypad: 0 };
    const colorscale = shades.map(([code, shade]) => [Math.min(1, Math.max(0, (code - first) / (last - first))), shade]);
    return { type: "scatter", mode: "markers", x: [x], y: [0], hoverinfo: "skip", marker: { color: [low], cmin: first, cmax: last, colorscale, showscale: true, opacity: 0, colorbar } };
  }

  // The ends, beyond which colours stay, the threshold, and between these the decades that have room.
  function ticksOf(meta, codes, label) {
    const words = meta.told.map((value) => window.gradcanary.scientific(value, 2));
    const hasThreshold = codes.length === 3;
    const [low, high] = [codes[0], codes[codes.length - 1]];
    const found = codes.map((code, place) => [code, words[place]]);
    if (hasThreshold) found[1][1] += " threshold";
    if (hasThreshold || meta.ends[0] < meta.told[0]) found[0][1] = "≤ " + words[0];
    if (hasThreshold) found[2][1] = "≥ " + words[2];
    for (let decade = Math.ceil(low / 1000); decade <= high / 1000; decade += 1) {
      if (found.every(([code]) => Math.abs(code - 1000 * decade) >= label)) found.push([1000 * decade, window.gradcanary.scientific(Math.pow(10, decade), 2)]);
    }
    return found;
  }

  function painted(plot, title) {
    const { layout } = plot;
    const [ink, paper, grid] = [colour("--ink"), colour("--card"), colour("--grid")];
    const isNamed = plot.data.filter((trace) => trace.name).length > 1;
    const data = plot.data.map((trace) => ({ ...trace, showlegend: isNamed && Boolean(trace.name) }));
    const titled = lines(title, plot.clientWidth);
    const above = TITLE_PX + LINE_PX * (titled.length - 1);
    const { t: top, b: bottom } = layout.margin;
    if (layout.meta && layout.meta.ends) data.push(bar(data[0], layout.meta, plot.clientHeight - top - bottom, { paper, grid, x: layout.xaxis.range[0] }));
    const named = { text: titled.map(escaped).join("<br>"), x: 0.01, xanchor: "left", yref: "container", y: 0.99, yanchor: "top", pad: { t: (above - TITLE_PX) / 2 }, font: { size: 14 } };
    return {
      data,
      layout: {
        ...layout,
        title: named,
        width: plot.clientWidth,
        height: plot.clientHeight + above,
        margin: { ...layout.margin, t: top + above },
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
  async function rasterised(svg, width, height) {
    const image = Object.assign(new Image(), { src: svg });
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: width * SCALE, height: height * SCALE });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
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
      const layer = id === "compare-stat" ? [drawn.textContent, stat] : null;
      return { words: [names, ...(layer || [what])], name: ["compare", ...runs.map(([, run]) => run), ...(layer || [id.replace(/^compare-/, "")])] };
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
    if (button.dataset.share === "address") window.gradcanary.copy(button, address(), "Copy the address bar");
    else picture(button);
  });
})();
