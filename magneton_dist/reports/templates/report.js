"use strict";
(() => {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = "Copied";
      } catch {
        // no clipboard for this page (file://, permissions): select the text instead
        getSelection().selectAllChildren(button.previousElementSibling);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  const box = document.getElementById("bands");
  if (!box) return;
  const data = JSON.parse(document.getElementById("data").textContent);
  const BAND = 26, GAP = 5;
  const MIN_SPAN_US = 50;
  const codes = Object.keys(data.looks);
  const indexOf = Object.fromEntries(codes.map((code, index) => [code, index]));
  const tip = document.getElementById("tip");
  let view = [0, data.span_us];
  let ink = {};

  const ends = (durations) => {
    const out = new Float64Array(durations.length);
    let sum = 0;
    durations.forEach((d, i) => { sum += d; out[i] = sum; });
    return out;
  };
  const plots = [...box.querySelectorAll("canvas[data-run]")].map((canvas) => {
    const rank = data.runs[canvas.dataset.run].ranks[canvas.dataset.rank];
    return { canvas, rank, ends: ends(rank.us), powerEnds: ends(rank.power_us) };
  });
  const axis = document.getElementById("axis");
  const cross = box.appendChild(document.createElement("div"));
  cross.style.cssText = "position:absolute;top:0;bottom:0;width:0;border-left:1px solid var(--soft);pointer-events:none;display:none";
  const brush = box.appendChild(document.createElement("div"));
  brush.style.cssText = "position:absolute;top:0;bottom:0;background:var(--soft);opacity:.25;pointer-events:none;display:none";

  /** Index of the first end beyond t. */
  const at = (ends, t) => {
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] <= t) low = middle + 1; else high = middle;
    }
    return low;
  };
  const seconds = (us) => {
    if (!us) return "0 s";
    const [value, unit] = us >= 1e6 ? [us / 1e6, "s"] : us >= 1e3 ? [us / 1e3, "ms"] : [us, "µs"];
    return `${Number(value.toPrecision(4))} ${unit}`;
  };

  function hatch(paint, size) {
    const dpr = devicePixelRatio || 1;
    const tile = document.createElement("canvas");
    tile.width = tile.height = Math.max(4, Math.round(size * dpr));
    paint(tile.getContext("2d"), tile.width);
    return tile.getContext("2d").createPattern(tile, "repeat");
  }

  function readInk() {
    const css = getComputedStyle(document.documentElement);
    const color = (name) => css.getPropertyValue(`--${name}`).trim();
    ink = { soft: color("soft"), line: color("line"), power: color("power"), fill: color("power-fill"), paper: color("paper"), accent: color("accent-ink"), text: color("ink") };
    ink.states = codes.map((code) => color(data.looks[code]) || "transparent");
    ink.states[indexOf.s] = hatch((ctx, n) => {
      ctx.fillStyle = color("shadow"); ctx.fillRect(0, 0, n, n);
      ctx.strokeStyle = color("shadow-stripe"); ctx.lineWidth = n * 0.24;
      for (const shift of [-n, 0, n]) {
        ctx.beginPath(); ctx.moveTo(shift - 1, n + 1); ctx.lineTo(shift + n + 1, -1); ctx.stroke();
      }
    }, 9);
    ink.states[indexOf.d] = hatch((ctx, n) => {
      ctx.fillStyle = color("done"); ctx.fillRect(0, 0, n, n);
      ctx.fillStyle = color("soft"); ctx.fillRect(n / 2 - 1, n / 2 - 1, n / 4, n / 4);
    }, 6);
    ink.states[indexOf.u] = hatch((ctx, n) => { ctx.fillStyle = color("unresolved"); ctx.fillRect(0, 0, n * 0.6, n); }, 5);
  }

  /** A canvas context in CSS pixels, cleared, and the canvas's width. */
  function sheet(canvas) {
    const dpr = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = Number(canvas.getAttribute("data-height") || canvas.getAttribute("height"));
    canvas.setAttribute("data-height", height);
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * dpr);
    canvas.height = Math.round(height * dpr);
    const ctx = canvas.getContext("2d");
    ctx.scale(dpr, dpr);
    return [ctx, width, height, dpr];
  }

  /** Every device pixel column shows the mix of states in its stretch of time, stacked. */
  function drawBand(ctx, plot, width, dpr) {
    const columns = Math.round(width * dpr), kinds = codes.length;
    const mix = new Float32Array(columns * kinds);
    const scale = columns / (view[1] - view[0]);
    for (let i = at(plot.ends, view[0]); i < plot.ends.length; i += 1) {
      const from = (plot.ends[i] - plot.rank.us[i] - view[0]) * scale;
      const to = (plot.ends[i] - view[0]) * scale;
      if (from >= columns) break;
      const kind = indexOf[plot.rank.codes[i]];
      if (kind === undefined) continue;
      for (let c = Math.max(0, Math.floor(from)); c < Math.min(columns, to); c += 1) {
        mix[c * kinds + kind] += Math.min(to, c + 1) - Math.max(from, c);
      }
    }
    const solid = (c) => {
      for (let k = 0; k < kinds; k += 1) if (mix[c * kinds + k] > 0.995) return k;
      return -1;
    };
    for (let c = 0; c < columns;) {
      const kind = solid(c);
      let end = c + 1;
      if (kind >= 0) {
        while (end < columns && solid(end) === kind) end += 1;
        ctx.fillStyle = ink.states[kind];
        ctx.fillRect(c / dpr, 0, (end - c) / dpr, BAND);
      } else {
        let y = BAND;
        for (let k = 0; k < kinds; k += 1) {
          const part = mix[c * kinds + k] * BAND;
          if (!part) continue;
          y -= part;
          ctx.fillStyle = ink.states[k];
          ctx.fillRect(c / dpr, y, 1 / dpr, part);
        }
      }
      c = end;
    }
  }

  function drawPower(ctx, plot, width, top, height) {
    const scale = width / (view[1] - view[0]);
    const y = (watts) => top + height - (watts / data.max_watts) * height;
    ctx.fillStyle = ink.fill;
    ctx.strokeStyle = ink.power;
    ctx.lineWidth = 1;
    ctx.beginPath();
    let open = false;
    for (let i = at(plot.powerEnds, view[0]); i < plot.powerEnds.length; i += 1) {
      const from = Math.max(-2, (plot.powerEnds[i] - plot.rank.power_us[i] - view[0]) * scale);
      const to = Math.min(width + 2, (plot.powerEnds[i] - view[0]) * scale);
      if (from > width) break;
      const watts = plot.rank.watts[i];
      if (watts === null) { open = false; continue; }
      if (open) ctx.lineTo(from, y(watts)); else ctx.moveTo(from, y(watts));
      ctx.lineTo(to, y(watts));
      ctx.fillRect(from, y(watts), to - from, top + height - y(watts));
      open = true;
    }
    ctx.stroke();
    ctx.strokeStyle = ink.line;
    ctx.beginPath(); ctx.moveTo(0, top + height - 0.5); ctx.lineTo(width, top + height - 0.5); ctx.stroke();
  }

  function drawSteps(ctx, plot, width) {
    const { steps_us: starts, steps } = plot.rank;
    const scale = width / (view[1] - view[0]);
    if (starts.length < 2 || ((starts[starts.length - 1] - starts[0]) / (starts.length - 1)) * scale < 5) return;
    ctx.fillStyle = ink.soft;
    ctx.font = "10px system-ui, sans-serif";
    for (let i = 0; i < starts.length; i += 1) {
      const x = (starts[i] - view[0]) * scale;
      if (x < 0 || x > width) continue;
      ctx.fillRect(x, BAND, 1, GAP - 1);
    }
  }

  function drawNote(ctx, plot, width) {
    const { note, note_us: since } = plot.rank;
    if (!note || since >= view[1]) return;
    const x = Math.max(0, ((since - view[0]) / (view[1] - view[0])) * width) + 10;
    ctx.font = "600 12px system-ui, sans-serif";
    const wide = ctx.measureText(note).width;
    if (x + wide + 12 > width) return;
    ctx.fillStyle = ink.paper;
    ctx.fillRect(x, 4, wide + 12, BAND - 8);
    ctx.fillStyle = plot.rank.note_waste ? ink.accent : ink.soft;
    ctx.textBaseline = "middle";
    ctx.fillText(note, x + 6, BAND / 2 + 0.5);
  }

  function drawAxis() {
    const [ctx, width] = sheet(axis);
    const span = view[1] - view[0];
    const rough = span / Math.max(2, width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
    ctx.fillStyle = ink.soft;
    ctx.font = "11px system-ui, sans-serif";
    for (let t = Math.ceil(view[0] / step) * step; t <= view[1]; t += step) {
      const x = ((t - view[0]) / span) * width;
      ctx.fillRect(x, 16, 1, 6);
      const text = seconds(Math.round(t * 1e3) / 1e3);
      ctx.textAlign = x < 20 ? "left" : x > width - 24 ? "right" : "center";
      ctx.fillText(text, x, 12);
    }
  }

  let due = false;
  function draw() {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      drawAxis();
      for (const plot of plots) {
        const [ctx, width, height, dpr] = sheet(plot.canvas);
        drawBand(ctx, plot, width, dpr);
        drawSteps(ctx, plot, width);
        drawPower(ctx, plot, width, BAND + GAP, height - BAND - GAP);
        drawNote(ctx, plot, width);
      }
    });
  }

  function show(from, to) {
    const span = Math.min(data.span_us, Math.max(MIN_SPAN_US, to - from));
    const start = Math.min(data.span_us - span, Math.max(0, from));
    view = [start, start + span];
    draw();
  }
  function zoom(factor, anchor = (view[0] + view[1]) / 2) {
    show(anchor - (anchor - view[0]) * factor, anchor + (view[1] - anchor) * factor);
  }
  const pan = (share) => show(view[0] + share * (view[1] - view[0]), view[1] + share * (view[1] - view[0]));
  const actions = { in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.25), right: () => pan(0.25), all: () => show(0, data.span_us) };
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", "0": "all", Home: "all" };

  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => actions[button.dataset.zoom]());
  }
  box.addEventListener("keydown", (event) => {
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });

  const timeAt = (canvas, clientX) => {
    const frame = canvas.getBoundingClientRect();
    return view[0] + ((clientX - frame.left) / frame.width) * (view[1] - view[0]);
  };

  /** What a rank does at t: one state, or the mix of a slice of time whose order is not kept. */
  function words(plot, t) {
    const rank = plot.rank, lines = [];
    const i = at(plot.ends, t);
    if (rank.slice_us) {
      const from = Math.floor(t / rank.slice_us) * rank.slice_us, sums = {};
      for (let k = at(plot.ends, from); k < plot.ends.length && plot.ends[k] - rank.us[k] < from + rank.slice_us - 1; k += 1) {
        sums[rank.codes[k]] = (sums[rank.codes[k]] || 0) + rank.us[k];
      }
      lines.push(`${seconds(from)}, slice of ${seconds(rank.slice_us)}`);
      for (const [code, us] of Object.entries(sums)) lines.push(`${data.looks[code] || "no record"} ${seconds(us)}`);
    } else if (i < plot.ends.length) {
      lines.push(`${data.looks[rank.codes[i]] || "no record"} ${seconds(rank.us[i])}`, `from ${seconds(plot.ends[i] - rank.us[i])}`);
    }
    const step = at(rank.steps_us, t) - 1;
    if (step >= 0 && t < (rank.note_us ?? Infinity)) lines.push(`step ${rank.steps[step]}`);
    const p = at(plot.powerEnds, t);
    if (p < plot.powerEnds.length && rank.watts[p] !== null) lines.push(`${rank.watts[p]} W ${plot.kind}`);
    return lines;
  }

  let drag = null;
  for (const plot of plots) {
    const { canvas } = plot;
    plot.kind = data.runs[canvas.dataset.run].kind;
    const move = (event) => {
      const frame = box.getBoundingClientRect(), x = event.clientX - frame.left;
      const lines = [`rank ${plot.rank.rank}`, ...words(plot, timeAt(canvas, event.clientX))];
      tip.replaceChildren(...lines.flatMap((line) => [document.createTextNode(line), document.createElement("br")]));
      tip.hidden = false;
      tip.style.left = `${Math.min(x + 14, frame.width - tip.offsetWidth - 4)}px`;
      tip.style.top = `${event.clientY - frame.top + 18}px`;
      cross.style.display = "block";
      cross.style.left = `${x}px`;
      if (!drag) return;
      if (event.pointerType === "mouse") {
        brush.style.display = "block";
        brush.style.left = `${Math.min(x, drag.x)}px`;
        brush.style.width = `${Math.abs(x - drag.x)}px`;
      } else {
        const shift = ((drag.clientX - event.clientX) / canvas.clientWidth) * (drag.view[1] - drag.view[0]);
        show(drag.view[0] + shift, drag.view[1] + shift);
      }
    };
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX - box.getBoundingClientRect().left, clientX: event.clientX, t: timeAt(canvas, event.clientX), view: [...view] };
      canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && event.pointerType === "mouse" && Math.abs(event.clientX - drag.clientX) > 5) {
        const t = timeAt(canvas, event.clientX);
        show(Math.min(t, drag.t), Math.max(t, drag.t));
      }
      drag = null;
      brush.style.display = "none";
    });
    canvas.addEventListener("pointercancel", () => { drag = null; brush.style.display = "none"; });
    canvas.addEventListener("pointerleave", () => { tip.hidden = true; cross.style.display = "none"; });
    canvas.addEventListener("dblclick", () => show(0, data.span_us));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(canvas, event.clientX));
    }, { passive: false });
  }

  const restyle = () => { readInk(); draw(); };
  new ResizeObserver(draw).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  matchMedia("print").addEventListener("change", restyle);
  restyle();
})();
