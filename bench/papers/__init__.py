"""bench/results/papers.md: plans of papers at their papers' sizes, beside fixed strategies at their best settings."""
