/* What the pages use of Plotly beyond its documented functions: a plot's axes, its plot area, the points that it drew.
   pyproject.toml bounds Plotly's version for this file. */
{
  function hasAxes(plot) {
    return Boolean(plot?._fullLayout?.xaxis);
  }

  // The width in pixels that a plot was drawn for; 0 before it is drawn.
  function drawnWidth(plot) {
    return plot._fullLayout?.width ?? 0;
  }

  // The rectangle between the axes, in pixels from the plot's upper left corner.
  function area(plot) {
    const { l, t, w, h } = plot._fullLayout._size;
    return { left: l, top: t, width: w, height: h };
  }

  // Pixels from the left of the area to a value of the x axis.
  function pixelAt(plot, x) {
    return plot._fullLayout.xaxis.l2p(x);
  }

  // The values of both axes at pixels from the upper left corner of the area.
  function valuesAt(plot, across, down) {
    const { xaxis, yaxis } = plot._fullLayout;
    return { x: xaxis.p2l(across), y: yaxis.p2l(down) };
  }

  function rangeOf(plot) {
    return plot._fullLayout.xaxis.range;
  }

  // For each trace the points that it drew; another array after each drawing.
  function pointsOf(plot) {
    return plot.calcdata || [];
  }

  window.gradcanary = Object.assign(window.gradcanary || {}, {
    plots: { hasAxes, drawnWidth, area, pixelAt, valuesAt, rangeOf, pointsOf },
  });
}
