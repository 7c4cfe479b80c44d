"""Program -> Report: how long a step takes, what each device does when, and what its memory holds."""
