/* What is described as JSON, drawn without React: a text, or [tag, attributes, ...what is in it]. What did not change stays
   the element that it is, with its focus and what is open in it. Names come from trainings: they are only ever text and
   the values of attributes. */
{
  const held = new WeakMap(); // element -> what is drawn in it: { tree, text, node }

  function build(tree) {
    if (typeof tree === "string") return document.createTextNode(tree);
    const [tag, attributes, ...inside] = tree;
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    drawInto(made, inside);
    return made;
  }

  // Of two elements that agree in this one can become the other: a question that is open about one thing must not come to
  // stand at another.
  function kindOf({ tree }) {
    if (typeof tree === "string") return "text";
    const [tag, attributes] = tree;
    return [tag, attributes["data-key"] ?? attributes["data-line"] ?? attributes.class].join(" ");
  }

  function become(node, before, after) {
    if (typeof after === "string") {
      node.data = after;
      return;
    }
    for (const name of Object.keys(before[1])) if (!(name in after[1])) node.removeAttribute(name);
    for (const [name, value] of Object.entries(after[1])) {
      if (before[1][name] !== value) node.setAttribute(name, value);
    }
    drawInto(node, after.slice(2));
  }

  // Gives nodes that are left to those that are wanted and agree with them; each serves once.
  function reuse(left, wanted, agreement) {
    const known = Map.groupBy(left, agreement);
    for (const one of wanted.filter(({ node }) => !node)) {
      const found = known.get(agreement(one))?.shift();
      if (!found) continue;
      left.delete(found);
      one.node = found.node;
      if (one.text !== found.text) become(found.node, found.tree, one.tree);
    }
  }

  function drawInto(parent, trees) {
    const left = new Set(held.get(parent));
    // Where another script wrote words of its own, as into times, these go.
    if (Array.from(left).some(({ node }) => node.parentNode !== parent)) {
      parent.replaceChildren();
      left.clear();
    }
    const wanted = trees.map((tree) => ({ tree, text: JSON.stringify(tree), node: null }));
    reuse(left, wanted, ({ text }) => text);
    reuse(left, wanted, kindOf);
    for (const { node } of left) node.remove();
    let next = parent.firstChild;
    for (const one of wanted) {
      one.node ||= build(one.tree);
      if (one.node === next) next = next.nextSibling;
      else parent.insertBefore(one.node, next);
    }
    held.set(parent, wanted);
  }

  function draw(parent, trees) {
    const focused = document.activeElement;
    drawInto(parent, trees);
    // What moves to another place loses the focus on the way.
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  window.gradcanary.onAttribute("data-trees", (slot) => {
    const act = () => draw(slot, JSON.parse(slot.dataset.trees || "[]"));
    if (slot.matches("tbody:empty")) setTimeout(act); // the rows of a table are many, and come after what is looked at first
    else act();
  });

  window.gradcanary = Object.assign(window.gradcanary || {}, { draw });
}
