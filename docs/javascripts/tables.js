// Tells the stylesheet which tables hold words and which hold figures, and gives each cell the heading of its column.
for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
  const headings = [...table.querySelectorAll("thead th")];
  const isRight = (heading) => getComputedStyle(heading).textAlign === "right";
  table.dataset.kind = 2 * headings.filter(isRight).length < headings.length ? "words" : "figures";
  for (const row of table.tBodies[0].rows) {
    [...row.cells].forEach((cell, at) => (cell.dataset.heading = headings[at].textContent));
  }
}
