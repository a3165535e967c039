/* What the pages use of Dash beyond its documented functions: the event of an address that Dash wrote, and its first
   questions. It is in the document itself, before all files. pyproject.toml bounds Dash's version for this file. */
{
  const MOVED = "_dashprivate_pushstate";
  const PATIENCE_MS = 20000; // who does not answer in that time is not there: a machine that hangs, a tunnel that is cut

  // Goes to an address as Dash's own links do, without loading the document anew.
  function move(href) {
    window.history.pushState({}, "", href);
    window.dispatchEvent(new CustomEvent(MOVED));
  }

  // Calls a function after the address became another one: by the browser's back and forward, or by a link or a choice.
  function onMove(act) {
    for (const event of ["popstate", MOVED]) window.addEventListener(event, act);
  }

  // Return true if options of fetch are those of the callback that fills ``main``.
  function isOpening({ body }) {
    return typeof body === "string" && body.includes('"output":"..main.children');
  }

  // ---- Dash asks for its layout, its callbacks and the page one after the other, when all scripts have run. The document
  // asks for all three at once, while the scripts are on their way.

  const OPENING = JSON.stringify({
    output: "..main.children...title.data...outage.children..",
    outputs: [{ id: "main", property: "children" }, { id: "title", property: "data" }, { id: "outage", property: "children" }],
    inputs: [{ id: "url", property: "pathname", value: window.location.pathname }],
    changedPropIds: ["url.pathname"],
    parsedChangedPropsIds: ["url.pathname"],
    state: [{ id: "url", property: "search", value: window.location.search }],
  });

  const early = new Map(); // path or body of a question -> its answer, on its way

  function askEarly(path, body) {
    const headers = { accept: "application/json", "content-type": "application/json" };
    const answer = fetch(path, { method: body ? "POST" : "GET", body, headers, signal: AbortSignal.timeout(PATIENCE_MS) });
    answer.catch(() => { /* whoever takes it hears of it */ });
    early.set(body || path, answer);
  }

  askEarly("/_dash-layout");
  askEarly("/_dash-dependencies");
  askEarly("/_dash-update-component", OPENING);

  // The answer to a question that was sent early, once; undefined for any other.
  function takeEarly(path, { body }) {
    const answer = early.get(body || path);
    early.delete(body || path);
    return answer;
  }

  window.gradcanary = { PATIENCE_MS, move, onMove, isOpening, takeEarly };
}
