"""Rewrites of captured calls: into operators that plans can split, random numbers as functions, routing without sorts."""
