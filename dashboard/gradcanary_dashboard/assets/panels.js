/* The metrics of a run: a card each, whose figure is asked for when it comes into sight, and again when there is news.
   Names and tags come from trainings: they are only ever written with textContent. */
(function () {
  "use strict";

  const { element } = window.gradcanary;
  const FEW = 12; // more lines than these get a field to find some
  const AGAIN_MS = 2000; // after a question that nobody answered
  const SHOWN = 60; // entries of a legend at a time

  const cards = new Map(); // key -> { element, plot, legend, note, found, of, sought }
  const inSight = new Set();
  let told = { panels: [] };
  let text = null;
  let filled = {}; // what the page was filled with last, and the query of that
  let box = null; // the element that holds the cards
  let sent = 0;

  function icon(name) {
    return element("span", { class: "icon icon-" + name, "aria-hidden": "true" });
  }

  // ---- cards

  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) inSight.add(entry.target.dataset.key);
      else inSight.delete(entry.target.dataset.key);
    }
    load();
  }, { rootMargin: "600px 0px" });

  function newCard(panel) {
    const id = panel.key + "-title";
    const note = element("div", { class: "aside" });
    const plot = element("div", { class: "plot", "data-says": "Loading ...", style: `min-height: ${panel.height}px` });
    const holder = element("div", { id: panel.key }, plot);
    const save = element("button", { type: "button", class: "save", title: "Save as PNG", "data-share": "picture" }, icon("save"));
    save.setAttribute("aria-label", "Save as a picture: " + panel.title);
    const table = element("a", { class: "save", title: "Every point of these lines, of the steps in sight", download: "" }, icon("save"), "CSV");
    table.setAttribute("aria-label", "CSV: " + panel.title);
    const saves = element("div", { class: "saves" }, table, save);
    const figure = element("figure", { class: "plotted", tabindex: "0", "aria-label": panel.title + " over the steps" }, holder, saves);
    const legend = element("div", { class: "whose" });
    const head = element("div", { class: "head" }, element("h2", { id }, panel.title), note);
    const card = element("section", { class: "card panel", "aria-labelledby": id, "data-key": panel.key }, head, figure, legend);
    watch.observe(card);
    return { element: card, plot, legend, note, table, of: null, sought: "" };
  }

  function remove(key) {
    const card = cards.get(key);
    watch.unobserve(card.element);
    if (window.Plotly && card.plot._fullLayout) window.Plotly.purge(card.plot);
    card.element.remove();
    cards.delete(key);
    inSight.delete(key);
  }

  function arrange() {
    const wanted = new Set(told.panels.map((panel) => panel.key));
    for (const key of Array.from(cards.keys())) if (!wanted.has(key)) remove(key);
    let next = box.firstElementChild;
    for (const panel of told.panels) {
      if (!cards.has(panel.key)) cards.set(panel.key, newCard(panel));
      const card = cards.get(panel.key);
      if (card.element === next) next = next.nextElementSibling;
      else box.insertBefore(card.element, next);
      if (!card.note.dataset.last) card.note.textContent = panel.words;
      card.words = panel.words;
    }
    let more = box.querySelector(":scope > .more");
    if (told.more && !more) more = box.appendChild(element("p", { class: "dim more" }));
    if (more) more.textContent = told.more;
  }

  // ---- figures

  function wanted() {
    return told.run + "|" + told.revision + "|" + window.location.search;
  }

  // What is looked at comes first: the heatmap of an address, then its metrics.
  function isFilled() {
    const heart = document.querySelector(".heart");
    const shown = heart && heart.dataset.shown;
    if (!shown) return false;
    if (shown !== filled.shown) filled = { shown, chosen: JSON.parse(shown).chosen };
    return filled.chosen === window.location.search;
  }

  function load() {
    const now = wanted();
    ask(Array.from(inSight).filter((key) => cards.has(key) && cards.get(key).of !== now && cards.get(key).asked !== now));
  }

  // Once a page is at rest it is completed, a few figures at a time: to be printed, and for a fast wheel.
  function complete() {
    const asked = Array.from(cards.values()).some((card) => card.asked && card.asked !== card.of);
    if (!asked && !document.hidden) ask(Array.from(cards.keys()).filter((key) => !cards.get(key).asked).slice(0, 4));
  }

  function ask(missing) {
    if (!missing.length || !box || !box.isConnected || !isFilled()) return;
    if (!window.Plotly) {
      window.gradcanary.plotly().then(load, () => { /* asked for again at the next load */ });
      return;
    }
    const now = wanted();
    const of = { run: told.run, search: window.location.search };
    const query = new URLSearchParams(of);
    for (const key of missing) {
      query.append("key", key);
      cards.get(key).asked = now;
    }
    const number = ++sent;
    fetch("/_metrics?" + query, { cache: "no-store" }).then((answer) => (answer.ok ? answer.json() : Promise.reject(answer))).then(({ panels }) => {
      for (const panel of panels) draw(panel, now, number, of);
    }).catch(() => {
      for (const key of missing) if (cards.has(key)) cards.get(key).plot.dataset.says = "The collector does not answer; asked again soon.";
      setTimeout(() => {
        for (const key of missing) if (cards.has(key)) cards.get(key).asked = null;
      }, AGAIN_MS);
    });
  }

  function draw(panel, of, number, question) {
    if (question.run !== told.run) return; // the reader has gone on to another one
    try {
      show(panel, of, number, question);
    } catch (error) {
      console.error(error); // one that cannot be drawn keeps no other waiting
    }
  }

  function show(panel, of, number, question) {
    const card = cards.get(panel.key);
    if (!card || (card.number || 0) > number) return; // a later question was answered sooner
    Object.assign(card, { of, number, found: panel });
    card.table.href = "/_download/metrics?" + new URLSearchParams({ ...question, key: panel.key });
    delete card.plot.dataset.says;
    window.gradcanary.react(card.plot, panel.figure);
    card.note.dataset.last = "1";
    card.note.textContent = [card.words, panel.scale, panel.last].filter(Boolean).join(" · ");
    drawLegend(card);
  }

  // ---- legends

  function drawLegend(card) {
    const { legend, found } = card;
    const isLong = found.legend.length > FEW;
    if (isLong && !legend.querySelector("input")) legend.append(field(card));
    const sought = card.sought.toLowerCase();
    const matching = found.legend.filter((line) => line.text.toLowerCase().includes(sought));
    const ranked = [...matching.filter((line) => line.drawn), ...matching.filter((line) => !line.drawn)];
    const list = element("div", { class: "list", role: "group", "aria-label": "Lines" }, ...ranked.slice(0, SHOWN).map(entry));
    const left = found.of - Math.min(ranked.length, SHOWN);
    if (isLong) list.append(element("span", { class: "dim" }, tally(found, ranked.length, left)));
    replace(legend, list);
  }

  function tally(found, matching, left) {
    const drawn = found.legend.filter((line) => line.drawn).length;
    return `${drawn} of ${found.of} lines drawn` + (left > 0 ? `, ${left} not listed` : "");
  }

  // The one that has the focus keeps it.
  function replace(legend, list) {
    const before = legend.querySelector(".list");
    const focused = before && before.contains(document.activeElement) ? document.activeElement.dataset.line : null;
    const scrolled = before ? before.scrollTop : 0;
    if (before) before.replaceWith(list);
    else legend.append(list);
    list.scrollTop = scrolled;
    const again = focused && list.querySelector(`[data-line="${CSS.escape(focused)}"]`);
    if (again) again.focus({ preventScroll: true });
  }

  function field(card) {
    const input = element("input", { type: "search", placeholder: "find lines: host=node-01", autocomplete: "off", spellcheck: "false", "aria-label": "Find lines of " + card.element.querySelector("h2").textContent });
    input.addEventListener("input", () => {
      card.sought = input.value;
      drawLegend(card);
    });
    return input;
  }

  function entry(line) {
    const swatch = element("span", { class: "stroke " + (line.dash || "none"), "aria-hidden": "true" });
    if (line.colour) swatch.style.borderColor = line.colour;
    const name = element("span", { class: "name" }, line.text);
    const last = element("span", { class: "value" }, line.last || "");
    last.dataset.last = line.last || "";
    if (line.drawn === undefined) return element("span", { class: "line", ...(line.id ? { "data-line": line.id } : {}) }, ...(line.colour ? [swatch] : []), name, last);
    const title = "Shift and click: only this line";
    return element("button", { type: "button", class: "line", "data-line": line.id, "aria-pressed": String(line.drawn), title }, swatch, name, last);
  }

  // What is drawn is in the address: an id of ten digits each, of all panels. Of one whose last line is switched off it
  // says so: an address that is silent of a panel means its first lines.
  function choose(card, id, isOnly) {
    const mine = card.found.legend;
    const drawn = mine.filter((line) => line.drawn).map((line) => line.id);
    const now = isOnly ? [id] : drawn.includes(id) ? drawn.filter((each) => each !== id) : [...drawn, id];
    if (!now.length) now.push(card.found.none);
    const all = new Set([card.found.none, ...mine.map((line) => line.id)]);
    const query = new URLSearchParams(window.location.search);
    const others = (query.get("lines") || "").split(",").filter((each) => each && !all.has(each));
    window.gradcanary.go({ lines: [...others, ...now].join(",") });
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".panel button.line");
    const card = button && cards.get(button.closest(".panel").dataset.key);
    if (card) choose(card, button.dataset.line, event.shiftKey);
  });

  // ---- news: the list of metrics, the revision, the address

  function look() {
    const found = document.getElementById("panels");
    if (found !== box) {
      for (const key of Array.from(cards.keys())) remove(key);
      box = found;
      text = null;
    }
    const now = box && box.dataset.panels;
    if (now && now !== text) {
      text = now;
      told = JSON.parse(now);
      arrange();
    }
    load();
  }

  new MutationObserver(look).observe(document.documentElement, {
    childList: true,
    subtree: true,
    attributes: true,
    attributeFilter: ["data-panels", "data-shown"],
  });
  setInterval(complete, 1500);
  setInterval(load, 500); // the address changes without an event, and Plotly comes when it comes
})();
