/* The steps in sight: by dragging over a figure, and for fingers and keys by buttons. The address has them. */
{
  const { go, on } = window.gradcanary;
  const WHOLE = { from: null, to: null };

  function within(first, last) {
    const from = Math.max(0, Math.round(first));
    return { from: from, to: Math.max(from, Math.round(last)) };
  }

  // The first and the last step there are, and those in sight, as the address has them: a link may lead to steps that nobody
  // has yet. Null before there is a step.
  function reach() {
    const steps = document.querySelector("[data-steps]")?.dataset.steps;
    if (!steps) return null;
    const there = steps.split(" ").map(Number);
    const query = new URLSearchParams(window.location.search);
    const seen = ["from", "to"].map((key, at) => (/^\d+$/.test(query.get(key) || "") ? Number(query.get(key)) : there[at]));
    return [there, seen[0] <= seen[1] ? seen : there];
  }

  // No step beyond those there are, but for those in sight. All of them is what an address means that is silent.
  function bounded({ from, to }) {
    const reached = reach();
    if (!reached) return { from, to };
    const [[begin, end], [first, last]] = reached;
    if (from <= begin && to >= end) return WHOLE;
    return within(Math.max(from, Math.min(begin, first)), Math.min(to, Math.max(end, last)));
  }

  function moved(move) {
    const reached = reach();
    if (move === "reset" || !reached) return WHOLE;
    const [[begin, end], [first, last]] = reached;
    const width = last - first + 1;
    if (move === "in") return within(first + width / 4, first + width / 4 + Math.max(1, Math.floor(width / 2)) - 1);
    if (move === "out") return bounded(within(first - width / 2, first + width * 1.5 - 1));
    if (first <= begin && last >= end) return {};
    const by = Math.max(1, Math.round(width / 2));
    const later = Math.max(first, Math.min(first + by, end - width + 1));
    const from = move === "later" ? later : Math.min(first, Math.max(first - by, begin));
    return within(from, from + width - 1);
  }

  // An end of the axis lies between two steps; read back from a time it is a little beside.
  const SLIVER = 0.05;

  // The steps of which more than a sliver lies in a stretch of the axis; each has half a step on either side.
  function touched(left, right) {
    return within(left + SLIVER, Math.ceil(right - 0.5 - SLIVER));
  }

  // What a drag or a double click on a figure means for the address; null: nothing.
  function zoomed(change) {
    const first = change["xaxis.range[0]"];
    const last = change["xaxis.range[1]"];
    if (first !== undefined && last !== undefined) return bounded(touched(window.gradcanary.step(first), window.gradcanary.step(last)));
    return change["xaxis.autorange"] ? WHOLE : null;
  }

  on("click", "button[data-zoom]", (button) => go(moved(button.dataset.zoom)));

  // Plotly takes every touch for a zoom; a finger on a plot must still scroll the page, and a tap still clicks.
  document.addEventListener("touchstart", (event) => {
    if (event.target.closest && event.target.closest(".js-plotly-plot")) event.stopPropagation();
  }, { capture: true, passive: true });

  window.gradcanary = Object.assign(window.gradcanary || {}, { zoomed });
}
