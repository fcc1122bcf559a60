"use strict";
(() => {
  const table = document.getElementById("cases");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const find = document.getElementById("find");
  const show = document.getElementById("show");
  const count = document.getElementById("count");

  function filter() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      const wanted = show.value === "all" || row.classList.contains(show.value);
      row.hidden = !(wanted && words.every((word) => texts[place].includes(word)));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = `${shown} of ${rows.length}`;
  }

  function key(row, column) {
    const cell = row.cells[column];
    if (cell.classList.contains("number")) {
      return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
    }
    return cell.textContent.trim() || null;
  }

  function sort(heading) {
    const column = heading.cellIndex;
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const keyed = rows.map((row, place) => ({ row, place, key: key(row, column) }));
    keyed.sort((a, b) => {
      if (a.key === null || b.key === null) {
        return (a.key === null) - (b.key === null) || a.place - b.place; // what is unknown comes last
      }
      const order = typeof a.key === "number" ? a.key - b.key : a.key.localeCompare(b.key, "en", { numeric: true });
      return (up ? order : -order) || a.place - b.place;
    });
    body.append(...keyed.map((each) => each.row));
  }

  for (const heading of table.tHead.rows[0].cells) {
    const button = heading.querySelector("button");
    if (button) button.addEventListener("click", () => sort(heading));
  }
  find.addEventListener("input", filter);
  show.addEventListener("change", filter);
})();
