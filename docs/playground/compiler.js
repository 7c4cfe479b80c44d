// compiler.js: the worker with the compiler. The last plan wins: answers to earlier ones are left out, and a worker that
// takes longer for one than a new worker takes to start is replaced.

const TOO_LONG = 10_000; // milliseconds

export class Compiler {
  // `answered` gets each stage of the answer to the last plan, `failed` why there will be none.
  constructor(answered, failed, ready) {
    Object.assign(this, { answered, failed, ready });
    this.number = 0; // of the last plan
    this.graphs = new Map(); // that the user gave
    this.begun = 0; // when the worker began with the plan that it is at, or 0
    this.#start();
  }

  // The answers that are on their way are no longer wanted.
  cancel() {
    this.number++;
    this.worker?.postMessage({ kind: "stop" });
  }

  ask(request) {
    this.number++;
    if (!this.worker || (this.begun && performance.now() - this.begun > TOO_LONG)) this.#start();
    this.worker.postMessage({ kind: "plan", number: this.number, request });
  }

  addGraph(name, bytes) {
    this.graphs.set(name, bytes);
    if (!this.worker) this.#start();
    else this.worker.postMessage({ kind: "graph", name, bytes });
  }

  #start() {
    this.worker?.terminate();
    this.isReady = false;
    this.begun = 0;
    this.worker = new Worker("worker.js", { type: "module" });
    this.worker.onmessage = ({ data }) => this.#said(data);
    this.worker.onerror = (event) => (event.preventDefault?.(), this.#fail(event.message ?? "the worker did not start"));
    for (const [name, bytes] of this.graphs) this.worker.postMessage({ kind: "graph", name, bytes });
  }

  #said(data) {
    if (data.kind === "ready") {
      this.isReady = true;
      this.ready();
    } else if (data.kind === "begun") this.begun = performance.now();
    else if (data.kind === "idle") this.begun = 0;
    else if (data.kind === "failed") this.#fail(data.error);
    else if (data.kind === "graph") this.answered(data.answer, 0);
    else if (data.number === this.number) this.answered(data.answer, data.ms);
  }

  #fail(error) {
    this.worker?.terminate();
    this.worker = null;
    this.begun = 0;
    this.failed(error);
  }
}
