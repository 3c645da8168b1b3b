"use strict";
// Draws the bodies of a simulation on a canvas as rods and boxes, from the farthest to the nearest.
const scene = JSON.parse(document.getElementById("data").textContent);
const canvas = document.querySelector("canvas");
const pen = canvas.getContext("2d");
const slider = document.querySelector("input[type=range]");
const play = document.querySelector("button");
const speed = document.querySelector("select");
const clock = document.querySelector("output");
const FACES = [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]];
const NEAR = 0.05; // as a share of the camera distance; closer points are not drawn
const view = { ...scene.view };
let frame = 0, time = 0, before = null, isPlaying = true;

const add = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
const minus = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];

function rotated(turn, vector) { // rotates a vector by the quaternion [w, x, y, z]
  const axis = turn.slice(1), across = cross(axis, vector).map((x) => 2 * x);
  return add(add(vector, across.map((x) => turn[0] * x)), cross(axis, across));
}

function placed(point, pose) {
  return pose ? add(rotated(pose.slice(3), point), pose.slice(0, 3)) : point;
}

function camera(target) {
  const [a, e] = [view.azimuth, view.elevation];
  const right = [Math.cos(a), Math.sin(a), 0];
  const back = [Math.sin(a) * Math.cos(e), -Math.cos(a) * Math.cos(e), Math.sin(e)];
  const up = cross(back, right);
  const scale = Math.min(canvas.width, canvas.height * 4 / 3) / view.across; // pixels per meter at the target
  return {
    back,
    // Returns the position on the canvas, the pixels per meter there, and the nearness of a point.
    see(point) {
      const q = minus(point, target), nearness = dot(q, back), depth = 1 - nearness / view.distance;
      const size = depth > NEAR ? scale / depth : 0;
      return { x: canvas.width / 2 + dot(q, right) * size, y: canvas.height / 2 - dot(q, up) * size, size, nearness };
    },
  };
}

function polygon(points, color) {
  if (points.some((point) => !point.size)) return;
  pen.beginPath();
  for (const point of points) pen.lineTo(point.x, point.y);
  pen.closePath();
  pen.fillStyle = color;
  pen.fill();
}

function ground(eye, target) {
  const size = scene.square, reach = Math.ceil(1.5 * view.across / size);
  if (reach > 60) return;
  const [column, row] = [Math.round(target[0] / size), Math.round(target[1] / size)];
  for (let i = column - reach; i <= column + reach; i++) {
    for (let j = row - reach; j <= row + reach; j++) {
      const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]].map(([x, y]) => eye.see([x * size, y * size, 0]));
      polygon(corners, (i + j) % 2 ? "#e6e9ed" : "#f4f6f8");
    }
  }
}

function shadow(eye, parts) {
  if (view.elevation < 0.03) return;
  for (const part of parts) {
    if (part.shape.body < 0) continue;
    const flat = part.points.map((point) => eye.see([point[0], point[1], 0]));
    if (flat.some((point) => !point.size)) continue;
    pen.globalAlpha = 0.1;
    if (part.shape.radius === undefined) for (const face of FACES) polygon(face.map((k) => flat[k]), "#000");
    else stroke(flat, 2 * part.shape.radius * Math.sin(view.elevation), "#000");
    pen.globalAlpha = 1;
  }
}

function stroke([start, end], width, color, shift = 0) {
  const size = (start.size + end.size) / 2, by = shift * size;
  pen.beginPath();
  pen.moveTo(start.x - by, start.y - by);
  pen.lineTo(end.x - by + 0.01, end.y - by); // lines of zero length would have no caps
  pen.lineWidth = Math.max(width * size, 1);
  pen.lineCap = "round";
  pen.strokeStyle = color;
  pen.stroke();
}

function shaded(color, light) { // light: 0 black, 1 unchanged, 2 white
  const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return `rgb(${parts.map((x) => Math.round(light <= 1 ? x * light : x + (255 - x) * (light - 1))).join(",")})`;
}

