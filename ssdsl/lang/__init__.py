"""From text to Script: reads, parses and formats plans."""
