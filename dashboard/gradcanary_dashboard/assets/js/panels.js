/* The metrics of a run: the figure of a card is asked for when it comes into sight, and again when there is news. Names and
   tags come from trainings: they are only ever text and the values of attributes. */
{
  const { draw, go, on, onAttribute, onChange, onMove, plots, put } = window.gradcanary;
  const FEW = 12; // more lines than these are counted
  const AGAIN_MS = 2000; // after a question that nobody answered, and twice as long after the next one, up to 16 s
  const AT_ONCE = 4; // figures that a page at rest asks for
  const SHOWN = 60; // entries of a legend at a time

  const cards = new Map(); // element -> { element, key, asked, of, number, found, sought, tries, waits }
  const inSight = new Set(); // elements
  let news = ""; // the run, its revision and the query that the page shows, as a text
  let told = {}; // the same
  let sent = 0;

  // ---- cards

  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting && cards.has(target)) inSight.add(target);
      else inSight.delete(target);
    }
    load();
  }, { rootMargin: "600px 0px" });

  function part(card, name) {
    return card.element.querySelector(name);
  }

  function remove(element) {
    const plot = element.querySelector(".plot");
    watch.unobserve(element);
    if (plots.drawnWidth(plot)) window.Plotly.purge(plot);
    cards.delete(element);
    inSight.delete(element);
  }

  function arrange() {
    for (const element of Array.from(cards.keys())) if (!element.isConnected) remove(element);
    for (const element of document.querySelectorAll(".panel")) {
      if (cards.has(element)) continue;
      cards.set(element, { element, key: element.dataset.key, sought: "" });
      watch.observe(element);
    }
  }

  // ---- figures

  function load() {
    ask(Array.from(inSight, (element) => cards.get(element)).filter(({ of, asked, waits }) => !waits && of !== news && asked !== news));
  }

  // Once a page is at rest it is completed, a few figures at a time, for a fast wheel.
  function complete() {
    const all = Array.from(cards.values());
    if (!document.hidden && !all.some(({ asked, of }) => asked && asked !== of)) ask(all.filter(({ asked, waits }) => !asked && !waits).slice(0, AT_ONCE));
  }

  async function ask(missing) {
    // What is looked at comes first: the heatmap of an address, then its metrics.
    if (!missing.length || told.search !== window.location.search) return;
    const [now, number] = [news, ++sent];
    const question = { run: told.run, search: told.search };
    const query = new URLSearchParams(question);
    for (const card of missing) {
      query.append("key", card.key);
      card.asked = now;
    }
    const asked = fetch("/_metrics?" + query, { cache: "no-store" });
    const answer = await asked.then((response) => (response.ok ? response.json() : null)).catch(() => null);
    try {
      if (answer) for (const panel of answer.panels) show(panel, now, number, question);
      else for (const card of missing) part(card, ".plot").dataset.says = "The collector does not answer; asked again soon.";
    } finally {
      askAgain(missing.filter(({ asked, of }) => asked === now && of !== now));
    }
  }

  // Also what an answer left out, or was about another run: else no other card would be completed.
  function askAgain(left) {
    for (const card of left) Object.assign(card, { asked: null, waits: true, tries: (card.tries || 0) + 1 });
    const tries = Math.min(Math.max(0, ...left.map((card) => card.tries)), 4);
    if (tries) setTimeout(() => {
      for (const card of left) card.waits = false;
      load();
    }, AGAIN_MS * 2 ** (tries - 1));
  }

  function show(panel, of, number, question) {
    const place = document.getElementById(panel.key);
    const card = place && cardAt(place);
    // The reader has gone on to another run, or a later question was answered sooner.
    if (question.run !== told.run || !card || (card.number || 0) > number) return;
    Object.assign(card, { of, number, found: panel, tries: 0 });
    part(card, "a.save").href = "/_download/metrics?" + new URLSearchParams({ ...question, key: panel.key });
    put(place, panel.figure);
    const aside = part(card, ".aside");
    aside.textContent = [aside.dataset.words, panel.scale, panel.last].filter(Boolean).join(" · ");
    drawLegend(card);
  }

  // ---- legends

  function drawLegend({ element, found, sought }) {
    const matching = found.legend.filter(({ text }) => text.toLowerCase().includes(sought.toLowerCase()));
    const ranked = [...matching.filter(({ drawn }) => drawn), ...matching.filter(({ drawn }) => !drawn)].slice(0, SHOWN);
    const drawn = found.legend.filter((line) => line.drawn).length;
    const left = found.of - ranked.length;
    const tally = `${drawn} of ${found.of} lines drawn` + (left > 0 ? `, ${left} not listed` : "");
    const below = found.legend.length > FEW ? [["span", { class: "dim" }, tally]] : [];
    draw(element.querySelector(".list"), [...ranked.map(({ tree }) => tree), ...below]);
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
    return cards.get(element.closest(".panel"));
  }

  on("click", ".panel button.line", (button, event) => choose(cardAt(button), button.dataset.line, event.shiftKey));

  on("input", ".panel input", (field) => {
    const card = cardAt(field);
    card.sought = field.value;
    drawLegend(card);
  });

  // ---- news: the list of metrics, the revision, the address

  onAttribute("data-panels", (element, text) => {
    news = text || "{}";
    told = JSON.parse(news);
  });

  onChange(() => {
    arrange();
    load();
  });
  onMove(load);
  setInterval(complete, 1500);
}
