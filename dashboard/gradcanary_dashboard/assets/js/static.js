/* What a slot holds as JSON, drawn without React: a text, or [tag, attributes, ...what is in it]. What did not change
   stays the element that it is, with its focus and what is open in it. Names come from trainings: they are only ever
   text and the values of attributes. */
(function () {
  "use strict";

  const held = new WeakMap(); // element -> the trees that are drawn in it

  function build(tree) {
    if (typeof tree === "string") return document.createTextNode(tree);
    const [tag, attributes, ...inside] = tree;
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...inside.map(build));
    held.set(made, inside);
    return made;
  }

  function isAlike(one, other) {
    if (typeof one === "string" || typeof other === "string") return false;
    // A question that is open about one thing must not come to stand at another.
    return one[0] === other[0] && ["class", "data-key", "data-line"].every((name) => one[1][name] === other[1][name]);
  }

  function become(node, before, tree) {
    for (const name of Object.keys(before[1])) if (!(name in tree[1])) node.removeAttribute(name);
    for (const [name, value] of Object.entries(tree[1])) {
      if (before[1][name] !== value) node.setAttribute(name, value);
    }
    drawInto(node, tree.slice(2));
    return node;
  }

  // Each is the element that showed the same before, else the next one of that kind.
  function chosen(parent, trees) {
    const left = (held.get(parent) || []).map((tree, place) => ({ tree, node: parent.childNodes[place] }));
    const keys = left.map((one) => JSON.stringify(one.tree));
    const same = trees.map((tree) => {
      const place = keys.indexOf(JSON.stringify(tree));
      if (place < 0) return null;
      keys[place] = null;
      return left[place].node;
    });
    const others = left.filter((_, place) => keys[place] !== null);
    const nodes = trees.map((tree, place) => {
      if (same[place]) return same[place];
      const alike = others.findIndex((one) => isAlike(one.tree, tree));
      if (alike < 0) return build(tree);
      const [taken] = others.splice(alike, 1);
      return become(taken.node, taken.tree, tree);
    });
    return [nodes, others.map((one) => one.node)];
  }

  function drawInto(parent, trees) {
    const [nodes, gone] = chosen(parent, trees);
    for (const node of gone) node.remove();
    nodes.forEach((node, place) => {
      if (parent.childNodes[place] !== node) parent.insertBefore(node, parent.childNodes[place] || null);
    });
    held.set(parent, trees);
  }

  function draw(parent, trees) {
    const focused = document.activeElement;
    drawInto(parent, trees);
    // What moves to another place loses the focus on the way.
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  window.gradcanary.onAttribute("data-drawn", (slot, text) => draw(slot, JSON.parse(text || "[]")));

  window.gradcanary = Object.assign(window.gradcanary || {}, { draw });
})();
