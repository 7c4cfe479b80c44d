"""The compiler's one intermediate representation: typed programs, their text, their verifier."""
