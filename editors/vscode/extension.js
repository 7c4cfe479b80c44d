// Starts `ssdsl lsp` for plans, and shows what its commands print.
const { commands, window, workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

const COMMANDS = ["check", "prove", "simulate", "search"];
let client;

async function activate(context) {
  const [command, ...args] = workspace.getConfiguration("ssdsl").get("command");
  const server = { command, args };
  client = new LanguageClient("ssdsl", "ssdsl", server, { documentSelector: [{ scheme: "file", language: "ssp" }] });
  const output = window.createOutputChannel("ssdsl", "ssp");
  context.subscriptions.push(output, ...COMMANDS.map((word) => commands.registerCommand(`ssdsl.run.${word}`, () => run(word, output))));
  try {
    await client.start();
  } catch (error) {
    window.showErrorMessage(`${command} could not be started: pip install 'ssdsl[lsp]', or set "ssdsl.command". ${error}`);
  }
}

async function run(word, output) {
  const editor = window.activeTextEditor;
  if (!editor || editor.document.languageId !== "ssp") {
    window.showInformationMessage("open a plan first");
    return;
  }
  await editor.document.save();
  const title = `ssdsl ${word}`;
  const work = () => client.sendRequest("workspace/executeCommand", { command: `ssdsl.${word}`, arguments: [editor.document.uri.toString()] });
  const done = await window.withProgress({ location: 15, title }, work);
  output.appendLine(done.text);
  output.show(true);
}

function deactivate() {
  return client && client.stop();
}

module.exports = { activate, deactivate };
