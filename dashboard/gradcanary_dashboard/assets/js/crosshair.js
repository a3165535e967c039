/* One crosshair through all figures: where a mouse, a finger or a key points in one of them, a line in each of them and
   what it holds there. Lines are elements over the plots: nothing is redrawn and nobody is asked. */
{
  const { last, numeric, on } = window.gradcanary;
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
    const left = last(line.xs, x);
    const near = [left, left + 1].filter((place) => place >= 0 && place < line.xs.length);
    if (near.length === 2 && line.xs[left + 1] - line.xs[left] > 3 * line.usual) return null;
    near.sort((a, b) => Math.abs(line.xs[a] - x) - Math.abs(line.xs[b] - x));
    const nearest = near[0];
    return nearest === undefined || Math.abs(line.xs[nearest] - x) > line.usual ? null : line.words[nearest];
  }

  // ---- what is seen

  function overlay(plot) {
    const known = plot.querySelector(":scope > .crosshair");
    if (known) return known;
    const line = Object.assign(document.createElement("div"), { className: "crosshair", ariaHidden: "true" });
    line.append(document.createElement("span"));
    return plot.appendChild(line);
  }

  function write(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  function announce(text) {
    write(document.getElementById("announced"), text);
  }

  function writeLegend(plot, found) {
    const values = new Map(found.map(({ id, words }) => [id, words ? words[1] : "–"]));
    for (const value of plot.closest(".panel")?.querySelectorAll("[data-line] .value") ?? []) {
      write(value, values.get(value.parentElement.dataset.line) ?? value.dataset.last);
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
    const pixel = at ? pixelAt(plot, at.x) : -1;
    line.hidden = !(pixel >= 0 && pixel <= width);
    const found = line.hidden ? [] : lines(plot).map((each) => ({ id: each.id, name: each.name, words: told(each, at.x) }));
    writeLegend(plot, found);
    if (line.hidden) return;
    line.style.cssText = `top: ${top}px; height: ${height}px; transform: translateX(${left + pixel}px)`;
    line.classList.toggle("leftwards", pixel > width * 0.6);
    const isHeatmap = Boolean(plot.querySelector(".heatmaplayer image"));
    const isPointed = at.plot === plot && (isHeatmap || at.by === "mouse"); // its own label is there
    const where = isHeatmap || at.by !== "mouse" ? window.gradcanary.words(at.x) : "";
    write(line.firstChild, isPointed ? "" : [where, ...valuesOf(plot, found)].filter(Boolean).join(" · "));
  }

  function draw() {
    asked = false;
    plots().forEach(show);
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
    const plot = event.target.closest?.("main .js-plotly-plot");
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
    if (where || at?.by === "mouse") point(where);
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
    const [begin, end] = rangeOf(plot).map(numeric);
    return lines(plot)[0]?.usual ?? (end - begin) / 200;
  }

  // The middle of a column of the heatmap that is so many further.
  function column(plot, x, across) {
    const edges = pointsOf(plot)[0][0].x;
    const place = Math.min(edges.length - 2, Math.max(0, last(edges, x) + across));
    return (edges[place] + edges[place + 1]) / 2;
  }

  function moved(plot, across, down) {
    const { names = [], chosen } = plot.layout.meta || {};
    const [begin, end] = rangeOf(plot).map(numeric);
    const before = at?.plot === plot ? at : { x: at ? at.x : (begin + end) / 2, row: chosen || 0 };
    const x = Math.min(end, Math.max(begin, names.length ? column(plot, before.x, across) : before.x + across * pace(plot)));
    return { plot, x, row: Math.min(Math.max(0, names.length - 1), Math.max(0, before.row + down)), by: "key" };
  }

  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

  on("keydown", ".plotted", (figure, event) => {
    const plot = figure.querySelector(".js-plotly-plot");
    if (event.target !== figure || event.ctrlKey || event.metaKey || event.altKey || !hasAxes(plot)) return;
    if (event.key === "Escape") point(null);
    const move = MOVES[event.key];
    const isHeatmap = Boolean(plot.querySelector(".heatmaplayer image"));
    if (!move || (move[1] && !isHeatmap)) return;
    event.preventDefault();
    const many = event.shiftKey ? 10 : 1;
    point(moved(plot, move[0] * many, move[1] * many));
    if (!isHeatmap) announce([window.gradcanary.words(at.x), ...lines(plot).map((line) => (told(line, at.x) || ["", ""])[1])].join(" "));
  });

  on("focusout", ".plotted", () => { if (at?.by === "key") point(null); });

  window.gradcanary = Object.assign(window.gradcanary || {}, { announce });
}
