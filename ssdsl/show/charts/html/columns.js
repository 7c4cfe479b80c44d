// columns.js: draws what is below a pixel: for every few pixels the share of them that each kind covers.

const COLUMN = 3; // pixels
const SETS = 2 * KINDS.length; // the kinds, and again for what is not marked
let columns = new Float32Array(0);

function beginColumns() {
  const needed = (Math.ceil(geometry.width / COLUMN) + 2) * SETS;
  if (columns.length < needed) columns = new Float32Array(needed);
  else columns.fill(0);
}

function addToColumns(e, x, end) {
  const slot = events.kind[e] + (isLit(e) ? 0 : KINDS.length);
  const column = Math.floor(x / COLUMN);
  if (column < 0 || column * COLUMN >= geometry.width) return;
  const rest = Math.max(0, end / COLUMN - column - 1); // in the next column
  columns[column * SETS + slot] += Math.max(0.05, (end - x) / COLUMN - rest);
  if (rest > 0) columns[(column + 1) * SETS + slot] += rest;
}

// Kind after kind, for few changes of the colour; a column's kinds stand below each other.
function drawColumns(ctx, y, height) {
  const last = Math.ceil(geometry.width / COLUMN);
  for (let slot = 0; slot < SETS; slot++) {
    ctx.fillStyle = theme.kinds[slot % KINDS.length];
    ctx.globalAlpha = slot < KINDS.length ? 1 : DIMMED;
    for (let column = Math.floor(geometry.left / COLUMN); column < last; column++) {
      const at = column * SETS;
      const covered = columns[at + slot];
      if (covered === 0) continue;
      let above = 0;
      let sum = 0;
      for (let other = 0; other < SETS; other++) {
        if (other < slot) above += columns[at + other];
        sum += columns[at + other];
      }
      const scale = height / Math.max(1, sum);
      ctx.fillRect(column * COLUMN, y + above * scale, COLUMN, Math.max(1.5, covered * scale));
    }
  }
}
