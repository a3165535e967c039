/* Figures: what they show is JSON in an attribute of their place, drawn by Plotly without Dash, which drew each one twice
   as it came, once more with what it had shown before at each zoom, and compared all of its cells with each other. */
{
  const { attempt, go, onAttribute, plots } = window.gradcanary;
  const root = document.documentElement;
  const NEAR_PX = 200; // out of sight by no more than this is in sight
  const CALM_MS = 500; // what is out of sight is drawn by then, busy as the page may be
  const AGAIN_MS = 2000; // after Plotly did not come
  // No tips: they lie over the buttons on top of the page.
  const CONFIG = { displayModeBar: false, displaylogo: false, showTips: false, plotlyServerURL: "", doubleClick: "autosize" };

  const told = new WeakMap(); // place -> the attribute that is drawn in it, or is to be
  const waiting = new Map(); // place -> its figure, to be drawn
  const ranges = new WeakMap(); // plot -> the ends of its axis of steps, as its figure has them

  // ---- Plotly: pages that open with figures load it at once, others once there is one

  let coming = null;

  function load() {
    return new Promise((resolve, reject) => {
      const known = document.getElementById("plotly");
      const script = known || Object.assign(document.createElement("script"), { id: "plotly", src: root.dataset.plotly });
      const fail = () => {
        script.remove();
        coming = null;
        setTimeout(reject, AGAIN_MS);
      };
      script.addEventListener("load", () => (window.Plotly ? resolve() : fail())); // a proxy's page is none
      script.addEventListener("error", fail);
      if (!known) document.head.append(script);
    });
  }

  // ---- drawing

  // Draws a figure into an element; what a drag or a double click on it means is in the address.
  function react(plot, figure, config) {
    const isFirst = !plots.drawnWidth(plot);
    const { range = [] } = figure.layout.xaxis || {}; // of one with nothing in it there is none
    ranges.set(plot, [...range]); // Plotly writes into its own
    return window.Plotly.react(plot, figure.data, figure.layout, { ...CONFIG, ...config }).then(() => {
      if (!isFirst) return;
      widths.observe(plot);
      plot.on("plotly_relayout", (change) => zoom(plot, change));
      plot.on("plotly_click", (click) => choose(plot, click.points[0]));
    });
  }

  // A drag over all of the steps in sight asks for what is there: the axis is as it was.
  function zoom(plot, change) {
    const wanted = window.gradcanary.zoomed(change);
    if (wanted && !go(wanted)) window.Plotly.relayout(plot, { "xaxis.range": [...ranges.get(plot)] });
  }

  function choose(plot, point) {
    const { layers } = plot.layout.meta || {};
    if (point && layers && layers[point.y]) go({ layer: layers[point.y] });
  }

  // What was hidden has no width, and what a narrower window holds another one.
  const widths = new ResizeObserver((entries) => {
    for (const { target, contentRect: { width } } of entries) {
      if (waiting.has(target.parentElement)) drawSoon();
      const drawn = plots.drawnWidth(target);
      if (drawn && width && Math.round(width) !== Math.round(drawn)) window.Plotly.Plots.resize(target).catch(() => { /* hidden again */ });
    }
  });

  function plotOf(place) {
    if (!place.firstElementChild) {
      const plot = place.appendChild(Object.assign(document.createElement("div"), { className: "plot" }));
      widths.observe(plot);
    }
    return place.firstElementChild;
  }

  function isShown(place) {
    return place.isConnected && place.getClientRects().length > 0;
  }

  function isInSight(place) {
    const { top, bottom } = place.getBoundingClientRect();
    return top < window.innerHeight + NEAR_PX && bottom > -NEAR_PX;
  }

  function draw(place) {
    const figure = waiting.get(place);
    waiting.delete(place);
    attempt(react, plotOf(place), figure, place.dataset.still ? { doubleClick: false } : {});
  }

  // One at a time, those in sight first, and between two of them whatever else there is to do: an answer, a click.
  let soon = false;

  function drawNext() {
    soon = false;
    for (const place of waiting.keys()) if (!place.isConnected) waiting.delete(place);
    const shown = Array.from(waiting.keys()).filter(isShown);
    const next = shown.find(isInSight) || shown[0];
    if (!next) return;
    draw(next);
    drawSoon();
  }

  function drawSoon() {
    if (soon) return;
    soon = true;
    const isUrgent = Array.from(waiting.keys()).some((place) => isShown(place) && isInSight(place));
    const later = isUrgent || !window.requestIdleCallback ? setTimeout : (act) => requestIdleCallback(act, { timeout: CALM_MS });
    if (!window.Plotly) coming ||= load();
    Promise.resolve(coming).then(() => later(drawNext), () => {
      soon = false;
      drawSoon();
    });
  }

  function put(place, figure) {
    waiting.set(place, figure);
    plotOf(place);
    // The first one before whatever else Dash has to do for a page that opens.
    if (!soon && window.Plotly && isShown(place) && isInSight(place)) draw(place);
    drawSoon();
  }

  function want(place) {
    const text = place.dataset.figure;
    if (!text || told.get(place) === text) return;
    told.set(place, text);
    put(place, JSON.parse(text));
  }

  onAttribute("data-figure", want);

  // ---- what comes with an answer: the first one in sight is drawn before Dash hears of the rest

  function painted() {
    return new Promise((resolve) => {
      requestAnimationFrame(() => setTimeout(resolve));
      setTimeout(resolve, 100); // a tab in the background paints nothing
    });
  }

  // Returns the attributes of figures, by their places' ids, once the one that is looked at shows what they say. What was
  // drawn before Dash had it, and it then left away for another choice, is again as the page says.
  async function drawFirst(figures) {
    for (const place of document.querySelectorAll("[data-figure]")) if (!(place.id in figures)) want(place);
    const texts = Object.fromEntries(Object.entries(figures).map(([id, figure]) => [id, JSON.stringify(figure)]));
    const places = Object.keys(figures).map((id) => document.getElementById(id)).filter((place) => place && isShown(place));
    const first = places.find(isInSight);
    if (first && window.Plotly && told.get(first) !== texts[first.id]) {
      told.set(first, texts[first.id]);
      waiting.set(first, figures[first.id]);
      draw(first);
      await painted();
    }
    return texts;
  }

  window.gradcanary = Object.assign(window.gradcanary || {}, { put, drawFirst });
}
