/* The list of runs: those that are ticked, and the columns that are hidden, which the browser remembers. */
{
  const { on, onChange, open } = window.gradcanary;
  const root = document.documentElement;

  function chosen() {
    const ticked = document.querySelectorAll("#runs .pick:checked");
    return Array.from(new Set(Array.from(ticked, (box) => box.value))); // a run with two tags has two rows
  }

  function tick(isTicked) {
    for (const box of document.querySelectorAll("#runs .pick")) if (!isTicked || box.checkVisibility()) box.checked = isTicked;
    tell();
  }

  function tell() {
    const bar = document.getElementById("runs-bulk");
    const runs = chosen();
    if (!bar || bar.dataset.told === runs.join("\n")) return;
    bar.dataset.told = runs.join("\n");
    const { set_props: set } = window.dash_clientside;
    set("runs-chosen", { data: runs });
    set("runs-count", { children: runs.length + " chosen" });
    set("runs-compare", { disabled: runs.length < 2 || runs.length > 6 });
  }

  on("change", "#runs .pick", tell);
  on("change", "#runs .pick-all", (box) => tick(box.checked));
  on("click", "#runs-leave", () => tick(false));
  on("click", "#runs-compare", () => open("/compare?" + new URLSearchParams(chosen().map((run) => ["run", run]))));

  on("change", "#columns .column", () => {
    root.dataset.hides = Array.from(document.querySelectorAll("#columns .column:not(:checked)"), (box) => box.value).join(" ");
    try { localStorage.setItem("gradcanary-columns", root.dataset.hides); } catch (error) { /* not remembered */ }
  });

  // The list of columns closes as a menu does: by a click beside it, and by Escape, which leads back to its button.
  function leaveColumns({ key, target }) {
    const list = document.querySelector(".columns-to-show[open]");
    if (!list || (key ? key !== "Escape" : list.contains(target))) return;
    list.open = false;
    if (key) list.querySelector("summary").focus();
  }

  document.addEventListener("click", leaveColumns);
  document.addEventListener("keydown", leaveColumns);

  onChange(() => {
    tell();
    for (const box of document.querySelectorAll("#columns .column")) box.checked = !(root.dataset.hides || "").split(" ").includes(box.value);
  });
}
