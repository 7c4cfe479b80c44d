// worker.js: Python and the compiler, in a thread of their own. Answers the last plan that it was given, stage by stage,
// and leaves the rest of an answer out when another plan has come.
//
// in:  {kind: "plan", number, request}, {kind: "stop"}, {kind: "graph", name, bytes}
// out: {kind: "ready"}, {kind: "begun"} with a plan, {kind: "answer", number, ms, answer}, {kind: "idle"},
//      {kind: "graph", answer}, {kind: "failed", error}

import { loadPyodide } from "./pyodide/pyodide.mjs";

const GLUE = `
import json
from pathlib import Path
from ssdsl.playground.answer import Playground

playground = Playground()

def stages(request):
    for answer in playground.answers(json.loads(request)):
        yield json.dumps(answer)

def add_graph(name, path):
    return json.dumps(playground.add_graph(name, Path(path)))
`;
const CACHE = "/cache/"; // of the parser's tables

let waiting = null; // the plan that is answered next
let isBusy = true;
let isStopped = false;
let python = null;
const shipped = new Map(); // the bytes of graphs that are on their way, by their files
const own = new Map(); // the bytes of graphs that the user gave, by their names

const FRESH = { cache: "no-cache" }; // asks whether the file has changed: those of a page belong together
const files = fetch("python.bin", FRESH).then(unpacked);
const models = fetch("catalogue.json", FRESH).then((response) => response.json()).then(({ models }) => models);

onmessage = ({ data }) => {
  if (data.kind === "graph") {
    own.set(data.name, data.bytes);
    return void started.then(() => python && postMessage({ kind: "graph", answer: addGraph(data.name, data.bytes) }));
  }
  isStopped = true; // the answer that is being made
  if (data.kind === "stop") return void (waiting = null);
  waiting = data;
  const [, name] = data.request.text.match(/^# *for:.*(?:--model|-m)[ =](\S+)/m) ?? [null, data.request.model];
  void graph(name);
  if (!isBusy) void next();
};

const started = start().then(
  () => postMessage({ kind: "ready" }),
  (error) => postMessage({ kind: "failed", error: String(error) }),
);
void started.then(next);

async function start() {
  const loading = loadPyodide({
    env: { XDG_CACHE_HOME: CACHE, HOME: "/home/pyodide" },
    fsInit: async (FS, { sitePackages }) => write(FS, await files, { "site/": `${sitePackages}/`, "cache/": CACHE }),
  });
  const [pyodide] = await Promise.all([loading, files]);
  pyodide.runPython(GLUE);
  python = pyodide;
}

// ---- answers -----------------------------------------------------------------------------------------------------

async function next() {
  isBusy = true;
  while (python && waiting) {
    const asked = waiting;
    waiting = null;
    isStopped = false;
    postMessage({ kind: "begun" });
    try {
      await answer(asked);
    } catch (error) {
      python = null; // it may be in any state
      postMessage({ kind: "failed", error: String(error) });
    }
  }
  isBusy = false;
  postMessage({ kind: "idle" });
}

async function answer({ number, request }) {
  const begun = performance.now();
  const stages = python.globals.get("stages")(JSON.stringify(request));
  for (let item = stages.next(); !item.done && !isStopped; item = stages.next()) {
    const found = JSON.parse(item.value);
    const bytes = found.wants ? await graph(found.wants) : null;
    if (bytes && !addGraph(found.wants, bytes).diagnostics.length) {
      stages.destroy();
      return isStopped || answer({ number, request });
    }
    postMessage({ kind: "answer", number, ms: performance.now() - begun, answer: found });
    await turn();
  }
  stages.destroy();
}

// Lets messages in.
const turn = () =>
  new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => (port1.close(), resolve());
    port2.postMessage(null);
  });

// ---- graphs ------------------------------------------------------------------------------------------------------

// The bytes of a model's graph, if the page or the user has it.
async function graph(name) {
  if (own.has(name)) return own.get(name);
  const model = (await models).find(({ names }) => names.includes(name));
  if (!model) return null;
  if (!shipped.has(model.file)) {
    const fetched = fetch(`graphs/${model.file}`, FRESH).then((response) => (response.ok ? response.arrayBuffer() : null));
    shipped.set(model.file, fetched.catch(() => null));
  }
  return shipped.get(model.file);
}

// Gives Python a graph; what it says of it.
function addGraph(name, bytes) {
  const file = "/tmp/model.graph";
  python.FS.writeFile(file, new Uint8Array(bytes));
  const said = JSON.parse(python.globals.get("add_graph")(name, file));
  python.FS.unlink(file);
  return said;
}

// ---- files -------------------------------------------------------------------------------------------------------

// The members of a compressed tar archive.
async function unpacked(response) {
  if (!response.ok) throw new Error(`${response.url}: ${response.status}`);
  const stream = response.body.pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const text = (start, length) => new TextDecoder().decode(bytes.subarray(start, start + length)).replace(/\0.*$/s, "");
  const found = [];
  for (let at = 0; at + 512 <= bytes.length && bytes[at]; ) {
    const prefix = text(at + 345, 155);
    const name = (prefix && `${prefix}/`) + text(at, 100);
    const size = parseInt(text(at + 124, 12), 8);
    found.push([name, bytes.subarray(at + 512, at + 512 + size)]);
    at += 512 + Math.ceil(size / 512) * 512;
  }
  return found;
}

function write(FS, members, places) {
  const made = new Set();
  for (const [name, bytes] of members) {
    const [begins] = Object.keys(places).filter((prefix) => name.startsWith(prefix));
    const path = places[begins] + name.slice(begins.length);
    const folder = path.slice(0, path.lastIndexOf("/"));
    if (!made.has(folder)) FS.mkdirTree(folder);
    made.add(folder);
    FS.writeFile(path, bytes, { canOwn: true });
  }
}
