"""Places operators that no statement names: beside their neighbours."""
