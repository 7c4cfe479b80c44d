// frame.js: the timeline in a frame of its own. A new one takes the place of the old when it is drawn, and keeps its view.

export class TimelineFrame {
  // `marked` gets the lines of the event under the pointer.
  constructor(place, marked) {
    Object.assign(this, { place, marked });
    this.shown = null;
    this.next = null;
  }

  show(data) {
    this.next?.remove();
    const frame = document.createElement("iframe");
    frame.title = "Timeline";
    frame.given = JSON.stringify(data);
    frame.marked = (lines) => frame === this.shown && this.marked(lines);
    frame.addEventListener("load", () => this.#swap(frame));
    frame.src = "timeline.html";
    this.next = frame;
    this.place.append(frame);
  }

  get #timeline() {
    return this.shown?.contentWindow.ssdslTimeline;
  }

  #swap(frame) {
    if (frame !== this.next) return;
    const old = this.#timeline;
    const timeline = frame.contentWindow.ssdslTimeline;
    if (old) {
      const { from, to } = old.view();
      const scale = timeline.total / old.total;
      if (to - from < old.total * 0.999) timeline.zoom(from * scale, to * scale);
      timeline.draw();
    }
    this.shown?.remove();
    this.shown = frame;
    this.next = null;
    this.place.classList.add("drawn");
    this.marked([]);
  }

  // The lines that have events, and marks those of one line.
  get lines() {
    const found = this.shown?.contentDocument.querySelectorAll(".line.has-events") ?? [];
    return Array.from(found, (line) => Number(line.dataset.line));
  }

  point(line) {
    this.#timeline?.hoverLine(line);
  }
}
