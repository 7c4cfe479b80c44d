// Runs extension.js with stand-ins for the editor and the client: which server it starts, what a command shows.
import { createRequire } from "node:module";
import Module from "node:module";

const require = createRequire(import.meta.url);
const seen = { registered: [], requests: [], shown: [], saved: 0, errors: [] };
const handlers = {};
const document = { languageId: "ssp", uri: "file:///p.ssp", save: async () => (seen.saved += 1) };
const vscode = {
  commands: { registerCommand: (name, run) => (seen.registered.push(name), (handlers[name] = run)) },
  window: {
    createOutputChannel: () => ({ appendLine: (text) => seen.shown.push(text), show: () => {} }),
    activeTextEditor: { document },
    withProgress: (_, work) => work(),
    showErrorMessage: (text) => seen.errors.push(text),
  },
  workspace: { getConfiguration: () => ({ get: () => ["ssdsl", "lsp"] }) },
};
class LanguageClient {
  constructor(_id, _name, server, options) {
    Object.assign(seen, { server, options });
  }
  async start() {}
  async sendRequest(method, params) {
    seen.requests.push([method, params]);
    return { status: 0, text: "proved" };
  }
}
const load = Module._load;
Module._load = (name, ...rest) =>
  name === "vscode" ? vscode : name === "vscode-languageclient/node" ? { LanguageClient } : load(name, ...rest);
const extension = require("../extension.js");
await extension.activate({ subscriptions: [] });
await handlers["ssdsl.run.prove"]();
console.log(JSON.stringify(seen));
