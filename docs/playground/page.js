// page.js: puts the page together: the plan and its options, what the compiler answers, and the link that shows it again.

import { Compiler } from "./compiler.js";
import { Editor } from "./editor.js";
import { element, spelled } from "./elements.js";
import { TimelineFrame } from "./frame.js";
import { edited } from "./edit.js";
import { optionOf, withOption } from "./header.js";
import { fragmentOf, shownBy } from "./link.js";
import { writeFigures, writeMemory, writeTable } from "./tables.js";

const MOST_FIXES = 3; // buttons of a message
const PAUSE = 200; // milliseconds after the last key
const OWN = ".graph"; // the end of the name of a graph of the user's

const at = (id) => document.getElementById(id);
const compiler = new Compiler(answered, failed, () => status("compiling")); // it takes longest to start
const catalogue = await (await fetch("catalogue.json", { cache: "no-cache" })).json();
const frame = new TimelineFrame(at("timeline"), light);
const editor = new Editor(at("editor"), catalogue.keywords, typed, (line) => frame.point(line));

const fallback = { model: catalogue.model, cluster: catalogue.cluster }; // of a plan whose header names none
let name = "plan.ssp";
let diagnostics = []; // of the stages so far
let notices = []; // of the page: texts, or elements
let remark = null; // of the link that was opened
let proof = "";
let timer = 0;
let opening = null; // the name of a graph that the user has just given
let drawnText = null; // the text of the plan that the timeline shows
let isNew = false; // whether no stage of the last answer has come
let stepTime = 0; // milliseconds

// ---- the plan ----------------------------------------------------------------------------------------------------

function typed() {
  compiler.cancel();
  document.body.classList.add("busy");
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE);
}

function ask() {
  clearTimeout(timer);
  writeMenus();
  status(compiler.isReady ? "compiling" : "starting Python");
  document.body.classList.add("busy");
  isNew = true;
  const link = saveLink();
  compiler.ask({ text: editor.text, name, ...fallback });
  return link;
}

async function saveLink() {
  const fragment = await fragmentOf({ version: catalogue.version, name, text: editor.text, ...fallback });
  if (fragment !== location.hash) history.replaceState(null, "", fragment);
}

async function open() {
  const shown = await shownBy(location.hash);
  if (shown === null) {
    const isLink = location.hash.length > 1;
    const example = openExample(catalogue.examples[0]);
    if (isLink) remark = "The address has no whole plan: its end may have been cut off. This is an example.";
    return example;
  }
  name = shown.name ?? name;
  for (const option of ["model", "cluster"]) fallback[option] = shown[option] ?? catalogue[option];
  const isOther = shown.version !== catalogue.version;
  remark = isOther ? `This link was made with ssdsl ${shown.version}; this page has ${catalogue.version}, and may show something else.` : null;
  editor.text = shown.text;
  return ask();
}

function openExample(example) {
  name = example.name;
  remark = null;
  editor.text = example.text;
  at("editor").scrollTop = 0;
  return ask();
}

function setOption(option, value, param) {
  editor.text = withOption(editor.text, option, value, param);
  return ask();
}

// ---- menus -------------------------------------------------------------------------------------------------------

function writeExamples() {
  const options = catalogue.examples.map((example, number) => {
    const model = optionOf(example.text, "--model");
    return new Option(`${example.name.replace(".ssp", "")} · ${model}`, number);
  });
  at("examples").replaceChildren(new Option("", ""), ...options);
  at("examples").addEventListener("change", ({ target }) => target.value && openExample(catalogue.examples[target.value]));
}

function writeMenus() {
  const example = catalogue.examples.findIndex(({ text }) => text === editor.text);
  const [first] = at("examples").options;
  first.text = `${name.replace(".ssp", "")}${catalogue.examples.some((one) => one.name === name) ? ", changed" : ""}`;
  first.hidden = example >= 0;
  at("examples").value = example < 0 ? "" : example;
  const given = [...compiler.graphs.keys()].map((graph) => ({ name: graph, names: [graph], about: "your graph" }));
  writeMenu("models", "--model", [...catalogue.models, ...given], (model) => model.about);
  const about = (cluster) => `${cluster.devices} × ${cluster.about}`;
  writeMenu("clusters", "--cluster", catalogue.clusters.map((cluster) => ({ ...cluster, names: [cluster.name] })), about);
}

