"""docs/papers.md: the plans of papers at their papers' sizes, beside the fixed strategies at their best settings."""
