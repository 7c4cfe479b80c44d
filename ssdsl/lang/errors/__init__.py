"""What can be wrong with a plan's file and its text, before its meaning is asked: E01xx."""
