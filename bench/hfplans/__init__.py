"""The plans of transformers, each compared with what a right program needs, and run by transformers."""
