"""`python -m bench same`: two checkouts compile and simulate the same plans; how far are they alike?"""
