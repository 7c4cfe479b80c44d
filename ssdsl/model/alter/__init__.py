"""What a plan changes of a model: casts and compressions; and the changed model on one device."""