function writeMenu(id, option, known, about) {
  const chosen = optionOf(editor.text, option) ?? fallback[option.slice(2)];
  const items = known.map((item) => {
    const made = new Option(item.name, item.name, false, item.names.includes(chosen));
    made.title = about(item);
    return made;
  });
  if (!items.some((item) => item.selected)) items.unshift(new Option(chosen, chosen, false, true));
  at(id).replaceChildren(...items);
  at(id).title = at(id).selectedOptions[0].title;
}

function writeParams(params) {
  const isSame = (input, n) => input.name === params[n]?.name;
  const inputs = [...at("params").querySelectorAll("input")];
  if (inputs.length !== params.length || !inputs.every(isSame))
    at("params").replaceChildren(
      ...params.map((param) => {
        const input = Object.assign(element("input"), { type: "number", name: param.name });
        input.addEventListener("change", () => setOption("--set", input.value === "" ? null : Math.trunc(Number(input.value)), param.name));
        return element("label", "", element("span", "", param.name), input);
      }),
    );
  at("params").querySelectorAll("input").forEach((input, n) => {
    const { name: param, value, help } = params[n];
    if (document.activeElement !== input || input.value === "") input.value = value;
    input.parentElement.title = help;
    input.parentElement.classList.toggle("set", optionOf(editor.text, "--set", param) !== null);
  });
}

// ---- answers -----------------------------------------------------------------------------------------------------

function answered(answer, ms) {
  if (answer.stage === "graph") return graphGiven(answer);
  if (isNew) [diagnostics, notices, proof, isNew] = [[], [], "", false];
  diagnostics.push(...answer.diagnostics);
  switch (answer.stage) {
    case "read":
      if (answer.params) writeParams(answer.params);
      return answer.wants ? wants(answer.wants) : undefined;
    case "step":
      stepTime = ms;
      writeFigures(at("figures"), answer.figures);
      writeMemory(at("memory"), answer.memory);
      frame.show(answer.timeline);
      drawnText = editor.text;
      document.body.classList.remove("old");
      status("proving");
      return writeMessages();
    case "traffic":
      return writeTable(at("communication"), answer.communication);
    case "proof":
      proof = answer.proof;
      return writeMessages();
    case "advice":
      return finish(`simulated in ${seconds(stepTime)}`);
    case "bug":
      notices = [bug(answer.bug)];
  }
  finish("");
}

function finish(said) {
  document.body.classList.remove("busy");
  document.body.classList.toggle("old", !proof);
  status(said);
  writeMessages();
}

// Marks the lines that have events, and those of the event under the pointer, while the timeline is of this text.
function light(lines) {
  if (editor.text === drawnText) editor.light(frame.lines, lines);
}

// The graph of a model that the page does not have.
function wants(model) {
  notices = [
    model.endsWith(OWN)
      ? `This plan is for the graph \`${model}\`, which no link holds: open the file, or choose a model.`
      : `This page has no graph of \`${model}\`. Write it where torch is, \`ssdsl capture ${model} -o ${model.replaceAll(/\W+/g, "-")}.graph\`, and open it here.`,
  ];
  finish("");
}

function bug(error) {
  const link = Object.assign(element("a", "", "this link"), { href: location.href });
  return element("span", "", `ssdsl fails on this plan, which is a mistake of ssdsl (${error}): please report it with `, link, ".");
}

function failed(error) {
  notices = [compiler.isReady ? bug(error) : `The compiler did not start: ${error}. Load the page again, or try a newer browser.`];
  finish("");
}

