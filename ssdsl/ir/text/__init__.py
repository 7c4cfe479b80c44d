"""The text form of programs: what `ssdsl show PLAN program` prints and goldens hold. docs/ir.md describes it."""
