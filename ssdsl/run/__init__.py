"""From a program folder to processes: launches it, reads the measurements, compares it with a single device."""
