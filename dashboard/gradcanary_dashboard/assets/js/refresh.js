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
    const headers = "framed" in document.documentElement.dataset ? { ...options.headers, "gradcanary-framed": "1" } : options.headers;
    const answer = takeEarly(resource, options) || plainFetch(resource, { ...limit, ...options, headers });
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

  function cellsOf({ bdata }) {
    const bytes = Uint8Array.fromBase64?.(bdata) ?? Uint8Array.from(atob(bdata), (letter) => letter.charCodeAt(0));
    return new Int16Array(bytes.buffer);
  }

  function written(cells) {
    const bytes = new Uint8Array(cells.buffer);
    if (bytes.toBase64) return bytes.toBase64(); // not every browser has it yet
    let text = "";
    for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode.apply(null, bytes.subarray(at, at + 32768));
    return btoa(text);
  }

  // The cells of a heatmap: columns that it keeps of the one before, and those that were added.
  function joined({ dtype, shape, kept, bdata }, before) {
    const [rows, columns] = shape.split(",").map(Number);
    const [known, added] = [cellsOf(before), cellsOf({ bdata })];
    const [width, more] = [known.length / rows, columns - kept];
    const cells = new Int16Array(rows * columns);
    for (let row = 0; row < rows; row += 1) {
      cells.set(known.subarray(row * width, row * width + kept), row * columns);
      cells.set(added.subarray(row * more, (row + 1) * more), row * columns + kept);
    }
    return { dtype, shape, bdata: written(cells) };
  }

  // ---- the page, filled

  const BEAT_MS = 1000;
  const LONGEST_MS = 5000;

  let due = 0; // when this page asks next
  let sent = 0; // questions so far: the answer to the last one counts

  // What a page lacks; null where it lacks nothing. Heatmaps are made whole from the figures that the page has as it asks.
  async function askNews(path, search, shown) {
    const before = new Map(Array.from(document.querySelectorAll("[data-figure]"), (place) => [place.id, place.dataset.figure]));
    const question = { method: "POST", body: JSON.stringify({ path, search, shown }), reads: true };
    const response = await window.fetch("/_refresh", question);
    const answer = response.status === 200 ? await response.json() : null;
    for (const [id, figure] of Object.entries(answer?.slots ?? {})) {
      const trace = figure?.data?.[0];
      if (trace?.z?.kept !== undefined) trace.z = joined(trace.z, JSON.parse(before.get(id)).data[0].z);
    }
    return answer;
  }

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
    const answer = await askNews(pathname, search, state.dataset.shown || "").catch(() => null); // the banner says so
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
