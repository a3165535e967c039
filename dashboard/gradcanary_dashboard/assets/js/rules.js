/* A trial of rules: the server answers lines, and each says what slots of the page show from then on. It ends with its page. */
{
  const { go, on, onChange } = window.gradcanary;
  const LONGEST_TEXT = 2000; // characters that an address can hold, also behind a proxy
  const BROKEN = [["span", { class: "tone-critical" }, "The trial broke off. Try it again, or load the page again."]];

  let trial = null; // the AbortController of the trial that runs

  // ---- the text is in the address, not what came of it

  onChange(() => {
    const empty = document.querySelector("#rules-text:not([data-filled])");
    if (!empty) return;
    empty.dataset.filled = "";
    empty.value = new URLSearchParams(window.location.search).get("rules") || "";
  });

  // ---- one at a time

  function show(slots) {
    for (const [name, drawn] of Object.entries(slots)) {
      document.getElementById(name).dataset.trees = drawn;
    }
  }

  function setBusy(isBusy) {
    document.getElementById("rules-try-do").disabled = isBusy;
    document.getElementById("rules-try-stop").hidden = !isBusy;
  }

  async function showLines(answer, from) {
    if (!answer.ok) throw new Error(answer.statusText);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      if (!from.isConnected) throw new DOMException("The page is gone.", "AbortError");
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) show(JSON.parse(line));
    }
  }

  async function start() {
    const [from, mine] = [document.getElementById("rules-text"), new AbortController()];
    const text = from.value;
    trial = mine;
    setBusy(true);
    go({ rules: text.length > LONGEST_TEXT ? null : text });
    try {
      await showLines(await fetch("/_trial", { method: "POST", body: text, cache: "no-store", signal: mine.signal }), from);
    } catch (error) {
      const isStopped = error.name === "AbortError";
      if (from.isConnected) show({ "rules-tried": JSON.stringify(isStopped ? [] : BROKEN) });
    } finally {
      mine.abort(); // the server ends the process when the connection is gone
      if (from.isConnected) setBusy(false);
    }
  }

  on("click", "#rules-try-do", start);
  on("click", "#rules-try-stop", () => trial.abort());
}
