"""Answers to what a plan leaves open: other cuts, orders, widths and clocks, written into its text."""
