/* The members of an incident: thousands of them are sorted and filtered here, and some drawn. Names come from
   trainings: they are only ever written as text and attributes. */
(function () {
  "use strict";

  const { element, go, atRest } = window.gradcanary;
  const FEW = 100;
  const NOTHING = "\u2013";
  const KINDS = ["name", "since", "until", "number", "number value", "number", "evidence", "rank"];
  const NAMES = ["", "since", "until", "baseline", "value", "siblings", "evidence", "rank"];
  const state = { body: null, rows: [], find: "", sort: null, descends: false, shown: FEW, drawn: "" };

  function cell(text, place, href) {
    const named = NAMES[place] ? { "data-name": NAMES[place] } : {};
    const kind = KINDS[place] + (text === NOTHING ? " none" : "");
    const inside = place === 0 ? element("a", { class: "layer", href }, text) : text;
    return element("td", { class: kind, role: "cell", ...named }, inside);
  }

  function line(row) {
    const [href, ...texts] = row;
    const firing = texts[2] === "firing" ? { class: "firing" } : {};
    return element("tr", { role: "row", ...firing }, ...texts.map((text, place) => cell(text, place, href)));
  }

  // As numbers where they are, what is not there last.
  function compare(one, other) {
    const [a, b] = [one, other].map((row) => row[state.sort + 1]);
    const [x, y] = [a, b].map((text) => Number(text.replace(/,/g, "")));
    const sign = state.descends ? -1 : 1;
    if (!Number.isNaN(x) && !Number.isNaN(y)) return sign * (x - y);
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
    return sign * a.localeCompare(b, undefined, { numeric: true });
  }

  function wanted() {
    const part = state.find.trim().toLowerCase();
    const found = state.rows.filter((row) => row[1].toLowerCase().includes(part));
    return state.sort === null ? found : found.sort(compare);
  }

  function write(id, text) {
    const place = document.getElementById(id);
    if (place && place.textContent !== text) place.textContent = text;
  }

  function draw(body) {
    const rows = wanted();
    const shown = rows.slice(0, state.shown);
    const key = JSON.stringify(shown);
    if (state.drawn !== key || body.rows.length !== shown.length) {
      const focused = document.activeElement && document.activeElement.closest("tbody") === body;
      const href = focused && document.activeElement.getAttribute("href");
      body.replaceChildren(...shown.map(line));
      const again = href && Array.from(body.querySelectorAll("a")).find((link) => link.getAttribute("href") === href);
      if (again) again.focus({ preventScroll: true });
      state.drawn = key;
    }
    const some = shown.length < rows.length || rows.length < state.rows.length;
    const [few, matching, all] = [shown, rows, state.rows].map((list) => list.length.toLocaleString("en"));
    write("members-shown", some ? `${few} of ${matching} shown${matching === all ? "" : `, of ${all} in all`}` : "");
    document.getElementById("members-more").hidden = shown.length >= rows.length;
    for (const button of document.querySelectorAll("button[data-sort]")) {
      const order = Number(button.dataset.sort) === state.sort ? (state.descends ? "descending" : "ascending") : "none";
      button.closest("th").setAttribute("aria-sort", order);
    }
  }

  // ---- what is chosen is in the address: a part of names, and the column of the order, with a minus where it descends

  function follow() {
    const query = new URLSearchParams(window.location.search);
    const [, minus, place] = /^(-?)([0-7])$/.exec(query.get("by") || "") || [];
    const find = query.get("find") || "";
    Object.assign(state, { find, sort: place === undefined ? null : Number(place), descends: minus === "-" });
    const field = document.getElementById("members-filter");
    if (field && document.activeElement !== field && field.value !== find) {
      window.dash_clientside.set_props("members-filter", { value: find });
    }
  }

  function keep() {
    const by = state.sort === null ? null : (state.descends ? "-" : "") + state.sort;
    atRest(state.body, 250, () => go({ find: state.find, by }));
  }

  function again() {
    const body = document.getElementById("members");
    if (body) draw(body);
  }

  // Another incident's table is another element, which may hold the very rows of the one before.
  window.gradcanary.onAttribute("data-members", (body, text) => {
    if (body !== state.body) {
      Object.assign(state, { body, shown: FEW, drawn: "" });
      follow();
    }
    state.rows = JSON.parse(text);
    draw(body);
  });

  function sortBy(place) {
    state.descends = state.sort === place && !state.descends;
    state.sort = place;
    again();
    keep();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.sort) sortBy(Number(button.dataset.sort));
    if (button.id === "members-more") {
      state.shown += 5 * FEW;
      again();
    }
  });

  document.addEventListener("input", (event) => {
    if (event.target.id !== "members-filter") return;
    Object.assign(state, { find: event.target.value, shown: FEW });
    again();
    keep();
  });

  window.addEventListener("popstate", () => setTimeout(() => {
    if (!document.getElementById("members")) return;
    follow();
    again();
  }));
})();
