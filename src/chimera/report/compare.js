
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const plot = document.getElementById("plot"), legend = document.getElementById("legend");
// On a phone the chart is drawn narrower, so that its text keeps its size.
const WIDTH = matchMedia("(max-width: 700px)").matches ? 400 : 960;
const NS = "http://www.w3.org/2000/svg", BOX = {l: 62, r: WIDTH - 14, t: 12, b: 376};
plot.setAttribute("viewBox", `0 0 ${WIDTH} 420`);
let axis = Object.keys(data.axes)[0], view = null, log = false, hot = -1;

function make(name, attributes, text) {
  const node = document.createElementNS(NS, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  return node;
}
function shown() { return data.series.filter(s => s.shown && s.curves[axis].length); }
function height(y) { return log ? Math.log10(Math.max(y, 1e-12)) : y; }
function whole() {
  const all = shown().flatMap(s => s.curves[axis].slice(Math.floor(s.curves[axis].length / 40)));
  if (!all.length) return null;
  const xs = all.map(p => p[0]), low = all.map(p => height(p[2])), high = all.map(p => height(p[3]));
  const least = Math.min(...low), most = Math.max(...high), pad = 0.04 * (most - least || 1);
  return {x0: Math.min(...xs), x1: Math.max(...xs) || 1, y0: least - pad, y1: most + pad};
}
function px(x) { return BOX.l + (x - view.x0) / (view.x1 - view.x0) * (BOX.r - BOX.l); }
function py(y) { return BOX.b - (height(y) - view.y0) / (view.y1 - view.y0) * (BOX.b - BOX.t); }
function ticks(from, to, count) {
  const rough = (to - from) / count, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find(m => m * unit >= rough), out = [];
  for (let v = Math.ceil(from / step) * step; v <= to + step * 1e-9; v += step) out.push(v);
  return out;
}
function number(v) {
  const size = Math.abs(v);
  if (size >= 1e15) return v.toExponential(1);
  for (const [scale, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= scale) return +(v / scale).toPrecision(4) + unit;
  return String(+v.toPrecision(4));
}
function path(points) {
  return points.map((p, i) => (i ? "L" : "M") + px(p[0]).toFixed(1) + " " + py(p[1]).toFixed(1)).join("");
}
function draw() {
  plot.replaceChildren();
  if (!view && !(view = whole())) {
    plot.append(make("text", {x: WIDTH / 2, y: 210, "text-anchor": "middle"}, "not known for these runs"));
    return;
  }
  const clip = make("clipPath", {id: "inside"});
  clip.append(make("rect", {x: BOX.l, y: BOX.t, width: BOX.r - BOX.l, height: BOX.b - BOX.t}));
  plot.append(clip);
  for (const v of ticks(view.x0, view.x1, WIDTH / 120)) {
    plot.append(make("line", {x1: px(v), x2: px(v), y1: BOX.t, y2: BOX.b, stroke: "#e6e6e6"}));
    plot.append(make("text", {x: px(v), y: BOX.b + 16, "text-anchor": "middle"}, number(v)));
  }
  for (const v of ticks(view.y0, view.y1, 6)) {
    const real = log ? 10 ** v : v, y = py(real);
    plot.append(make("line", {x1: BOX.l, x2: BOX.r, y1: y, y2: y, stroke: "#e6e6e6"}));
    plot.append(make("text", {x: BOX.l - 6, y: y + 4, "text-anchor": "end"}, number(real)));
  }
  plot.append(make("text", {x: (BOX.l + BOX.r) / 2, y: 412, "text-anchor": "middle"}, data.axes[axis]));
  plot.append(make("text", {x: 14, y: 200, "text-anchor": "middle", transform: "rotate(-90 14 200)"},
    "training loss (nats)"));
  const inside = make("g", {"clip-path": "url(#inside)"});
  for (const s of shown()) {
    const points = s.curves[axis], back = points.slice().reverse();
    const area = path(points.map(p => [p[0], p[2]])) + path(back.map(p => [p[0], p[3]])).replace("M", "L") + "Z";
    inside.append(make("path", {d: area, fill: s.colour, opacity: 0.13}));
    const line = make("path", {d: path(points), fill: "none", stroke: s.colour, "stroke-dasharray": s.dash,
      "stroke-width": s.group === hot ? 3.4 : 1.7});
    line.append(make("title", {}, s.label));
    inside.append(line);
  }
  plot.append(inside);
}
function entry(s) {
  const row = document.createElement("label"), box = document.createElement("input");
  const sample = make("svg", {viewBox: "0 0 34 10"}), name = document.createElement("span");
  box.type = "checkbox"; box.checked = s.shown;
  box.onchange = () => choose(s, box.checked);
  sample.append(make("line", {x1: 0, x2: 34, y1: 5, y2: 5, stroke: s.colour, "stroke-dasharray": s.dash,
    "stroke-width": 2.4}));
  name.textContent = s.label;
  row.append(box, sample, name);
  row.onmouseenter = () => { hot = s.group; draw(); };
  row.onmouseleave = () => { hot = -1; draw(); };
  return row;
}
function choose(s, on) { s.shown = on; view = null; list(); draw(); }
function list() {
  legend.replaceChildren(...data.series.filter(s => s.shown).map(entry));
  for (const box of document.querySelectorAll("input[data-group]")) {
    const s = data.series.find(each => each.group === +box.dataset.group);
    if (s) box.checked = s.shown;
  }
}
function at(event) {
  const area = plot.getBoundingClientRect();
  return [(event.clientX - area.left) * WIDTH / area.width, (event.clientY - area.top) * 420 / area.height];
}
function around(low, high, share, factor) {
  const middle = low + share * (high - low);
  return [middle - (middle - low) * factor, middle + (high - middle) * factor];
}
plot.addEventListener("wheel", event => {
  if (!view) return;
  event.preventDefault();
  const [x, y] = at(event), factor = event.deltaY > 0 ? 1.2 : 1 / 1.2;
  [view.x0, view.x1] = around(view.x0, view.x1, (x - BOX.l) / (BOX.r - BOX.l), factor);
  [view.y0, view.y1] = around(view.y0, view.y1, (BOX.b - y) / (BOX.b - BOX.t), factor);
  draw();
}, {passive: false});
let from = null;
plot.addEventListener("pointerdown", event => { from = [at(event), {...view}]; plot.setPointerCapture(event.pointerId); });
plot.addEventListener("pointermove", event => {
  if (!from || !view) return;
  const [x, y] = at(event), [start, old] = from;
  const dx = (x - start[0]) / (BOX.r - BOX.l) * (old.x1 - old.x0);
  const dy = (y - start[1]) / (BOX.b - BOX.t) * (old.y1 - old.y0);
  view = {x0: old.x0 - dx, x1: old.x1 - dx, y0: old.y0 + dy, y1: old.y1 + dy};
  draw();
});
plot.addEventListener("pointerup", () => { from = null; });
plot.addEventListener("dblclick", () => { view = null; draw(); });
for (const button of document.querySelectorAll("button[data-axis]"))
  button.onclick = () => { axis = button.dataset.axis; view = null; mark(); draw(); };
function mark() {
  for (const each of document.querySelectorAll("button[data-axis]")) each.classList.toggle("on", each.dataset.axis === axis);
}
document.getElementById("log").onchange = event => { log = event.target.checked; view = null; draw(); };
for (const box of document.querySelectorAll("input[data-group]")) {
  const s = data.series.find(each => each.group === +box.dataset.group);
  if (s) { box.hidden = false; box.onchange = () => choose(s, box.checked); }
}
for (const table of document.querySelectorAll("table.rows"))
  table.querySelectorAll("th").forEach((head, column) => {
    let up = true;
    head.onclick = () => {
      const value = row => row.cells[column].dataset.v || "", body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => {
        const x = value(a), y = value(b);
        if (x === "" || y === "") return (x === "") - (y === "");
        const order = isNaN(+x) || isNaN(+y) ? x.localeCompare(y) : +x - +y;
        return up ? order : -order;
      });
      up = !up;
      body.append(...rows);
    };
  });
const filter = document.getElementById("filter");
filter.hidden = false;
filter.oninput = () => {
  const word = filter.value.toLowerCase();
  for (const row of document.querySelectorAll("table.rows tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(word);
};
document.getElementById("chart").hidden = !data.series.length;
mark(); list(); draw();