function rod(eye, points, { radius, color }) {
  const ends = points.map(eye.see);
  if (ends.some((end) => !end.size)) return;
  stroke(ends, 2 * radius, shaded(color, 0.6));
  stroke(ends, 1.8 * radius, color);
  stroke(ends, 0.9 * radius, shaded(color, 1.22), 0.25 * radius);
}

function box(eye, points, { color }) {
  const corners = points.map(eye.see);
  for (const face of FACES) {
    const [a, b, , d] = face.map((k) => points[k]);
    const out = cross(minus(b, a), minus(d, a)), length = Math.hypot(...out) || 1;
    const middle = points.reduce(add).map((x) => x / 8);
    const sign = dot(out, minus(a, middle)) < 0 ? -1 : 1;
    if (sign * dot(out, eye.back) > 0) polygon(face.map((k) => corners[k]), shaded(color, 0.75 + 0.35 * sign * out[2] / length));
  }
}

function draw() {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(canvas.clientWidth * ratio);
  canvas.height = Math.round(canvas.clientHeight * ratio);
  const poses = scene.frames[frame], looks = scene.targets[frame];
  const target = [looks[0], looks[1], view.height];
  const eye = camera(target);
  pen.clearRect(0, 0, canvas.width, canvas.height);
  ground(eye, target);
  const parts = scene.shapes.map((shape) => {
    const points = shape.points.map((point) => placed(point, shape.body < 0 ? null : poses[shape.body]));
    const middle = points.reduce(add).map((x) => x / points.length);
    return { shape, points, nearness: eye.see(middle).nearness };
  });
  shadow(eye, parts);
  parts.sort((a, b) => a.nearness - b.nearness);
  for (const { shape, points } of parts) (shape.radius === undefined ? box : rod)(eye, points, shape);
  slider.value = frame;
  clock.textContent = `step ${scene.steps[frame]}, ${(frame * scene.seconds).toFixed(2)} s`;
  canvas.dataset.frame = frame;
}

function tick(now) {
  if (isPlaying && before !== null) {
    time += Number(speed.value) * (now - before) / 1000;
    const next = Math.floor(time / scene.seconds) % scene.frames.length;
    if (next !== frame) { frame = next; draw(); }
  }
  before = now;
  requestAnimationFrame(tick);
}

function show(number) {
  frame = (number % scene.frames.length + scene.frames.length) % scene.frames.length;
  time = frame * scene.seconds;
  draw();
}

function setPlaying(value) {
  isPlaying = value;
  play.textContent = value ? "Pause" : "Play";
}

play.onclick = () => setPlaying(!isPlaying);
slider.oninput = () => { setPlaying(false); show(Number(slider.value)); };
canvas.onpointermove = (event) => {
  if (!event.buttons) return;
  view.azimuth -= event.movementX / 200;
  view.elevation = Math.min(Math.PI / 2, Math.max(-0.2, view.elevation + event.movementY / 200));
  draw();
};
canvas.onpointerdown = (event) => canvas.setPointerCapture(event.pointerId);
canvas.ondblclick = () => { Object.assign(view, scene.view); draw(); };
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const factor = Math.exp(event.deltaY / 1000);
  view.across *= factor;
  view.distance *= factor;
  draw();
}, { passive: false });
document.onkeydown = (event) => {
  if (event.target instanceof HTMLSelectElement) return;
  if (event.key === " ") { event.preventDefault(); setPlaying(!isPlaying); }
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    event.preventDefault();
    setPlaying(false);
    show(frame + (event.key === "ArrowLeft" ? -1 : 1));
  }
};
window.onresize = draw;
const asked = parseInt(location.hash.slice(1)); // page.html#12 opens frame 12 paused
if (asked >= 0) setPlaying(false);
show(asked >= 0 ? asked : 0);
requestAnimationFrame(tick);
