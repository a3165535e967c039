/* What is new: the page asks each second and at a choice, and says so where nobody answers. */
{
  const { PATIENCE_MS, isOpening, onMove, takeEarly } = window.gradcanary;

  // ---- the dashboard's own server: when it is gone, nobody but the browser can say so

  const AGAIN_MS = 1000; // a page that did not open is asked for again

  let awaited = 0;

  function showLink(connected) {
    const banner = document.getElementById("offline");
    if (!banner || banner.hidden === connected) return;
    banner.hidden = connected;
    document.querySelector("#link .word").textContent = connected ? "connected" : "not connected";
    document.documentElement.dataset.link = connected ? "up" : "down";
  }

  // A change may take its time, a test message ten seconds.
  function isQuestion(resource, { method = resource.method ?? "GET", reads = false }) {
    return reads || method === "GET";
  }

  const plainFetch = window.fetch;
  let isLeaving = false;

  // The visit has ended, here or elsewhere; each answer that is on its way says so.
  function signIn() {
    if (isLeaving) return;
    isLeaving = true;
    window.location.assign("/sign-in?next=" + encodeURIComponent(window.location.pathname + window.location.search));
  }

  function ask(resource, options) {
    const limit = isQuestion(resource, options) || isOpening(options) ? { signal: AbortSignal.timeout(PATIENCE_MS) } : {};
    const answer = takeEarly(resource, options) || plainFetch(resource, { ...limit, ...options });
    return answer.then(
      (response) => {
        if (response.status === 401) signIn();
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
    if (!isQuestion(resource, options) && !isOpening(options)) return ask(resource, options);
    awaited += 1;
    const asked = isOpening(options) ? open(resource, options) : ask(resource, options);
    asked.then((response) => response.clone().arrayBuffer()).catch(() => { /* the banner says so */ }).finally(() => { awaited -= 1; });
    return asked;
  };

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
  async function askWhole(path, search, shown) {
    const question = { method: "POST", body: JSON.stringify({ path, search, shown }), reads: true };
    const response = await window.fetch("/_refresh", question);
    const answer = response.status === 200 ? await response.json() : null;
    if (!answer || complete(answer.slots, slotsOf(shown), slotsOf(answer.slots[answer.page + "-page-state"]))) return answer;
    return askWhole(path, search, JSON.stringify({ ...JSON.parse(shown), version: "", slots: {} }));
  }

  // ---- the page, filled

  const BEAT_MS = 1000;
  const LONGEST_MS = 5000;

  let due = 0; // when this page asks next
  let sent = 0; // questions so far: the answer to the last one counts

  // Asks what is new at the address, and fills the page with it; what an answer leaves out is what the page has.
  async function refresh() {
    const state = document.querySelector(".page-state");
    if (!state) return;
    const { pathname, search } = window.location;
    const began = performance.now();
    const number = sent += 1;
    // The reader may have chosen something else by now, or be on another page, that of another run, too.
    const isWanted = () => number === sent && state.isConnected && window.location.pathname === pathname;
    due = began + BEAT_MS;
    const answer = await askWhole(pathname, search, state.dataset.shown || "").catch(() => null); // the banner says so
    // Not for half as long as it took: a slow collector gets fewer questions, not a queue of them.
    due = Math.max(due, began + Math.min(LONGEST_MS, 1.5 * (performance.now() - began)));
    if (!isWanted() || (answer && state.id !== answer.page + "-page-state")) return;
    const { kinds, slots } = answer || { kinds: {}, slots: {} };
    const figures = Object.entries(slots).filter(([id]) => kinds[id] === "data-figure");
    const texts = await window.gradcanary.drawFirst(Object.fromEntries(figures));
    if (!isWanted()) return;
    for (const [id, value] of Object.entries({ ...slots, ...texts })) window.dash_clientside.set_props(id, { [kinds[id]]: value });
  }

  // While an answer is awaited nobody asks again.
  function beat() {
    if (!awaited && !document.hidden && performance.now() >= due) refresh();
  }

  setInterval(beat, 100);

  // Whoever comes back to a tab sees what is now, and not what was until the next second.
  document.addEventListener("visibilitychange", () => {
    due = 0;
    beat();
  });

  let path = window.location.pathname;

  // A choice is another query; another page is opened by Dash.
  onMove(() => {
    const isChoice = window.location.pathname === path;
    path = window.location.pathname;
    if (isChoice) refresh();
  });

  window.gradcanary = Object.assign(window.gradcanary || {}, { refresh });
}
