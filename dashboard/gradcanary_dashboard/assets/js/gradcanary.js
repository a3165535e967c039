/* What every page does by itself: times in words, its title, the clipboard, the theme. */
{
  const { go, on, onChange } = window.gradcanary;
  const root = document.documentElement;

  // ---- times

  function span(seconds) {
    if (seconds < 120) return seconds + " s";
    if (seconds < 7200) return Math.round(seconds / 60) + " min";
    if (seconds < 172800) return Math.round(seconds / 3600) + " h";
    return Math.round(seconds / 86400) + " days";
  }

  // A clock that is a little ahead of this one means no future.
  function ago(then) {
    const seconds = Math.round((Date.now() - then) / 1000);
    if (seconds < -60) return "in " + span(-seconds);
    return seconds < 2 ? "just now" : span(seconds) + " ago";
  }

  function wordTimes() {
    for (const element of document.querySelectorAll("time[datetime]")) {
      const then = Date.parse(element.getAttribute("datetime"));
      const text = ago(then);
      if (!Number.isNaN(then) && element.textContent !== text) element.textContent = text;
    }
  }

  // ---- a page that opens

  // The way one is on; a run's page is reached from the list of runs.
  function showWay() {
    const root = "/" + window.location.pathname.split("/")[1];
    for (const way of document.querySelectorAll("#ways a")) {
      const href = way.getAttribute("href");
      way.ariaCurrent = href === root || (href === "/" && root === "/runs") ? "page" : null;
    }
  }

  function setTitle(title) {
    if (title) document.title = title + " · gradcanary";
    showWay();
    arrive();
  }

  let isFirst = true;

  // A new page begins at its top and has the focus; the first one the browser announces.
  function arrive() {
    const main = document.getElementById("main");
    const isFree = !main.contains(document.activeElement) && !document.querySelector("dialog[open]");
    if (!isFirst && isFree) main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
    isFirst = false;
  }

  // ---- clicks

  // Says on the button what came of it, for a while. Over plain HTTP from another machine pages have no clipboard.
  async function copy(button, text, otherwise) {
    const word = button.querySelector(".word");
    word.dataset.before = word.dataset.before || word.textContent; // it may say "Copied" still
    const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false);
    word.textContent = isCopied ? "Copied" : otherwise;
    setTimeout(() => { word.textContent = word.dataset.before; }, 1500);
  }

  function switchTheme() {
    const theme = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("gradcanary-theme", root.dataset.theme); } catch (error) { /* not remembered */ }
  }

  on("click", "#theme", switchTheme);
  on("click", "button[data-layer]", (button) => go({ layer: button.dataset.layer }));
  on("click", "button[data-copy]", (button) => copy(button, button.dataset.copy, "Select it"));

  window.gradcanary = Object.assign(window.gradcanary || {}, { copy });

  setInterval(wordTimes, 500);
  onChange(wordTimes); // before the browser paints what a refresh wrote

  window.dash_clientside = Object.assign({}, window.dash_clientside, { gradcanary: { title: setTitle } });
}
