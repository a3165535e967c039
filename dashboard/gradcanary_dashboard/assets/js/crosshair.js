/* One crosshair through all figures: where a mouse, a finger or a key points in one of them, a line in each of them and
   what it holds there. Lines are elements over the plots: nothing is redrawn and nobody is asked. */
{
  const { hasAxes, area, pixelAt, valuesAt, rangeOf, pointsOf } = window.gradcanary.plots;
  const known = new WeakMap(); // plot -> { of: the points that it drew, lines }

  let at = null; // { plot, x, row, by }
  let asked = false;

  function plots() {
    return Array.from(document.querySelectorAll("main .js-plotly-plot")).filter((plot) => hasAxes(plot) && plot.offsetParent);
  }

  // ---- values

  function isLine(trace) {
    return trace.type === "scatter" && Array.isArray(trace.customdata) && trace.mode.includes("lines");
  }

  function lineOf(points) {
    const trace = points[0].trace;
    const held = points.filter((point) => Number.isFinite(point.x) && Number.isFinite(point.y));
    const xs = held.map((point) => point.x);
    const gaps = xs.slice(1).map((x, place) => x - xs[place]).sort((a, b) => a - b);
    return { id: trace.meta, name: trace.name, xs, words: held.map((point) => trace.customdata[point.i]), usual: gaps[gaps.length >> 1] || 1 };
  }

  function lines(plot) {
    const [found, drawn] = [known.get(plot), pointsOf(plot)];
    if (found && found.of === drawn) return found.lines;
    const made = drawn.filter((points) => points[0] && points[0].trace && isLine(points[0].trace)).map(lineOf);
    known.set(plot, { of: drawn, lines: made });
    return made;
  }

  // The words of the point next to x: [steps, value]; none within a hole, and none beyond the ends.
  function told(line, x) {
    const left = window.gradcanary.last(line.xs, x);
    const near = [left, left + 1].filter((place) => place >= 0 && place < line.xs.length);
    if (near.length === 2 && line.xs[left + 1] - line.xs[left] > 3 * line.usual) return null;
    near.sort((a, b) => Math.abs(line.xs[a] - x) - Math.abs(line.xs[b] - x));
    const nearest = near[0];
    return nearest === undefined || Math.abs(line.xs[nearest] - x) > line.usual ? null : line.words[nearest];
  }

  // ---- what is seen

  function overlay(plot) {
    let line = plot.querySelector(":scope > .crosshair");
    if (!line) {
      line = document.createElement("div");
      line.className = "crosshair";
      line.setAttribute("aria-hidden", "true");
      line.append(document.createElement("span"));
      plot.append(line);
    }
    return line;
  }

  function write(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function announce(text) {
    write(document.getElementById("announced"), text);
  }

  function writeLegend(plot, found) {
    const legend = plot.closest(".panel") && plot.closest(".panel").querySelector(".whose");
    if (!legend) return;
    const values = new Map(found.map((each) => [each.id, each.words ? each.words[1] : "–"]));
    for (const entry of legend.querySelectorAll("[data-line]")) {
      const value = entry.querySelector(".value");
      if (value) write(value, at && values.has(entry.dataset.line) ? values.get(entry.dataset.line) : value.dataset.last);
    }
  }

  // Of several lines each with its name, unless a legend below the figure has them.
  function valuesOf(plot, found) {
    const held = found.filter(({ words }) => words);
    if (found.length === 1) return held.map(({ words }) => words[1]);
    return plot.closest(".panel") ? [] : held.map(({ name, words }) => name + " " + words[1]);
  }

  function show(plot) {
    const { left, top, width, height } = area(plot);
    const line = overlay(plot);
    const pixel = pixelAt(plot, at.x);
    line.hidden = !(pixel >= 0 && pixel <= width);
    if (line.hidden) return;
    const found = lines(plot).map((each) => ({ id: each.id, name: each.name, words: told(each, at.x) }));
    line.style.cssText = `top: ${top}px; height: ${height}px; transform: translateX(${left + pixel}px)`;
    line.classList.toggle("leftwards", pixel > width * 0.6);
    const isPointed = at.plot === plot && at.by === "mouse"; // Plotly's own label is there
    const where = plot.querySelector(".heatmaplayer image") || at.by !== "mouse" ? window.gradcanary.words(at.x) : "";
    write(line.firstChild, isPointed ? "" : [where, ...valuesOf(plot, found)].filter(Boolean).join(" · "));
    writeLegend(plot, found);
  }

  function hide(plot) {
    const line = plot.querySelector(":scope > .crosshair");
    if (line) line.hidden = true;
    writeLegend(plot, []);
  }

  function draw() {
    asked = false;
    for (const plot of plots()) {
      if (at) show(plot);
      else hide(plot);
    }
    document.dispatchEvent(new CustomEvent("gradcanary:pointed", { detail: at }));
  }

  function point(where) {
    if (!where && !at) return;
    at = where;
    if (!asked) requestAnimationFrame(draw);
    asked = true;
  }

  // ---- mouse and finger

  function placeOf(event) {
    const plot = event.target.closest && event.target.closest("main .js-plotly-plot");
    if (!hasAxes(plot)) return null;
    const { left, top, width, height } = area(plot);
    const box = plot.getBoundingClientRect();
    const [across, down] = [event.clientX - box.left - left, event.clientY - box.top - top];
    if (across < 0 || across > width || down < 0 || down > height) return null;
    const { x, y } = valuesAt(plot, across, down);
    return { plot, x, row: Math.round(y), by: event.pointerType };
  }

  document.addEventListener("pointermove", (event) => {
    const where = placeOf(event);
    if (where || (at && at.by === "mouse")) point(where);
  }, { passive: true });

  document.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse") point(placeOf(event));
  }, { capture: true, passive: true });

  document.documentElement.addEventListener("mouseleave", () => point(null));

  // Figures move on under it as steps arrive.
  setInterval(() => {
    if (!at || asked) return;
    if (at.plot.isConnected) plots().forEach(show);
    else point(null);
  }, 1000);

  // ---- keys: on a figure that has the focus

  function pace(plot) {
    const meta = plot.layout.meta || {};
    if (meta.width && !meta.clock) return meta.width;
    const [line] = lines(plot);
    const [first, last] = rangeOf(plot).map(window.gradcanary.numeric);
    return line ? line.usual : (last - first) / 200;
  }

  function moved(plot, across, down) {
    const [first, last] = rangeOf(plot).map(window.gradcanary.numeric);
    const rows = plot.layout.meta && plot.layout.meta.names ? plot.layout.meta.names.length : 0;
    const before = at && at.plot === plot ? at : { x: at ? at.x : (first + last) / 2, row: (plot.layout.meta || {}).chosen || 0 };
    const x = Math.min(last, Math.max(first, before.x + across * pace(plot)));
    return { plot, x, row: Math.min(Math.max(0, rows - 1), Math.max(0, before.row + down)), by: "key" };
  }

  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  document.addEventListener("keydown", (event) => {
    if (!event.target.matches || !event.target.matches(".plotted") || event.ctrlKey || event.metaKey || event.altKey) return;
    const plot = event.target.querySelector(".js-plotly-plot");
    if (!hasAxes(plot)) return;
    if (event.key === "Escape") point(null);
    const move = MOVES[event.key];
    const isHeatmap = Boolean(plot.querySelector(".heatmaplayer image"));
    if (!move || (move[1] && !isHeatmap)) return;
    event.preventDefault();
    const many = event.shiftKey ? 10 : 1;
    point(moved(plot, move[0] * many, move[1] * many));
    if (!isHeatmap) announce([window.gradcanary.words(at.x), ...lines(plot).map((line) => (told(line, at.x) || ["", ""])[1])].join(" "));
  });

  document.addEventListener("focusout", (event) => {
    if (at && at.by === "key" && event.target.matches(".plotted")) point(null);
  });

  window.gradcanary = Object.assign(window.gradcanary || {}, { announce });
}
