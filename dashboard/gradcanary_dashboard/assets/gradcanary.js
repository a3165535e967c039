/* What the browser does by itself: the question of each second, the theme, the URL.
   Names come from trainings: they are only ever written with textContent. */
(function () {
  "use strict";

  const { go, page, atRest } = window.gradcanary;
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

  // ---- what buttons choose

  // What a choice makes meaningless: steps that were counted from elsewhere.
  function cleared(button) {
    return Object.fromEntries((button.dataset.clears || "").split(" ").filter(Boolean).map((key) => [key, null]));
  }

  // ---- steps in sight: by dragging, and for fingers and keys by buttons

  const WHOLE = { from: null, to: null };

  function within(first, last) {
    const from = Math.max(0, Math.round(first));
    return { from: from, to: Math.max(from, Math.round(last)) };
  }

  // The first and the last step there are; nothing before there is one.
  function reached() {
    const steps = document.getElementById(page() + "-moves")?.dataset.steps;
    return steps ? steps.split(" ").map(Number) : null;
  }

  // The first and the last step in sight, as the address has them; a link may lead to steps that nobody has yet.
  function inSight([begin, end]) {
    const query = new URLSearchParams(window.location.search);
    const [first, last] = [["from", begin], ["to", end]].map(([key, all]) => (/^\d+$/.test(query.get(key) || "") ? Number(query.get(key)) : all));
    return first <= last ? [first, last] : [begin, end];
  }

  // No step beyond those there are, but for those in sight. All of them is what an address means that is silent.
  function bounded({ from, to }) {
    const there = reached();
    if (!there) return { from, to };
    const [begin, end] = there;
    const [first, last] = inSight(there);
    if (from <= begin && to >= end) return WHOLE;
    return within(Math.max(from, Math.min(begin, first)), Math.min(to, Math.max(end, last)));
  }

  function moved(move) {
    const there = reached();
    if (move === "reset" || !there) return WHOLE;
    const [begin, end] = there;
    const [first, last] = inSight(there);
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

  // The controls follow the address (back, forward), the field never while one types.
  function showAxis() {
    const query = new URLSearchParams(window.location.search);
    for (const control of document.querySelectorAll("select[data-key], button[data-key]")) {
      const wanted = query.get(control.dataset.key) || "";
      if (control.tagName === "SELECT") control.value = wanted;
      else control.setAttribute("aria-pressed", String(control.dataset.choice === wanted));
    }
  }

  // Each is named by what it says in the address.
  const FIELDS = ["rows", "metrics"];

  function typedInto(name) {
    const field = document.getElementById(name);
    const wanted = new URLSearchParams(window.location.search).get(name) || "";
    return document.activeElement === field || field.value === wanted ? window.dash_clientside.no_update : wanted;
  }

  function showChoices() {
    showAxis();
    return typedInto("rows");
  }

  function showSought() {
    return typedInto("metrics");
  }

  // The way one is on; a run's page is reached from the list of runs.
  function showWay() {
    const root = "/" + window.location.pathname.split("/")[1];
    for (const way of document.querySelectorAll("#ways a")) {
      const href = way.getAttribute("href");
      if (href === root || (href === "/" && root === "/runs")) way.setAttribute("aria-current", "page");
      else way.removeAttribute("aria-current");
    }
  }

  function setTitle(title) {
    if (title) document.title = title + " · gradcanary";
    showWay();
    window.gradcanary.arrive();
  }

  // ---- the dashboard's own server: asked each second; when it is gone, nobody but the browser can say so

  const PATIENCE_MS = 20000; // who does not answer in that time is not there: a machine that hangs, a tunnel that is cut
  const AGAIN_MS = 1000; // a page that did not open is asked for again

  let awaited = 0;

  function showLink(connected) {
    const banner = document.getElementById("offline");
    if (!banner || banner.hidden === connected) return;
    banner.hidden = connected;
    document.querySelector("#link .word").textContent = connected ? "connected" : "not connected";
    root.dataset.link = connected ? "up" : "down";
  }

  function answered() {
    awaited -= 1;
  }

  // A change may take its time, a test message ten seconds.
  function isQuestion({ method = "GET", reads = false }) {
    return reads || method === "GET";
  }

  // The question of Dash that a page is opened by.
  function isOpening({ body }) {
    return typeof body === "string" && body.includes('"output":"..main.children');
  }

  const plainFetch = window.fetch;

  function ask(resource, options) {
    const limit = isQuestion(options) || isOpening(options) ? { signal: AbortSignal.timeout(PATIENCE_MS) } : {};
    return plainFetch(resource, { ...limit, ...options }).then(
      (response) => {
        // The visit has ended, here or elsewhere.
        if (response.status === 401) {
          const here = window.location.pathname + window.location.search;
          window.location.assign("/sign-in?next=" + encodeURIComponent(here));
        }
        showLink(response.status < 500);
        return response;
      },
      (error) => { showLink(false); throw error; },
    );
  }

  // Dash asks for a page once, and nobody else would. Until the reader goes elsewhere.
  async function open(resource, options) {
    const { href } = window.location;
    for (;;) {
      const response = await ask(resource, options).catch((error) => error);
      const isThere = response instanceof Response && ![502, 503, 504].includes(response.status);
      if (isThere) return response;
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
      if (window.location.href !== href) throw response;
    }
  }

  window.fetch = function (resource, options = {}) {
    if (!isQuestion(options) && !isOpening(options)) return ask(resource, options);
    awaited += 1;
    const asked = isOpening(options) ? open(resource, options) : ask(resource, options);
    asked.then((response) => response.clone().arrayBuffer()).then(answered, answered);
    return asked;
  };

  function askNews(path, search, shown) {
    const question = { method: "POST", body: JSON.stringify({ path, search, shown }), reads: true };
    return window.fetch("/_refresh", question).then((answer) => (answer.status === 200 ? answer.json() : null));
  }

  // ---- cells of heatmaps: an answer holds the columns that are new

  const PICTURES = 4;
  const pictures = new Map(); // the digest of a figure -> its cells

  function cellsOf(data) {
    return new Int16Array(Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0)).buffer);
  }

  function written(cells) {
    const bytes = new Uint8Array(cells.buffer);
    let text = "";
    for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode.apply(null, bytes.subarray(at, at + 32768));
    return btoa(text);
  }

  function joined(known, rows, columns, kept, added) {
    const width = known.length / rows;
    const cells = new Int16Array(rows * columns);
    for (let row = 0; row < rows; row += 1) {
      cells.set(known.subarray(row * width, row * width + kept), row * columns);
      cells.set(added.subarray(row * (columns - kept), (row + 1) * (columns - kept)), row * columns + kept);
    }
    return cells;
  }

  // Makes the heatmaps of an answer whole; false where what they go on from is not known here.
  function complete(slots, before, now) {
    for (const [id, figure] of Object.entries(slots)) {
      const trace = figure && figure.data && figure.data[0];
      const z = trace && trace.type === "heatmap" && trace.z;
      if (!z || !z.bdata && z.kept === undefined) continue;
      let cells = cellsOf(z.bdata);
      if (z.kept !== undefined) {
        const known = pictures.get(before[id]);
        if (!known) return false;
        const [rows, columns] = z.shape.split(",").map(Number);
        cells = joined(known, rows, columns, z.kept, cells);
        trace.z = { dtype: z.dtype, bdata: written(cells), shape: z.shape };
      }
      pictures.delete(now[id]);
      pictures.set(now[id], cells);
      if (pictures.size > PICTURES) pictures.delete(pictures.keys().next().value);
    }
    return true;
  }

  function slotsOf(shown) {
    return (shown && JSON.parse(shown).slots) || {};
  }

  // What a page lacks, whole: who has the beginning of a picture no more asks as if it had nothing.
  function askWhole(path, search, shown) {
    return askNews(path, search, shown).then((answer) => {
      if (!answer || complete(answer.slots, slotsOf(shown), slotsOf(answer.slots[answer.page + "-heart"]))) return answer;
      return askWhole(path, search, JSON.stringify({ ...JSON.parse(shown), version: "", slots: {} }));
    });
  }

  let latest = null; // the question that was asked last, in its words, and the answer to come

  // Who chooses something asks at once; Dash, which takes a while to hear of it, and the next beat get that answer.
  function askOnce(path, search, shown) {
    const words = [path, search, shown].join("\n");
    if (!latest || latest.words !== words || (latest.taken && !isBeingFilled(latest))) {
      const asked = { words, answer: askWhole(path, search, shown) };
      asked.answer.catch(() => forget(asked));
      latest = asked;
    }
    return latest;
  }

  // Until Dash has put an answer into the page, that page still says what it had.
  function isBeingFilled(asked) {
    return Boolean(asked.taken) && performance.now() - asked.taken < LONGEST_MS;
  }

  function forget(asked) {
    if (latest === asked) latest = null;
  }

  function askAhead(search) {
    const heart = document.querySelector(".heart");
    if (heart) askOnce(window.location.pathname, search, heart.dataset.shown || "");
  }

  const BEAT_MS = 1000;
  const LONGEST_MS = 5000;

  let due = 0; // when this page asks next

  // While an answer is awaited nobody asks again, and then not for half as long as it took: a slow collector gets fewer
  // questions, not a queue of them.
  function beat() {
    const heart = document.querySelector(".heart");
    const began = performance.now();
    if (!heart || awaited || document.hidden || began < due) return;
    const { pathname, search } = window.location;
    const shown = heart.dataset.shown || "";
    due = began + BEAT_MS;
    const asked = askOnce(pathname, search, shown);
    if (isBeingFilled(asked)) return;
    asked.answer.then((answer) => {
      due = Math.max(due, began + Math.min(LONGEST_MS, 1.5 * (performance.now() - began)));
      // The reader may be on another page by now, that of another run, too.
      const isWanted = answer && heart.isConnected && window.location.pathname === pathname;
      if (!isWanted) forget(asked);
      else if (latest === asked) window.dash_clientside.set_props(heart.id, { "data-news": Date.now() });
    }, () => { /* the banner says so */ });
  }

  // Fills a page, by one answer: what it leaves out is what the page has, as its question said.
  async function refresh(news, chosen, held, path) {
    const outputs = window.dash_clientside.callback_context.outputs_list;
    const [search, shown] = [chosen || "", held || ""];
    const asked = askOnce(path, search, shown);
    const answer = await asked.answer.catch(() => null);
    if (answer) asked.taken = performance.now();
    else forget(asked);
    // Nothing is new, or the reader has left meanwhile, for another run of the same kind of page, too.
    const isHere = () => window.location.pathname === path && document.getElementById(answer.page + "-heart");
    if (!answer) await window.gradcanary.drawFirst({}, false);
    if (!answer || !isHere() || !outputs.some(({ id }) => id === answer.page + "-heart")) throw window.dash_clientside.PreventUpdate;
    const figures = outputs.filter(({ id, property }) => property === "data-figure" && id in answer.slots);
    const drawn = Object.fromEntries(figures.map(({ id }) => [id, answer.slots[id]]));
    const texts = await window.gradcanary.drawFirst(drawn, latest === asked);
    if (!isHere()) throw window.dash_clientside.PreventUpdate;
    const filled = { ...answer.slots, ...texts };
    return outputs.map(({ id }) => (id in filled ? filled[id] : window.dash_clientside.no_update));
  }

  // Whoever comes back to a tab sees what is now, and not what was until the next second.
  document.addEventListener("visibilitychange", () => {
    due = 0;
    beat();
  });

  // ---- clicks

  // Over plain HTTP from another machine browsers have no clipboard for pages, but for what is selected.
  function copied(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "unseen";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return Promise.resolve(done);
  }

  function copy(button) {
    copied(button.dataset.copy).then((done) => {
      const word = button.querySelector(".word");
      word.textContent = done ? "Copied" : "Select it";
      setTimeout(() => { word.textContent = "Copy"; }, 1500);
    });
  }

  function switchTheme() {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("gradcanary-theme", root.dataset.theme); } catch (error) { /* not remembered */ }
  }

  // One that toggles takes its choice back when it is pressed already.
  function chosen(button) {
    const isBack = "toggles" in button.dataset && button.getAttribute("aria-pressed") === "true";
    return isBack ? null : button.dataset.choice;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") switchTheme();
    else if (button.dataset.layer) go({ layer: button.dataset.layer });
    else if (button.dataset.zoom) go(moved(button.dataset.zoom));
    else if (button.dataset.key) go({ ...cleared(button), [button.dataset.key]: chosen(button) });
    else if (button.dataset.copy) copy(button);
  });

  document.addEventListener("input", ({ target: field }) => {
    if (!FIELDS.includes(field.id)) return;
    atRest(field, 400, () => go({ [field.id]: field.value }));
  });

  document.addEventListener("change", (event) => {
    if (event.target.tagName === "SELECT" && event.target.dataset.key) {
      go({ [event.target.dataset.key]: event.target.value });
    }
  });

  // ---- focus: a refresh puts new elements into the page; whoever uses keys stays where they were, also behind a dialog

  let focused = null;

  function nameOf(element) {
    return [element.tagName, element.getAttribute("aria-label"), element.textContent].join("|");
  }

  document.addEventListener("focusin", (event) => {
    if (event.target.closest("dialog")) return; // what had the focus gets it back when the dialog closes
    const slot = event.target.closest("main [id]:not(a, button)");
    focused = slot && { element: event.target, slot: slot.id, name: nameOf(event.target), href: event.target.href };
  });

  document.addEventListener("focusout", (event) => {
    setTimeout(() => {
      // Behind another window the element stays the active one.
      const isLeft = focused && focused.element === event.target && event.target.isConnected && event.target !== document.activeElement;
      if (isLeft && !document.querySelector("dialog[open]")) focused = null;
    });
  });

  new MutationObserver(() => {
    if (!focused || focused.element.isConnected || document.activeElement !== document.body) return;
    const slot = document.getElementById(focused.slot);
    if (!slot) return;
    const alike = Array.from(slot.querySelectorAll("a, button, summary")).filter((one) => nameOf(one) === focused.name);
    // A run and its open incidents are links with the same words.
    const again = alike.find((one) => one.href === focused.href) || alike[0];
    if (again) again.focus({ preventScroll: true });
  }).observe(document.documentElement, { childList: true, subtree: true });

  // Plotly takes every touch for a zoom; a finger on a plot must still scroll the page, and a tap still clicks.
  document.addEventListener("touchstart", (event) => {
    if (event.target.closest && event.target.closest(".js-plotly-plot")) event.stopPropagation();
  }, { capture: true, passive: true });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (system) => {
    let kept = null;
    try { kept = localStorage.getItem("gradcanary-theme"); } catch (error) { /* follow the system */ }
    if (!kept) root.dataset.theme = system.matches ? "dark" : "light";
  });

  window.gradcanary = Object.assign(window.gradcanary || {}, { zoomed, copied, askAhead });

  setInterval(wordTimes, 500);
  setInterval(beat, BEAT_MS / 10);

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    gradcanary: { refresh, show_choices: showChoices, show_sought: showSought, show_axis: showAxis, title: setTitle },
  });
})();