// What Python says of a graph: the plan is for the one that was opened last, if it can be read.
function graphGiven({ model, diagnostics }) {
  if (diagnostics.length) {
    compiler.graphs.delete(model);
    notices = diagnostics.map((one) => `\`${model}\` cannot be opened. ${one.message} (${one.code}). ${one.help.join(" ")}`);
    return finish("");
  }
  if (model === opening) setOption("--model", model);
  opening = null;
}

const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

function status(text) {
  at("status").textContent = text;
}

// ---- messages ----------------------------------------------------------------------------------------------------

function writeMessages() {
  const own = diagnostics.filter((one) => one.file === name && one.line !== null);
  editor.mark(own.map((one) => ({ ...one, end: one.end ?? { line: one.line, column: one.column + 1 } })));
  const told = [...(remark ? [remark] : []), ...notices].map((one) => element("article", "notice", ...(typeof one === "string" ? spelled(one) : [one])));
  const proved = proof && !diagnostics.some((one) => one.severity === "error") ? [element("p", "proof", proof)] : [];
  at("messages").replaceChildren(...told, ...diagnostics.map(message), ...proved);
}

function message(one) {
  const isHere = one.file === name && one.line !== null;
  const file = one.file === name ? "line" : one.file;
  const place = one.file === null ? [] : [element(isHere ? "button" : "span", "place", one.line === null ? file : `${file} ${one.line}`)];
  if (isHere) place[0].addEventListener("click", () => editor.go(one.line, one.column));
  const explanation = element("p", "explanation", ...spelled(one.explanation));
  const code = element("button", "code", one.code);
  code.title = "explain";
  code.addEventListener("click", () => (explanation.hidden = !explanation.hidden));
  explanation.hidden = true;
  const head = element("h3", "", code, element("span", "title", ...spelled(one.message)), ...place);
  const more = one.others.map((other) => `${other.file === name ? "line" : other.file} ${other.line}: ${other.label}`);
  const lines = [[one.label ?? "", "label"], ...more.map((text) => [text, "label"]), ...one.notes.map((text) => [text, "note"]), ...one.help.map((text) => [text, "help"])];
  const edits = one.edits.filter((edit) => edit.file === name);
  const fixes = edits.length ? [element("div", "fixes", ...edits.slice(0, MOST_FIXES).map(fix))] : [];
  const said = lines.filter(([text]) => text).map(([text, kind]) => element("p", kind, ...spelled(text)));
  return element("article", one.severity, head, explanation, ...said, ...fixes);
}

// A button that makes a change which a help names.
function fix(edit) {
  const isAdded = edit.line === edit.end.line && edit.column === edit.end.column;
  const words = edit.text.trim();
  const button = element("button", "", words ? `${isAdded ? "add" : "write"} ${words}` : "remove it");
  button.addEventListener("click", () => {
    editor.text = edited(editor.text, edit);
    return ask();
  });
  return button;
}

// ---- files -------------------------------------------------------------------------------------------------------

async function openGraph(file) {
  if (!file?.name.endsWith(OWN)) {
    notices = [`\`${file?.name ?? "this"}\` is no graph: \`ssdsl capture MODEL -o FILE.graph\` writes one.`];
    return finish("");
  }
  const graph = file.name.replaceAll(/[^\w.-]+/g, "_");
  opening = graph;
  document.body.classList.add("busy");
  return compiler.addGraph(graph, await file.arrayBuffer());
}

async function copyLink() {
  await saveLink();
  const button = at("copy");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "copied";
  } catch {
    button.textContent = "copy it from the address bar";
  }
  setTimeout(() => (button.textContent = "copy link"), 1500);
}

at("models").addEventListener("change", ({ target }) => setOption("--model", target.value));
at("clusters").addEventListener("change", ({ target }) => setOption("--cluster", target.value));
at("file").addEventListener("change", ({ target }) => (openGraph(target.files[0]), (target.value = "")));
at("copy").addEventListener("click", copyLink);
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  void openGraph(event.dataTransfer.files[0]);
});
addEventListener("hashchange", open);
writeExamples();
await open();
