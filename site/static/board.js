"use strict";
/* The leaderboard: filters and order, both kept in the address, and the shown rows as a file. */
(() => {
  const form = document.getElementById("filters");
  const boards = [...document.querySelectorAll(".board")];
  const FACETS = ["target", "hardware", "engine", "dtype", "temperature"];
  const original = new Map(boards.map((board) => [board, [...board.querySelectorAll("tbody tr")]]));
  const heads = [...document.querySelectorAll("th[data-col]")];
  const records = JSON.parse(document.getElementById("records").textContent);
  let order = { column: "", down: false };

  const field = (name) => form.elements.namedItem(name);
  const cellAt = (row, at) => [...row.cells].find((cell) => cell.dataset.c === at);

  /* Which columns belong to a task: the heading above them names it. */
  const columnTasks = (board) => {
    const tasks = new Map();
    for (const head of board.querySelectorAll("th[data-col*='/']")) {
      tasks.set(head.dataset.c, head.dataset.col.slice(0, head.dataset.col.lastIndexOf("/")));
    }
    return tasks;
  };

  const fitsK = (row, k) => {
    if (row.dataset.k === "" || k === "all") return true;
    return k === "" ? "best" in row.dataset : row.dataset.k === k;
  };

  const filterBoard = (board) => {
    const task = field("task") ? field("task").value : "";
    const k = field("k").value;
    board.hidden = FACETS.some((name) => field(name) && field(name).value && field(name).value !== board.dataset[name]);
    const tasks = columnTasks(board);
    const hides = (name) => task !== "" && name !== undefined && name !== task;
    for (const cell of board.querySelectorAll("[data-c]")) cell.hidden = hides(tasks.get(cell.dataset.c));
    for (const part of board.querySelectorAll("[data-task]")) part.hidden = hides(part.dataset.task);
    if (task !== "" && ![...tasks.values()].includes(task)) board.hidden = true;
    for (const row of original.get(board)) row.hidden = !fitsK(row, k);
  };

  const valueOf = (row, at) => {
    const cell = cellAt(row, at);
    if (!cell) return null;
    const holder = [...cell.querySelectorAll("[data-value]")].find((one) => !one.closest("[hidden]"));
    if (holder) return Number(holder.dataset.value);
    const text = cell.textContent.trim();
    return cell.classList.contains("number") || cell.colSpan > 1 || text === "–" ? null : text;
  };

  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };

  /* Rows without a value come last, whichever the direction. */
  const sortBoard = (board) => {
    const own = heads.filter((one) => board.contains(one));
    const head = own.find((one) => one.dataset.col === order.column);
    for (const one of own) {
      if (one === head) one.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else one.removeAttribute("aria-sort");
    }
    const rows = original.get(board).map((row) => ({ row, value: head ? valueOf(row, head.dataset.c) : null }));
    if (head) {
      rows.sort((a, b) => {
        if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
        return order.down ? compare(b.value, a.value) : compare(a.value, b.value);
      });
    }
    board.querySelector("tbody").append(...rows.map((one) => one.row));
  };

  const tell = () => {
    const shown = boards.filter((board) => !board.hidden);
    const rows = shown.flatMap((board) => original.get(board).filter((row) => !row.hidden));
    const all = boards.flatMap((board) => original.get(board));
    document.getElementById("shown").textContent =
      `${rows.length} of ${all.length} rows in ${shown.length} of ${boards.length} tables`;
    document.getElementById("nothing").hidden = shown.length > 0 || boards.length === 0;
  };

  const update = () => {
    for (const board of boards) {
      filterBoard(board);
      sortBoard(board);
    }
    tell();
  };

  const address = () => {
    const parts = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) parts.set(name, value);
    if (order.column) parts.set("sort", `${order.column}:${order.down ? "down" : "up"}`);
    return parts.toString();
  };

  const write = () => {
    const wanted = address();
    if (wanted !== location.hash.slice(1)) history.replaceState(null, "", wanted ? `#${wanted}` : location.pathname);
    update();
  };

  /* An address without "=" names a place in the page and changes no filter. */
  const read = () => {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) return update();
    const parts = new URLSearchParams(hash);
    for (const select of form.querySelectorAll("select")) {
      const value = parts.get(select.name) || "";
      select.value = [...select.options].some((option) => option.value === value) ? value : "";
    }
    const sort = parts.get("sort") || "";
    const cut = sort.lastIndexOf(":");
    const column = cut < 0 ? sort : sort.slice(0, cut);
    const known = heads.some((head) => head.dataset.col === column);
    order = { column: known ? column : "", down: known && sort.endsWith(":down") };
    return update();
  };

  const press = (head) => {
    const first = !head.dataset.col.match(/^(method|measured|memory|energy)$|t_draft_ms$/);
    const same = order.column === head.dataset.col;
    if (same && order.down !== first) order = { column: "", down: false };
    else order = { column: head.dataset.col, down: same ? !order.down : first };
    write();
  };

  for (const head of heads) {
    const label = head.querySelector("span");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.textContent = label.textContent;
    button.addEventListener("click", () => press(head));
    label.replaceWith(button);
  }

  const taken = () => {
    const cells = boards.filter((board) => !board.hidden)
      .flatMap((board) => [...board.querySelectorAll("tbody tr:not([hidden]) [data-i]:not([hidden])")]);
    return cells.map((cell) => records.rows[Number(cell.dataset.i)]);
  };
  const plain = (value) => {
    if (value === null) return "";
    return Array.isArray(value) ? value.join("; ") : String(value);
  };
  /* A spreadsheet takes a text that begins so for a formula. */
  const inert = (value) => {
    const text = plain(value);
    return typeof value !== "number" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  };
  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const cellText = (value) => plain(value).replace(/[\\|`*_~[\]<>&]/g, (c) => `\\${c}`).replace(/\s+/g, " ");
  const FORMATS = {
    csv: (rows) => [records.fields, ...rows].map((row) => row.map((v) => quoted(inert(v))).join(",")).join("\n") + "\n",
    json: (rows) => JSON.stringify(
      rows.map((row) => Object.fromEntries(records.fields.map((name, i) => [name, row[i]]))), null, 1) + "\n",
    markdown: (rows) => [records.fields, records.fields.map(() => "---"), ...rows]
      .map((row) => `| ${row.map(cellText).join(" | ")} |`).join("\n") + "\n",
  };
  const ENDINGS = { csv: "csv", json: "json", markdown: "md" };

  for (const button of form.querySelectorAll("[data-take]")) {
    button.addEventListener("click", () => {
      const kind = button.dataset.take;
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([FORMATS[kind](taken())], { type: "text/plain" }));
      link.download = `draftboard.${ENDINGS[kind]}`;
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  form.hidden = false;
  form.addEventListener("change", write);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    order = { column: "", down: false };
    setTimeout(write);
  });
  addEventListener("hashchange", read);
  read();
})();
