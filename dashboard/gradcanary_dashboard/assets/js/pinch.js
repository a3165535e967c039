/* Two fingers on a figure zoom its steps: what was under each of them is under it again. */
(function () {
  "use strict";

  const fingers = new Map(); // pointer -> { plot, from: where on the axis, began, at: pixels from its left }
  const LEAST_PIXELS = 24; // between two fingers: nearer ones say nothing
  const REST_PIXELS = 4; // fingers that lie still tremble

  function pixel(plot, event) {
    return event.clientX - plot.getBoundingClientRect().left - plot._fullLayout._size.l;
  }

  function pressed(event) {
    const plot = event.pointerType === "touch" && event.target.closest && event.target.closest("main .js-plotly-plot");
    if (!plot || !plot._fullLayout || !plot._fullLayout.xaxis) return;
    const at = pixel(plot, event);
    fingers.set(event.pointerId, { plot, at, began: at, from: plot._fullLayout.xaxis.p2l(at) });
  }

  function moved(event) {
    const finger = fingers.get(event.pointerId);
    if (finger) finger.at = pixel(finger.plot, event);
  }

  // The axis on which what was under the fingers is where they are now.
  function range([one, other]) {
    const each = (other.from - one.from) / (other.at - one.at);
    const left = one.from - one.at * each;
    return [left, left + one.plot._fullLayout._size.w * each];
  }

  function zoom(pair) {
    const [one, other] = pair;
    if (one.plot !== other.plot || Math.abs(one.at - other.at) < LEAST_PIXELS) return;
    if (pair.every((finger) => Math.abs(finger.at - finger.began) <= REST_PIXELS)) return;
    const [left, right] = range(pair);
    if (!(right > left)) return; // they crossed, or began at one place
    const changes = window.gradcanary.zoomed({ "xaxis.range[0]": left, "xaxis.range[1]": right });
    if (changes) window.gradcanary.go(changes);
  }

  function lifted(event) {
    if (fingers.has(event.pointerId) && fingers.size === 2) zoom(Array.from(fingers.values()));
    fingers.clear();
  }

  document.addEventListener("pointerdown", pressed, { capture: true, passive: true });
  document.addEventListener("pointermove", moved, { capture: true, passive: true });
  document.addEventListener("pointerup", lifted, { capture: true, passive: true });
  document.addEventListener("pointercancel", () => fingers.clear(), { capture: true, passive: true });
})();
