// Compiles the Python files of a folder with the Python of the page, so that no browser has to; the files themselves go.
// Makes the parser's tables, too, which takes longer than reading a plan: node compile.mjs SITE CACHE

import { loadPyodide } from "pyodide";

const [site, cache] = process.argv.slice(2);
const COMPILE = `
import os, py_compile, sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, "/site")
os.environ["XDG_CACHE_HOME"] = "/cache"
from ssdsl.lang.parse import grammar_parser

grammar_parser()
for path in sorted(Path("/site").rglob("*.py")):
    name = str(path.relative_to("/site"))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(path), str(path.with_suffix(".pyc")), name, doraise=True, invalidation_mode=mode)
    path.unlink()
`;
try {
  const python = await loadPyodide();
  for (const [at, folder] of [["/site", site], ["/cache", cache]]) {
    python.FS.mkdirTree(at);
    python.FS.mount(python.FS.filesystems.NODEFS, { root: folder }, at);
  }
  python.runPython(COMPILE);
} catch (error) {
  console.error(String(error).slice(-2000));
  process.exit(1);
}
