/* The page that compares runs: what its figures say at the crosshair, and the field for one more run. */
{
  // ---- where the crosshair is, every figure tells what its runs hold there

  // Plotly looks through all points for it, of each figure: not for each frame of a pointer that moves on.
  const AGAIN_MS = 100;
  const RESTS = 4; // times as long as it took

  let told = []; // the figures that do
  let at = null;
  let next = 0; // when they are told again
  let timer = null;

  function plots() {
    return Array.from(document.querySelectorAll("#compare-body .js-plotly-plot")).filter((plot) => plot.data && plot.data.length && window.gradcanary.plots.isDrawn(plot));
  }

  function tell() {
    timer = null;
    const begun = performance.now();
    const all = plots();
    const wanted = at && all.includes(at.plot) ? all.filter((plot) => plot !== at.plot || at.by !== "mouse") : [];
    for (const plot of told) if (plot.isConnected && plot !== (at && at.plot) && !wanted.includes(plot)) window.Plotly.Fx.unhover(plot);
    for (const plot of wanted) window.Plotly.Fx.hover(plot, { xval: at.x }, ["xy"]);
    told = wanted;
    const ended = performance.now();
    next = ended + Math.max(AGAIN_MS, RESTS * (ended - begun));
  }

  document.addEventListener("gradcanary:pointed", (event) => {
    at = event.detail;
    if (at === null || performance.now() >= next) {
      clearTimeout(timer);
      tell();
    } else if (timer === null) timer = setTimeout(tell, next - performance.now());
  });

  // ---- one more run

  function add(field) {
    const run = field.value.trim();
    if (!run) return;
    const query = new URLSearchParams(window.location.search);
    query.append("run", run);
    window.dash_clientside.set_props("compare-add", { value: "" });
    window.gradcanary.move("?" + query);
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "compare-add") add(event.target);
  });

  document.addEventListener("input", (event) => {
    // A name chosen from the list, which is not yet a change of the field.
    if (event.target.id === "compare-add" && event.inputType === "insertReplacementText") add(event.target);
  });
}
