/* The field for one more run on the page that compares runs. */
{
  const { move, on } = window.gradcanary;

  function add(field) {
    const run = field.value.trim();
    if (!run) return;
    const query = new URLSearchParams(window.location.search);
    query.append("run", run);
    window.dash_clientside.set_props("compare-add", { value: "" });
    move("?" + query);
  }

  on("change", "#compare-add", add);

  // A name chosen from the list, which is not yet a change of the field.
  on("input", "#compare-add", (field, { inputType }) => { if (inputType === "insertReplacementText") add(field); });
}
