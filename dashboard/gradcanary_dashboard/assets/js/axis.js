/* The axis that all figures of a page share: of steps, or of time, from which a clock leads back to steps. */
{
  const LEAD = "#heatmap .js-plotly-plot, #stat-absmax .js-plotly-plot";

  function clock() {
    return document.querySelector(LEAD)?.layout?.meta?.clock;
  }

  // Plotly says a date as "2026-11-20 10:00:00.123", in UTC.
  function numeric(value) {
    if (typeof value === "number" || !/^\d{4}-/.test(value)) return Number(value);
    return Date.parse(value.length > 10 ? value.replace(" ", "T") + "Z" : value);
  }

  // Index of the last of rising numbers that is not above a value; -1 where all are.
  function last(numbers, value) {
    let low = 0;
    let high = numbers.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[middle] <= value) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  function step(value) {
    const x = numeric(value);
    const told = clock();
    if (!told) return x;
    const { steps, times, pace } = told;
    const end = times.length - 1;
    if (x <= times[0]) return steps[0] + (x - times[0]) / pace;
    if (x >= times[end]) return steps[end] + (x - times[end]) / pace;
    const left = last(times, x);
    const part = (x - times[left]) / (times[left + 1] - times[left]);
    return steps[left] + part * (steps[left + 1] - steps[left]);
  }

  function words(x) {
    const text = "step " + Math.max(0, Math.round(step(x))).toLocaleString("en");
    return clock() ? text + ", " + new Date(x).toISOString().slice(0, 19).replace("T", " ") : text;
  }

  window.gradcanary = Object.assign(window.gradcanary || {}, { numeric, last, step, words });
}
