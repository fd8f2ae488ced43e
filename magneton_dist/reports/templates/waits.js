(() => {
  const charts = [...document.querySelectorAll("canvas[data-waits]")];
  if (!charts.length) return;
  const island = JSON.parse(document.getElementById("data").textContent);
  const seconds = (us) => us >= 1e6 ? `${Number((us / 1e6).toPrecision(4))} s` : us >= 1e3 ? `${Number((us / 1e3).toPrecision(4))} ms` : `${us} µs`;
  const AXIS = 26, LABELS = 46;

  function draw(canvas) {
    const waits = island.waits[canvas.dataset.waits], dpr = devicePixelRatio || 1;
    const css = getComputedStyle(document.documentElement), color = (name) => css.getPropertyValue(`--${name}`).trim();
    const width = canvas.clientWidth, height = waits.ranks.length * waits.row_px + AXIS;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * dpr);
    canvas.height = Math.round(height * dpr);
    const ctx = canvas.getContext("2d");
    ctx.scale(dpr, dpr);
    const n = waits.columns.length, cell = (width - LABELS) / n;
    const longest = Math.max(1, ...waits.us.map((row) => Math.max(...row)));
    ctx.fillStyle = color("soft");
    ctx.font = "11px system-ui, sans-serif";
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    const every = Math.ceil(14 / waits.row_px);
    waits.ranks.forEach((rank, r) => { if (r % every === 0) ctx.fillText(rank, LABELS - 6, (r + 0.5) * waits.row_px); });
    ctx.translate(LABELS, 0);
    ctx.fillStyle = color("wash");
    ctx.fillRect(0, 0, width - LABELS, height - AXIS);
    ctx.fillStyle = color("accent");
    waits.us.forEach((row, r) => row.forEach((us, c) => {
      if (!us) return;
      ctx.globalAlpha = 0.08 + 0.92 * Math.sqrt(us / longest);
      ctx.fillRect(c * cell, r * waits.row_px, Math.max(cell - (cell > 4 ? 1 : 0), 0.5), waits.row_px - (waits.row_px > 4 ? 1 : 0));
    }));
    ctx.globalAlpha = 1;
    // the culprit of each column, where it is among the rows
    ctx.fillStyle = color("ink");
    waits.columns.forEach((column, c) => {
      const r = waits.ranks.indexOf(column.culprit);
      if (r < 0) return;
      const high = Math.min(waits.row_px - 1, 6), wide = Math.max(Math.min(cell - 1, 6), 1);
      ctx.fillRect((c + 0.5) * cell - wide / 2, (r + 0.5) * waits.row_px - high / 2, wide, high);
    });
    ctx.fillStyle = color("soft");
    ctx.textBaseline = "bottom";
    const apart = Math.max(1, Math.ceil(90 / cell));
    for (let c = 0; c < n; c += apart) {
      ctx.fillRect(c * cell, height - AXIS + 2, 1, 6);
      ctx.textAlign = c ? (c + apart / 2 > n ? "right" : "center") : "left";
      ctx.fillText(seconds(waits.columns[c].at_us), c * cell, height - 2);
    }
  }

  for (const canvas of charts) {
    const tip = canvas.nextElementSibling, waits = island.waits[canvas.dataset.waits];
    canvas.addEventListener("pointermove", (event) => {
      const frame = canvas.getBoundingClientRect();
      const c = Math.min(waits.columns.length - 1, Math.max(0, Math.floor(((event.clientX - frame.left - LABELS) / (frame.width - LABELS)) * waits.columns.length)));
      const r = Math.floor((event.clientY - frame.top) / waits.row_px);
      tip.hidden = !(r >= 0 && r < waits.ranks.length);
      if (tip.hidden) return;
      const column = waits.columns[c];
      const lines = [`rank ${waits.ranks[r]} waited ${seconds(waits.us[r][c])}`, column.what, column.culprit === null ? "nobody can be named" : `rank ${column.culprit} came last`];
      if (column.step !== null) lines.push(`step ${column.step}`);
      tip.replaceChildren(...lines.flatMap((line) => [document.createTextNode(line), document.createElement("br")]));
      const x = event.clientX - frame.left;
      tip.style.left = `${Math.max(0, Math.min(x + 14, frame.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${event.clientY - frame.top + 18}px`;
    });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
    new ResizeObserver(() => draw(canvas)).observe(canvas);
  }
  const all = () => charts.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  matchMedia("print").addEventListener("change", all);
  all();
})();
