// In the frame of a timeline, before its own scripts: its data is what the page has put at the frame.
document.getElementById("timeline").textContent = frameElement.given;
addEventListener("load", () => {
  const marked = () => frameElement.marked(window.ssdslTimeline.markedLines());
  new MutationObserver(marked).observe(document.getElementById("lines"), { subtree: true, attributeFilter: ["class"] });
});
