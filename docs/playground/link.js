// link.js: what the page shows as the fragment of its address, compressed, and back.

const through = async (bytes, stream) =>
  new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

export async function fragmentOf(shown) {
  const bytes = await through(new TextEncoder().encode(JSON.stringify(shown)), new CompressionStream("deflate-raw"));
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return `#${text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

// What a fragment shows; null if it is none that `fragmentOf` made.
export async function shownBy(fragment) {
  try {
    const text = atob(fragment.slice(1).replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(text, (character) => character.charCodeAt(0));
    const shown = JSON.parse(new TextDecoder().decode(await through(bytes, new DecompressionStream("deflate-raw"))));
    return typeof shown?.text === "string" ? shown : null;
  } catch {
    return null;
  }
}
