/* What the browser does without asking: ticks, the theme, the URL, the table of layers, the read-out of the heatmap.
   Names come from trainings: they are only ever written with textContent. */
(function () {
  "use strict";

  const root = document.documentElement;

  // ---- numbers and times

  function scientific(value) {
    const [mantissa, exponent] = value.toExponential(1).split("e");
    if (value >= 1e-3 && value < 1e6) return String(Number(value.toPrecision(3)));
    return mantissa.replace(".0", "") + "e" + Number(exponent);
  }

  function ago(then) {
    const seconds = Math.max(0, Math.round((Date.now() - then) / 1000));
    if (seconds < 2) return "just now";
    if (seconds < 120) return seconds + " s ago";
    if (seconds < 7200) return Math.round(seconds / 60) + " min ago";
    if (seconds < 172800) return Math.round(seconds / 3600) + " h ago";
    return Math.round(seconds / 86400) + " days ago";
  }

  function wordTimes() {
    for (const element of document.querySelectorAll("time[datetime]")) {
      const then = Date.parse(element.getAttribute("datetime"));
      const text = ago(then);
      if (!Number.isNaN(then) && element.textContent !== text) element.textContent = text;
    }
  }

  // ---- the URL

  function search(changes) {
    const query = new URLSearchParams(window.location.search);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null) query.delete(key);
      else query.set(key, value);
    }
    const text = query.toString();
    return text ? "?" + text : "";
  }

  function go(changes) {
    const wanted = search(changes);
    if (wanted !== window.location.search) window.dash_clientside.set_props("run-url", { search: wanted });
  }

  // ---- callbacks of Dash

  function pulse(_ticks, busy) {
    return busy || document.hidden ? window.dash_clientside.no_update : Date.now();
  }

  function zoom() {
    const context = window.dash_clientside.callback_context;
    const change = (context.triggered[0] || {}).value || {};
    const first = change["xaxis.range[0]"];
    const last = change["xaxis.range[1]"];
    let wanted = null;
    if (first !== undefined && last !== undefined) {
      const from = Math.max(0, Math.round(first));
      wanted = search({ from: from, to: Math.max(from + 1, Math.round(last)) });
    } else if (change["xaxis.autorange"]) {
      wanted = search({ from: null, to: null });
    }
    return wanted === null || wanted === window.location.search ? window.dash_clientside.no_update : wanted;
  }

  function choose(click, figure) {
    const point = click && click.points && click.points[0];
    const name = point && figure.layout.meta && figure.layout.meta.layers[point.y];
    return name === undefined || !name ? window.dash_clientside.no_update : search({ layer: name });
  }

  function readOut(hover, figure) {
    const meta = figure && figure.layout && figure.layout.meta;
    const point = hover && hover.points && hover.points[0];
    if (!meta || !point) return "Point at a cell for its value, click it for the layer's curve.";
    const column = Math.round((point.x - figure.layout.meta.middle) / meta.width);
    let value = meta.value + " " + scientific(Math.pow(10, point.z / 1000));
    if (point.z === meta.zero) value = "exact 0";
    if (point.z === meta.no_data) value = "no data";
    if (point.z === meta.nonfinite) value = "not finite";
    return [meta.names[point.y], "step " + meta.steps[column], value].join("  ·  ");
  }

  function setTitle(title) {
    if (title) document.title = title + " · gradcanary";
    window.scrollTo(0, 0);
  }

  // ---- the dashboard's own server: when it is gone, nobody but the browser can say so

  function showLink(connected) {
    const banner = document.getElementById("offline");
    if (!banner || banner.hidden === connected) return;
    banner.hidden = connected;
    document.querySelector("#link .word").textContent = connected ? "connected" : "not connected";
    root.dataset.link = connected ? "up" : "down";
  }

  const plainFetch = window.fetch;
  window.fetch = function (...request) {
    return plainFetch.apply(this, request).then(
      (response) => { showLink(response.status < 500); return response; },
      (error) => { showLink(false); throw error; },
    );
  };

  // ---- clicks and keys

  function copy(button) {
    navigator.clipboard.writeText(button.dataset.copy).then(() => {
      const word = button.querySelector(".word");
      word.textContent = "Copied";
      setTimeout(() => { word.textContent = "Copy"; }, 1500);
    });
  }

  function switchTheme() {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("gradcanary-theme", root.dataset.theme); } catch (error) { /* not remembered */ }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") switchTheme();
    else if (button.dataset.layer) go({ layer: button.dataset.layer });
    else if (button.dataset.reset) go({ from: null, to: null });
    else if (button.dataset.copy) copy(button);
  });

  document.addEventListener("keydown", (event) => {
    const filter = document.getElementById("runs-filter");
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (event.key !== "/" || !filter || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    filter.focus();
  });

  // Plotly takes every touch for a zoom; a finger on a plot must still scroll the page, and a tap still clicks.
  document.addEventListener("touchstart", (event) => {
    if (event.target.closest && event.target.closest(".js-plotly-plot")) event.stopPropagation();
  }, { capture: true, passive: true });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (system) => {
    let kept = null;
    try { kept = localStorage.getItem("gradcanary-theme"); } catch (error) { /* follow the system */ }
    if (!kept) root.dataset.theme = system.matches ? "dark" : "light";
  });

  setInterval(wordTimes, 500);

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    gradcanary: { pulse, zoom, choose, read_out: readOut, title: setTitle },
  });
})();
