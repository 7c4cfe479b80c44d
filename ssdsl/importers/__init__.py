"""What people have elsewhere, as plans: each file reads one kind of foreign configuration, and says of everything that
stands in it what became of it."""
