/* The metrics of a run: a card each, whose figure is asked for when it comes into sight, and again when there is news.
   Names and tags come from trainings: they are only ever text and the values of attributes. */
{
  const { draw, go, on, onAttribute, onChange, onMove, plots } = window.gradcanary;
  const FEW = 12; // more lines than these get a field to find some
  const AGAIN_MS = 2000; // after a question that nobody answered
  const AT_ONCE = 4; // figures that a page at rest asks for
  const SHOWN = 60; // entries of a legend at a time

  const cards = new Map(); // key -> { element, words, asked, of, number, found, sought }
  const inSight = new Set(); // keys
  let told = { panels: [] };
  let filled = {}; // what the page was filled with last, and the query of that
  let box = null; // the element that holds the cards
  let sent = 0;

  // ---- cards

  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting) inSight.add(target.dataset.key);
      else inSight.delete(target.dataset.key);
    }
    load();
  }, { rootMargin: "600px 0px" });

  const ICON = ["span", { class: "icon icon-save", "aria-hidden": "true" }];

  function treeOf({ key, title, height }) {
    const plot = ["div", { class: "plot", "data-says": "Loading ...", style: `min-height: ${height}px` }];
    const held = "Every point of these lines, of the steps in sight";
    const table = ["a", { class: "save", title: held, download: "", "aria-label": "CSV: " + title }, ICON, "CSV"];
    const words = { title: "Save as PNG", "aria-label": "Save as a picture: " + title };
    const picture = ["button", { type: "button", class: "save", "data-share": "picture", ...words }, ICON];
    const figure = { class: "plotted", tabindex: "0", "aria-label": title + " over the steps" };
    return [
      "section", { class: "card panel", "aria-labelledby": key + "-title", "data-key": key },
      ["div", { class: "head" }, ["h2", { id: key + "-title" }, title], ["div", { class: "aside" }]],
      ["figure", figure, ["div", { id: key }, plot], ["div", { class: "saves" }, table, picture]],
      ["div", { class: "whose" }],
    ];
  }

  function part(card, name) {
    return card.element.querySelector(name);
  }

  function remove(key) {
    const { element } = cards.get(key);
    const plot = element.querySelector(".plot");
    watch.unobserve(element);
    if (window.Plotly && plots.isDrawn(plot)) window.Plotly.purge(plot);
    cards.delete(key);
    inSight.delete(key);
  }

  function arrange() {
    const wanted = new Set(told.panels.map((panel) => panel.key));
    for (const key of Array.from(cards.keys())) if (!wanted.has(key)) remove(key);
    draw(box, [...told.panels.map(treeOf), ...(told.more ? [["p", { class: "dim more" }, told.more]] : [])]);
    told.panels.forEach(({ key, words }, place) => {
      const element = box.children[place];
      if (!cards.has(key)) cards.set(key, { element, sought: "" });
      cards.get(key).words = words;
      watch.observe(element);
      writeNote(cards.get(key));
    });
  }

  function writeNote(card) {
    const { scale, last } = card.found || {};
    part(card, ".aside").textContent = [card.words, scale, last].filter(Boolean).join(" · ");
  }

  // ---- figures

  function wanted() {
    return told.run + "|" + told.revision + "|" + window.location.search;
  }

  // What is looked at comes first: the heatmap of an address, then its metrics.
  function isFilled() {
    const state = document.querySelector(".page-state");
    const shown = state && state.dataset.shown;
    if (!shown) return false;
    if (shown !== filled.shown) filled = { shown, chosen: JSON.parse(shown).chosen };
    return filled.chosen === window.location.search;
  }

  function load() {
    const now = wanted();
    ask(Array.from(inSight).filter((key) => cards.has(key) && cards.get(key).of !== now && cards.get(key).asked !== now));
  }

  // Once a page is at rest it is completed, a few figures at a time, for a fast wheel.
  function complete() {
    const isAsked = Array.from(cards.values()).some((card) => card.asked && card.asked !== card.of);
    if (!isAsked && !document.hidden) ask(Array.from(cards.keys()).filter((key) => !cards.get(key).asked).slice(0, AT_ONCE));
  }

  function ask(missing) {
    if (!missing.length || !box || !box.isConnected || !isFilled()) return;
    if (!window.Plotly) {
      window.gradcanary.plotly().then(load, () => { /* asked for again at the next load */ });
      return;
    }
    const now = wanted();
    const question = { run: told.run, search: window.location.search };
    const query = new URLSearchParams(question);
    for (const key of missing) {
      query.append("key", key);
      cards.get(key).asked = now;
    }
    const number = ++sent;
    fetch("/_metrics?" + query, { cache: "no-store" }).then((answer) => (answer.ok ? answer.json() : Promise.reject(answer))).then(({ panels }) => {
      for (const panel of panels) show(panel, now, number, question);
    }).catch(() => {
      const left = missing.filter((key) => cards.has(key)).map((key) => cards.get(key));
      for (const card of left) part(card, ".plot").dataset.says = "The collector does not answer; asked again soon.";
      setTimeout(() => {
        for (const card of left) card.asked = null;
        load();
      }, AGAIN_MS);
    });
  }

  function show(panel, of, number, question) {
    const card = cards.get(panel.key);
    // The reader has gone on to another run, or a later question was answered sooner.
    if (question.run !== told.run || !card || (card.number || 0) > number) return;
    Object.assign(card, { of, number, found: panel });
    part(card, "a.save").href = "/_download/metrics?" + new URLSearchParams({ ...question, key: panel.key });
    delete part(card, ".plot").dataset.says;
    try {
      window.gradcanary.react(part(card, ".plot"), panel.figure);
    } catch (error) {
      console.error(error); // one that cannot be drawn keeps no other waiting
    }
    writeNote(card);
    drawLegend(card);
  }

  // ---- legends

  function drawLegend(card) {
    const { found, sought } = card;
    const isLong = found.legend.length > FEW;
    const matching = found.legend.filter((line) => line.text.toLowerCase().includes(sought.toLowerCase()));
    const ranked = [...matching.filter((line) => line.drawn), ...matching.filter((line) => !line.drawn)].slice(0, SHOWN);
    const label = "Find lines of " + part(card, "h2").textContent;
    const field = ["input", { type: "search", placeholder: "find lines: host=node-01", autocomplete: "off", spellcheck: "false", "aria-label": label }];
    const left = found.of - ranked.length;
    const drawn = found.legend.filter((line) => line.drawn).length;
    const tally = `${drawn} of ${found.of} lines drawn` + (left > 0 ? `, ${left} not listed` : "");
    const list = ["div", { class: "list", role: "group", "aria-label": "Lines" }, ...ranked.map(entry), ...(isLong ? [["span", { class: "dim" }, tally]] : [])];
    draw(part(card, ".whose"), [...(isLong ? [field] : []), list]);
    // What a line holds is no part of the tree: crosshair.js writes there, too.
    for (const value of card.element.querySelectorAll(".value")) value.textContent = value.dataset.last;
  }

  function entry({ id, text, dash, colour, drawn, last }) {
    const style = colour ? { style: "border-color: " + colour } : {};
    const swatch = ["span", { class: "stroke " + (dash || "none"), "aria-hidden": "true", ...style }];
    const words = [["span", { class: "name" }, text], ["span", { class: "value", "data-last": last || "" }]];
    const of = id ? { "data-line": id } : {};
    if (drawn === undefined) return ["span", { class: "line", ...of }, ...(colour ? [swatch] : []), ...words];
    const title = "Shift and click: only this line";
    return ["button", { type: "button", class: "line", ...of, "aria-pressed": String(drawn), title }, swatch, ...words];
  }

  // What is drawn is in the address: an id of ten digits each, of all panels. Of one whose last line is switched off it
  // says so: an address that is silent of a panel means its first lines.
  function choose({ found }, id, isOnly) {
    const drawn = found.legend.filter((line) => line.drawn).map((line) => line.id);
    const now = isOnly ? [id] : drawn.includes(id) ? drawn.filter((each) => each !== id) : [...drawn, id];
    if (!now.length) now.push(found.none);
    const all = new Set([found.none, ...found.legend.map((line) => line.id)]);
    const query = new URLSearchParams(window.location.search);
    const others = (query.get("lines") || "").split(",").filter((each) => each && !all.has(each));
    go({ lines: [...others, ...now].join(",") });
  }

  function cardAt(element) {
    return cards.get(element.closest(".panel").dataset.key);
  }

  on("click", ".panel button.line", (button, event) => choose(cardAt(button), button.dataset.line, event.shiftKey));

  on("input", ".panel input", (field) => {
    const card = cardAt(field);
    card.sought = field.value;
    drawLegend(card);
  });

  // ---- news: the list of metrics, the revision, the address

  onAttribute("data-panels", (element, text) => {
    if (element !== box) Array.from(cards.keys()).forEach(remove);
    box = element;
    told = JSON.parse(text);
    arrange();
  });

  onChange(load);
  onMove(load);
  setInterval(complete, 1500);
}
