/* The rows of tables: drawn here, because a Dash component for each cell cost more than all figures together. A table may be
   sorted, filtered and shown in part, all of it without a question. Names come from trainings: they are only ever text and
   the values of attributes. */
{
  const { draw, go, on, onAttribute, onMove } = window.gradcanary;
  const NOTHING = "\u2013"; // text.numbers.NOTHING

  const tables = new WeakMap(); // body -> { columns, rows, find, sort, descends, most }

  // ---- a row: { name, href, tone, chosen, cells }; a cell is a text, or { text or parts, mark }

  // A name that is too long for its column goes on behind a dot.
  function link({ name, href }) {
    const parts = name.split(/(?<=\.)/).flatMap((part) => [part, ["wbr", {}]]);
    return ["a", { class: "layer", title: name, href }, ...parts];
  }

  function button({ name, chosen }, inside, attributes) {
    const words = { title: "Draw its trend here", "aria-label": "Draw the trend of " + name };
    return ["button", { type: "button", "data-layer": name, "aria-pressed": String(chosen), ...words, ...attributes }, inside];
  }

  const ICON = ["span", { class: "icon icon-trend", "aria-hidden": "true" }];
  const NAMES = {
    link: (row) => [link(row)],
    "button link": (row) => [button(row, ICON, { class: "draw" }), link(row)],
    button: (row) => [button(row, row.name, {})],
  };

  function classes(...names) {
    return names.filter(Boolean).join(" ");
  }

  function cellOf(given, { head, kind }) {
    const { text, mark, parts } = typeof given === "string" ? { text: given } : given;
    const named = { class: classes(kind, mark, text === NOTHING && "none"), role: "cell", "data-name": head };
    return ["td", named, ...(parts || [text])];
  }

  function rowOf(row, key, [first, ...others]) {
    const held = { class: classes(row.tone, row.chosen && "chosen"), role: "row", "data-key": key };
    const name = ["td", { class: "name", role: "cell" }, ...NAMES[first.kind](row)];
    return ["tr", held, name, ...others.map((column, place) => cellOf(row.cells[place], column))];
  }

  // Rows are known by the name of what they show, so that a refresh neither moves the focus nor loses a click.
  function drawRows(body, rows, columns) {
    const seen = new Map(); // name -> rows with it so far
    draw(body, rows.map((row) => {
      const count = (seen.get(row.name) || 0) + 1;
      seen.set(row.name, count);
      return rowOf(row, row.name + " " + count, columns);
    }));
  }

  // ---- which rows, in which order

  function textOf(row, place) {
    return place === 0 ? row.name : row.cells[place - 1];
  }

  // As numbers where they are, what is not there last.
  function compare(table, one, other) {
    const [a, b] = [one, other].map((row) => textOf(row, table.sort));
    const [x, y] = [a, b].map((text) => Number(text.replace(/,/g, "")));
    const sign = table.descends ? -1 : 1;
    if (!Number.isNaN(x) && !Number.isNaN(y)) return sign * (x - y);
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
    return sign * a.localeCompare(b, undefined, { numeric: true });
  }

  function chosen(table) {
    const part = table.find.trim().toLowerCase();
    const found = table.rows.filter((row) => row.name.toLowerCase().includes(part));
    return table.sort === null ? found : found.sort((one, other) => compare(table, one, other));
  }

  function drawTable(body) {
    const table = tables.get(body);
    const found = chosen(table);
    const shown = found.slice(0, table.most);
    drawRows(body, shown, table.columns);
    if (body.dataset.few) tell(body, table, shown.length, found.length);
  }

  function tell(body, table, shown, found) {
    const [few, matching, all] = [shown, found, table.rows.length].map((count) => count.toLocaleString("en"));
    const isPart = shown < found || found < table.rows.length;
    const words = `${few} of ${matching} shown${matching === all ? "" : `, of ${all} in all`}`;
    document.getElementById(body.id + "-shown").textContent = isPart ? words : "";
    document.getElementById(body.id + "-more").hidden = shown >= found;
    for (const sorter of body.parentElement.querySelectorAll("button[data-sort]")) {
      const order = Number(sorter.dataset.sort) === table.sort ? (table.descends ? "descending" : "ascending") : "none";
      sorter.closest("th").setAttribute("aria-sort", order);
    }
  }

  onAttribute("data-rows", (body, text) => {
    const isFirst = !tables.has(body);
    if (isFirst) {
      tables.set(body, { columns: JSON.parse(body.dataset.columns), find: "", sort: null, descends: false, most: Number(body.dataset.few) || Infinity });
      if (body.dataset.few) read(body);
    }
    tables.get(body).rows = JSON.parse(text);
    if (isFirst) setTimeout(drawTable, 0, body); // the figure that is looked at is painted before
    else drawTable(body);
  });

  // ---- what is chosen is in the address: a part of names, and the column of the order, with a minus where it descends

  function read(body) {
    const query = new URLSearchParams(window.location.search);
    const [, minus, place] = /^(-?)(\d+)$/.exec(query.get("by") || "") || [];
    const table = tables.get(body);
    const sort = place in table.columns ? Number(place) : null;
    Object.assign(table, { find: query.get("find") || "", sort, descends: minus === "-" });
  }

  function sortBy(body, sort) {
    const table = tables.get(body);
    Object.assign(table, { sort, descends: table.sort === sort && !table.descends });
    drawTable(body);
    go({ find: table.find, by: (table.descends ? "-" : "") + sort });
  }

  on("click", "button[data-sort]", (button) => sortBy(button.closest("table").tBodies[0], Number(button.dataset.sort)));

  on("click", "button[data-more]", (button) => {
    const body = document.getElementById(button.dataset.more);
    tables.get(body).most += 5 * Number(body.dataset.few);
    drawTable(body);
  });

  // The field itself is a control: address.js writes what is typed into the address.
  on("input", "[data-finds]", (field, { target }) => {
    const body = document.getElementById(field.dataset.finds);
    Object.assign(tables.get(body), { find: target.value, most: Number(body.dataset.few) });
    drawTable(body);
  });

  onMove(() => setTimeout(() => {
    for (const body of document.querySelectorAll("tbody[data-few]")) {
      if (!tables.has(body)) continue;
      read(body);
      drawTable(body);
    }
  }));
}
