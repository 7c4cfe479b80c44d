"""Plans that leave something open, and the search for what to put there."""
