"""The text form of programs, which `ssdsl show PLAN program` prints and goldens hold. docs/ir.md describes it."""
