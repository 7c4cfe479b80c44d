"""From a program folder to processes: launch it, read what they measured, compare it with a single device."""
