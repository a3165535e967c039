/* The heatmap under a pointer: what a cell is called and holds, to the last digit once one stays; its layer's page. */
{
  const STAY_MS = 150;
  const heard = new WeakSet();

  let known = {}; // the cell that was asked for last, and its exact value
  let waiting = null;
  let staying = null; // the timer of a pointer that may stay
  let under = null; // { plot, row }

  // Without a text the place says what one may do.
  function say(text) {
    const place = document.getElementById("readout");
    if (place) place.textContent = text || place.dataset.idle;
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
    const codes = window.gradcanary.plots.pointsOf(plot)[0]?.[0]?.z?.[row];
    if (!meta?.names || !codes) return null;
    const place = meta.edges ? window.gradcanary.last(meta.edges, x) : Math.round((x - meta.middle) / meta.width);
    if (place < 0 || place >= codes.length) return null;
    const column = meta.columns ? meta.columns[place] : place;
    const first = column < 0 ? null : meta.first + column * meta.width;
    return { meta, row, code: codes[place], column, first, x };
  }

  // The words of a cell that holds no number.
  function specialOf({ meta, code, column }) {
    if (column < 0) return "the training stood still";
    return { [meta.zero]: "exact 0", [meta.no_data]: "no data", [meta.nonfinite]: "not finite" }[code];
  }

  function here({ meta, first }) {
    if (first === null) return [];
    return meta.events.filter((event) => event.from < first + meta.bucket && event.to >= first).map((event) => event.text);
  }

  function sentence(cell, value) {
    const steps = cell.column < 0 ? "" : "step " + cell.meta.steps[cell.column];
    const time = cell.meta.edges ? new Date(cell.x).toISOString().slice(0, 19).replace("T", " ") + " UTC" : "";
    return [cell.meta.names[cell.row], steps, time, value, ...here(cell)].filter(Boolean).join("  ·  ");
  }

  // ---- to the last digit

  function question(cell) {
    const query = new URLSearchParams({ run: runOf(), stat: cell.meta.stat, first: cell.first, last: cell.first + cell.meta.bucket - 1 });
    for (const number of cell.meta.numbers[cell.row].slice(0, 100)) query.append("layer", number);
    return "/_cell?" + query;
  }

  function runOf() {
    return decodeURIComponent(window.location.pathname.split("/")[2] || "");
  }

  function learn(cell) {
    const asked = question(cell);
    const key = asked + document.querySelector(".page-state").dataset.shown; // a column may still be filled
    waiting = key;
    clearTimeout(staying);
    const tell = () => { if (waiting === key) say(sentence(cell, cell.meta.stat + " " + known.text)); };
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
    const { layers, numbers } = plot.layout.meta || {};
    const name = layers?.[row];
    if (!name) return;
    const segment = /^\.*$/.test(name.trim()) ? String(numbers[row][0]) : encodeURIComponent(name);
    const kept = Array.from(new URLSearchParams(window.location.search)).filter(([key]) => ["from", "to", "x"].includes(key));
    const search = kept.length ? "?" + new URLSearchParams(kept) : "";
    window.gradcanary.open(`/runs/${encodeURIComponent(runOf())}/layers/${segment}${search}`);
  }

  function listen(plot) {
    if (heard.has(plot)) return;
    heard.add(plot);
    plot.on("plotly_doubleclick", () => { if (under && under.plot === plot) open(plot, under.row); });
  }

  document.addEventListener("gradcanary:pointed", (event) => {
    const at = event.detail;
    const plot = at && at.plot.closest("#heatmap") ? at.plot : null;
    under = plot && { plot, row: at.row };
    const cell = plot && cellOf(plot, at.x, at.row);
    if (!cell) {
      waiting = null;
      say(null);
      return;
    }
    listen(plot);
    const special = specialOf(cell);
    const text = sentence(cell, special ?? cell.meta.value + " " + scientific(Math.pow(10, cell.code / 1000), cell.meta.digits));
    say(text);
    if (at.by === "key") window.gradcanary.announce(text);
    if (special) waiting = null;
    else learn(cell);
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
