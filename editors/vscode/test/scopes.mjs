// Reads texts as JSON, {name: text}, and prints for each the scopes of its tokens: [line, start, end, scope] of the innermost.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const require = createRequire(import.meta.url);
const oniguruma = require("vscode-oniguruma");
const textmate = require("vscode-textmate");
const folder = join(dirname(fileURLToPath(import.meta.url)), "..");
const wasm = readFileSync(require.resolve("vscode-oniguruma/release/onig.wasm")).buffer;
await oniguruma.loadWASM(wasm);
const registry = new textmate.Registry({
  onigLib: Promise.resolve({
    createOnigScanner: (patterns) => new oniguruma.OnigScanner(patterns),
    createOnigString: (text) => new oniguruma.OnigString(text),
  }),
  loadGrammar: async () => {
    const file = join(folder, "syntaxes", "ssp.tmLanguage.json");
    return textmate.parseRawGrammar(readFileSync(file, "utf8"), file);
  },
});
const grammar = await registry.loadGrammar("source.ssp");
const texts = JSON.parse(readFileSync(0, "utf8"));
const found = {};
for (const [name, text] of Object.entries(texts)) {
  let state = textmate.INITIAL;
  found[name] = text.split("\n").flatMap((line, number) => {
    const tokens = grammar.tokenizeLine(line, state);
    state = tokens.ruleStack;
    return tokens.tokens.map((t) => [number + 1, t.startIndex, t.endIndex, t.scopes.at(-1)]);
  });
}
process.stdout.write(JSON.stringify(found));
