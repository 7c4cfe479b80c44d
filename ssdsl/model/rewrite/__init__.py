"""Rewrites captured calls: into operators that plans can split, draws as pure functions, routing without sorts."""
