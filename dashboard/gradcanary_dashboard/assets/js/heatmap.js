/* The heatmap under a pointer: what a cell is called and holds, to the last digit once one stays; its layer's page. */
{
  const { last, plots, step } = window.gradcanary;
  const STAY_MS = 150;
  const AWAY_PX = 12;
  const LOW = 10; // so many times below its baseline a value is worth a word
  const heard = new WeakSet();

  let known = {}; // the cell that was asked for last, and its exact value
  let waiting = null;
  let staying = null; // the timer of a pointer that may stay
  let under = null; // { plot, row }

  // A tooltip beside the pointer, above its row; it has a line for each of the words.
  function say(lines, plot, { x, row, meta } = {}) {
    const place = document.getElementById("readout");
    if (!place) return;
    place.hidden = !lines;
    if (!lines) return;
    const name = Object.assign(document.createElement("strong"), { textContent: lines[0].replaceAll(".", ".\u200b") });
    place.replaceChildren(name, ["", ...lines.slice(1)].join("\n"));
    const [box, card] = [plot.getBoundingClientRect(), place.offsetParent.getBoundingClientRect()];
    const { left, top, width, height } = plots.area(plot);
    const across = plots.pixelAt(plot, x);
    const side = across > width / 2 ? -AWAY_PX - place.offsetWidth : AWAY_PX;
    const above = box.top - card.top + top + (height * row) / meta.names.length - place.offsetHeight - AWAY_PX;
    const most = card.width - place.offsetWidth - AWAY_PX;
    place.style.left = Math.min(most, Math.max(AWAY_PX, box.left - card.left + left + across + side)) + "px";
    place.style.top = above + "px";
  }

  // As ``text.numbers.scientific`` has it: 6.1e-7, 0.125, 12,300.
  function scientific(value, digits) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    if (value >= 1e-3 && value < 1e6) return Number(value.toPrecision(3)).toLocaleString("en", { maximumFractionDigits: 5 });
    return mantissa.replace(/\.?0+$/, "") + "e" + Number(exponent);
  }

  // ---- which cell

  function cellOf(plot, x, row) {
    const { meta } = plot.layout;
    const { x: edges, z } = plots.pointsOf(plot)[0]?.[0] ?? {};
    if (!meta?.names || !z?.[row]) return null;
    const place = last(edges, x);
    if (place < 0 || place >= meta.firsts.length) return null;
    const first = meta.firsts[place];
    const end = first === null ? null : Math.max(first, Math.floor(step(edges[place + 1]) - 0.45));
    return { meta, row, code: z[row][place], first, last: meta.lasts[place], end, x };
  }

  // The words of a cell that holds no number.
  function specialOf({ meta, code, first }) {
    return first === null && meta.clock ? "the training stood still" : meta.special[code];
  }

  function here({ meta, first, end }) {
    if (first === null) return [];
    return meta.events.filter((event) => event.from <= end && event.to >= first).map((event) => event.text);
  }

  function stepsOf({ meta, first, last: to, x }) {
    const steps = first === null ? [] : Array.from(new Set([first, to]), (number) => number.toLocaleString("en"));
    const time = meta.clock ? new Date(x).toISOString().slice(0, 19).replace("T", " ") + " UTC" : "";
    return [steps.length ? "step " + steps.join(" to ") : "", time].filter(Boolean).join("  ·  ");
  }

  function baselineOf({ meta, row, code }) {
    const baseline = meta.baselines[row];
    if (!baseline) return "";
    const times = code in meta.special ? 0 : baseline / Math.pow(10, code / 1000);
    return (times >= LOW ? scientific(times, 2) + " times below the baseline " : "baseline ") + scientific(baseline, 2);
  }

  function linesOf(cell, value) {
    return [cell.meta.names[cell.row], stepsOf(cell), value, baselineOf(cell), ...here(cell)].filter(Boolean);
  }

  // ---- to the last digit

  function question(cell) {
    const query = new URLSearchParams({ run: cell.meta.run, stat: cell.meta.stat, first: cell.first, last: cell.end });
    for (const number of cell.meta.numbers[cell.row].slice(0, 100)) query.append("layer", number);
    return "/_cell?" + query;
  }

  function learn(cell, plot) {
    const asked = question(cell);
    const key = asked + document.querySelector(".page-state").dataset.shown; // a column may still be filled
    waiting = key;
    clearTimeout(staying);
    const tell = () => { if (waiting === key) say(linesOf(cell, cell.meta.stat + " " + known.text), plot, cell); };
    if (known.key === key) tell();
    else staying = setTimeout(async () => {
      if (waiting !== key) return;
      const answer = await fetch(asked, { cache: "no-store" }).catch(() => null); // the banner says so
      const { text } = answer?.ok ? await answer.json() : {};
      if (!text) return; // the pointer's next move asks again
      known = { key, text };
      tell();
    }, STAY_MS);
  }

  // ---- to its layer

  function open(plot, row) {
    const { layers, numbers, run } = plot.layout.meta || {};
    const name = layers?.[row];
    if (!name) return;
    const segment = /^\.*$/.test(name.trim()) ? String(numbers[row][0]) : encodeURIComponent(name);
    const kept = Array.from(new URLSearchParams(window.location.search)).filter(([key]) => ["from", "to", "x"].includes(key));
    const search = kept.length ? "?" + new URLSearchParams(kept) : "";
    window.gradcanary.open(`/runs/${encodeURIComponent(run)}/layers/${segment}${search}`);
  }

  function listen(plot) {
    if (heard.has(plot)) return;
    heard.add(plot);
    plot.on("plotly_doubleclick", () => { if (under && under.plot === plot) open(plot, under.row); });
  }

  document.addEventListener("gradcanary:pointed", (event) => {
    const at = event.detail;
    const plot = at && at.plot.closest("#heatmap, #vs-heatmap") ? at.plot : null;
    under = plot && { plot, row: at.row };
    const cell = plot && cellOf(plot, at.x, at.row);
    if (!cell) {
      waiting = null;
      say(null);
      return;
    }
    listen(plot);
    const special = specialOf(cell);
    const isSample = cell.first === cell.last;
    const value = special ?? (isSample ? cell.meta.stat : cell.meta.value) + " " + scientific(Math.pow(10, cell.code / 1000), isSample ? 3 : 2);
    const lines = linesOf(cell, value);
    say(lines, plot, cell);
    if (at.by === "key") window.gradcanary.announce(lines.join("  ·  "));
    if (special) waiting = null;
    else learn(cell, plot);
  });

  window.gradcanary.on("keydown", ".plotted", (figure, event) => {
    if (event.target !== figure || !figure.contains(under?.plot)) return;
    if (event.key === "Enter") open(under.plot, under.row);
    if (event.key === " ") {
      event.preventDefault();
      window.gradcanary.go({ layer: under.plot.layout.meta.layers[under.row] });
    }
  });
}
