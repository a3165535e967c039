/* What is new: the page asks each second and at a choice, and says so where nobody answers. */
(function () {
  "use strict";

  const { isOpening, every } = window.gradcanary;

  // ---- the dashboard's own server: when it is gone, nobody but the browser can say so

  const PATIENCE_MS = 20000; // who does not answer in that time is not there: a machine that hangs, a tunnel that is cut
  const AGAIN_MS = 1000; // a page that did not open is asked for again

  let awaited = 0;

  function showLink(connected) {
    const banner = document.getElementById("offline");
    if (!banner || banner.hidden === connected) return;
    banner.hidden = connected;
    document.querySelector("#link .word").textContent = connected ? "connected" : "not connected";
    document.documentElement.dataset.link = connected ? "up" : "down";
  }

  function answered() {
    awaited -= 1;
  }

  // A change may take its time, a test message ten seconds.
  function isQuestion({ method = "GET" }) {
    return method === "GET";
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
    const question = new URLSearchParams({ path: path, search: search, shown: shown });
    return window.fetch("/_news?" + question, { cache: "no-store" }).then((answer) => (answer.status === 200 ? answer.json() : null));
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

  every(0, beat);

  window.gradcanary = Object.assign(window.gradcanary || {}, { askAhead });
  window.dash_clientside = Object.assign({}, window.dash_clientside, { refresh: { refresh } });
})();
