// What the page does beyond HTML and CSS: shows values under the pointer, switches the theme, opens what is folded for
// print. Everything that is drawn is there without it.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTU";
  const COLOURS = 7;
  const COLUMN = { steps: "step", seconds: "seconds", bytes: "nbytes" };

  // Theme: what the reader's system asks for, until the button says otherwise.
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const remembered = () => { try { return localStorage.getItem("terngrad-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("terngrad-theme", theme); } catch { /* private mode */ } };
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
  });

  // Numbers, as in the rest of the page.
  const digits = (value, count) => {
    if (!value) return "0";
    const exponent = Math.floor(Math.log10(Math.abs(value)));
    if (exponent < -3 || exponent >= 7) return value.toExponential(count - 1);
    const places = Math.max(0, count - 1 - exponent);
    return value.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places });
  };
  const inUnits = (value, units) => {
    const [name, worth] = units.filter(([, each]) => value >= each).pop() || units[0];
    return `${digits(value / worth, 3)} ${name}`;
  };
  const BYTES = [["B", 1], ["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]];
  const SECONDS = [["ms", 1e-3], ["s", 1], ["min", 60], ["h", 3600]];
  const position = {
    steps: (value) => `step ${Math.round(value).toLocaleString("en-US")}`,
    seconds: (value) => inUnits(value, SECONDS),
    bytes: (value) => inUnits(value, BYTES),
  };
  const valueText = (value, metric) => (metric === "accuracy" ? `${(100 * value).toFixed(2)}%` : digits(value, 4));

  // Scales, from the attributes that the chart carries.
  const scaleOf = (text) => {
    const [low, high, start, end] = text.split(" ").slice(0, 4).map(Number);
    const by = text.endsWith("log") ? Math.log10 : (value) => value;
    const back = text.endsWith("log") ? (value) => 10 ** value : (value) => value;
    const share = (value) => (by(value) - by(low)) / (by(high) - by(low));
    return {
      start, end,
      to: (value) => start + share(value) * (end - start),
      from: (place) => back(by(low) + ((place - start) / (end - start)) * (by(high) - by(low))),
    };
  };

  const element = (name, attributes, parent) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return parent.appendChild(made);
  };
  const html = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const classesOf = (run) => `c${run % COLOURS} d${Math.floor(run / COLOURS)}`;

  // The point of a run that is nearest to x, of those that have a value.
  const nearest = (run, column, x) => {
    let best = -1;
    run[column].forEach((value, index) => {
      if (value === null || run.value[index] === null) return;
      if (best < 0 || Math.abs(value - x) < Math.abs(run[column][best] - x)) best = index;
    });
    return best;
  };

  for (const chart of document.querySelectorAll(".chart[data-x]")) {
    const { metric, runs } = data[chart.closest("figure").dataset.chart];
    const axis = chart.dataset.axis;
    const column = COLUMN[axis];
    const x = scaleOf(chart.dataset.x);
    const y = scaleOf(chart.dataset.y);
    const section = chart.closest("section");
    const shown = (run) => section.querySelector(`.show.r${run.run}`)?.checked ?? true;
    let marks = null;
    let place = x.end;

    const hide = () => {
      marks?.remove();
      marks = null;
      tip.hidden = true;
    };
    const show = (wanted) => {
      hide();
      place = Math.min(Math.max(wanted, x.start), x.end);
      const at = x.from(place);
      const held = runs.filter(shown).map((run) => [run, nearest(run, column, at)]).filter(([run, index]) =>
        index >= 0 && Math.abs(x.to(run[column][index]) - place) < 0.06 * (x.end - x.start));
      marks = element("g", {}, chart);
      element("line", { class: "cursor", x1: place, x2: place, y1: y.start, y2: y.end }, marks);
      tip.replaceChildren(html("strong", "", position[axis](at)));
      for (const [run, index] of held) {
        const height = y.to(run.value[index]);
        if (height <= y.start && height >= y.end) {
          element("circle", { class: `dot held ${classesOf(run.run)}`, cx: x.to(run[column][index]), cy: height, r: 4 }, marks);
        }
        const row = html("p");
        row.append(html("span", `chip ${classesOf(run.run)}`, LETTERS[run.run]), html("span", "run-name", run.label),
          html("b", "", valueText(run.value[index], metric)));
        tip.append(row);
      }
      const box = chart.getBoundingClientRect();
      const scale = box.width / chart.viewBox.baseVal.width;
      tip.hidden = false;
      const left = box.left + place * scale;
      const beside = left + 16 + tip.offsetWidth < innerWidth ? left + 16 : left - 16 - tip.offsetWidth;
      const above = Math.min(Math.max(8, box.top + 8), innerHeight - tip.offsetHeight - 8);
      tip.style.transform = `translate(${Math.max(8, beside)}px, ${above}px)`;
    };
    const follow = (event) => {
      const box = chart.getBoundingClientRect();
      show(((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width);
    };
    chart.addEventListener("pointermove", follow);
    chart.addEventListener("pointerdown", follow);
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
      if (event.key === "Escape") hide();
      if (step === undefined) return;
      event.preventDefault();
      show(place + (Number.isFinite(step) ? step * 0.02 : step) * (x.end - x.start));
    });
  }

  // Print shows what is folded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of folded) part.open = false; });
})();
