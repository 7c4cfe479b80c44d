"""From a Plan to a Plan about a changed graph: operators that are added, copied, or have divided dimensions."""
