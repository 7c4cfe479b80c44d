"""What is known while a plan is written, for the REPL and for editors: what may follow, what a name is, what a
statement adds."""
