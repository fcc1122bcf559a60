"use strict";
(() => {
  const table = document.getElementById("cases");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  // Names, warnings and errors are searched, not figures; shared notes stand above the table.
  const texts = rows.map((row) => {
    const notes = [...row.querySelectorAll(".notes p")].map((note) => {
      const link = note.querySelector("a[href^='#note-']");
      return link ? document.getElementById(link.hash.slice(1)).textContent : note.textContent;
    });
    return [row.dataset.case, row.querySelector(".rating").textContent, ...notes].join(" ").toLowerCase();
  });
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

  // Ratings of reports that this browser has kept, by the address of the report.
  const COLUMNS = ["case", "run", "rating", "initials", "note", "rated_at"];
  const ratings = new Map();
  for (const row of rows) {
    const link = row.querySelector("th a");
    if (!link) continue;
    let kept = null;
    try { kept = JSON.parse(window.localStorage.getItem(`perturb-mpm rating ${link.pathname}`)); } catch { /* none */ }
    if (!kept || !kept.rating) continue;
    if (row.dataset.run && kept.run && kept.run !== row.dataset.run) continue; // of another run
    ratings.set(row.dataset.case, { ...kept, case: row.dataset.case });
    const words = document.createElement("small");
    words.textContent = [kept.initials, kept.note].filter(Boolean).join(": ");
    row.querySelector(".rating").replaceChildren(kept.rating, words);
    row.classList.replace("unrated", "rated");
  }
  const save = document.getElementById("save-ratings");
  save.hidden = ratings.size === 0;
  save.addEventListener("click", () => {
    const lines = [...ratings.values()].map((each) => COLUMNS.map((name) => String(each[name] ?? "").replace(/\s+/g, " ")));
    const text = [COLUMNS, ...lines].map((cells) => cells.join("\t")).join("\n");
    const link = document.createElement("a");
    link.setAttribute("href", URL.createObjectURL(new Blob([`${text}\n`], { type: "text/plain" })));
    link.download = "ratings.tsv";
    link.click();
  });

  for (const heading of table.tHead.rows[0].cells) {
    const button = heading.querySelector("button");
    if (button) button.addEventListener("click", () => sort(heading));
  }
  find.addEventListener("input", filter);
  show.addEventListener("change", filter);
})();
