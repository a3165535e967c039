/* The field for one more run on the page that compares runs. */
{
  function add(field) {
    const run = field.value.trim();
    if (!run) return;
    const query = new URLSearchParams(window.location.search);
    query.append("run", run);
    window.dash_clientside.set_props("compare-add", { value: "" });
    window.gradcanary.move("?" + query);
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "compare-add") add(event.target);
  });

  document.addEventListener("input", (event) => {
    // A name chosen from the list, which is not yet a change of the field.
    if (event.target.id === "compare-add" && event.inputType === "insertReplacementText") add(event.target);
  });
}
