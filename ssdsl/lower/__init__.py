"""From a Plan to a Program: operators, functions with their communication, parameters, and the order of tasks."""
