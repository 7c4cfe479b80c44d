"""Views: tables of models, dimensions, operators, plans and runs, for people and as JSON."""
